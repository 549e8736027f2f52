"""The process that trains: opens the site's data once, then trains a round for each request until its parent ends."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO

from fedad_components.signals import exit_with_parent
from fedad_components.wire import Reason
from fedad_components.worker.protocol import Message, receive, send

logger = logging.getLogger("fedad.worker")


def main() -> None:
    """Serve requests on stdin and stdout; the log goes to stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    requests = sys.stdin.buffer
    # Whatever a library prints must not fall between two frames: stdout is kept for frames, prints go to the log.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    exit_with_parent()  # an orphan would hold the site's lock and its GPU
    request = receive(requests)
    if request is None:
        return
    try:
        site = _Site(request)
    except Exception as error:
        _reply_failure(replies, error)
        return
    send(replies, Message("opened", {"images": site.images}))
    send(replies, Message("ready"))
    while (request := receive(requests)) is not None:
        try:
            site.train(request, replies)
        except Exception as error:
            _reply_failure(replies, error)


class _Site:
    """The open data set, trainer, private state and ledger of one site."""

    def __init__(self, request: Message) -> None:
        # Heavy imports come after the frame streams are set up, and only in this process.
        from fedad_components.algorithms import algorithm_of, parse_config
        from fedad_components.imaging.catalogue import Catalogue
        from fedad_components.privacy.ledger import Ledger
        from fedad_components.privacy.session import PrivacySession
        from fedad_components.worker.site_state import SiteStateStore

        fields = request.fields
        config = parse_config(fields["config"])
        folder = Path(fields["state_dir"]) / config.federation.experiment
        self._store = SiteStateStore(folder, config.identity())
        self._store.lock()
        catalogue = Catalogue.load(fields["catalogue"])
        opened = algorithm_of(config).open_site(config, catalogue, fields["cache_dir"])
        self.images = len(opened.files)
        self._config = config
        self._session = PrivacySession(
            config,
            catalogue.data_set(config.federation.data_set),
            opened,
            site=fields["site"],
            job_id=fields["job_id"],
            ledger=Ledger(fields["ledger"], fields["ledger_head"]),
            unit_key_file=fields["unit_key"],
        )

    def train(self, request: Message, replies: BinaryIO) -> None:
        from fedad_components.privacy.policy import PrivacyRules

        fields = request.fields
        round_number = int(fields["round"])
        trainer = self._session.trainer
        state = self._store.load_before(round_number)
        if state is not None:
            trainer.load_site_state(state)
        rules = PrivacyRules.model_validate(fields["rules"])
        cost = self._session.charge(round_number, rules, fields["known_ledger_head"])
        send(replies, Message("charged", {"privacy": cost.model_dump(mode="json")}))
        result = trainer.train_round(
            request.tensors,
            float(fields["lambda_t"]),
            round_number,
            on_epoch=lambda epoch, losses: send(replies, Message("epoch", {"epoch": epoch, "losses": losses})),
            **({"bin_edges": fields["bin_edges"]} if fields["bin_edges"] else {}),
        )
        self._store.save(round_number, trainer.site_state())
        update = result.update
        if not self._config.surveys(round_number):
            update = self._session.protect(update, request.tensors)
        meta = self._session.meta(round_number, result)
        send(replies, Message("result", {"meta": meta, "seconds": result.seconds}, update))


def _reason(error: Exception) -> Reason:
    from fedad_components.files import LockedError
    from fedad_components.imaging.account import DataRefused
    from fedad_components.imaging.catalogue import CatalogueError
    from fedad_components.mil.splits import SplitError
    from fedad_components.privacy.ledger import BudgetExceeded, LedgerError
    from fedad_components.privacy.plan import PlanError
    from fedad_components.privacy.policy import PolicyRefused
    from fedad_components.privacy.units import UnitsError
    from fedad_components.worker.site_state import SiteStateError

    reasons: dict[type[Exception] | tuple[type[Exception], ...], Reason] = {
        (DataRefused, CatalogueError, UnitsError, PlanError, SplitError): Reason.DATA_REFUSED,
        (SiteStateError, LockedError): Reason.STATE_REFUSED,
        PolicyRefused: Reason.POLICY_REFUSED,
        BudgetExceeded: Reason.BUDGET_EXHAUSTED,  # before LedgerError, of which it is one
        LedgerError: Reason.LEDGER_REFUSED,
    }
    return next((reason for kinds, reason in reasons.items() if isinstance(error, kinds)), Reason.TRAINING_FAILED)


def _reply_failure(replies: BinaryIO, error: Exception) -> None:
    from fedad_components.privacy.policy import PolicyRefused

    reason = _reason(error)
    rule = error.rule.value if isinstance(error, PolicyRefused) else None
    logger.exception("%s", reason.value)
    message = f"{type(error).__name__}: {error}"
    send(replies, Message("failure", {"reason": reason.value, "message": message, "rule": rule}))
