"""The process that trains: opens the site's images once, then trains a round for each request until its parent ends."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

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
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    request = receive(requests)
    if request is None:
        return
    try:
        site = _Site(request)
    except Exception as error:
        _reply_failure(replies, _reason(error), error)
        return
    send(replies, Message("ready", {"n_samples": site.n_samples}))
    while (request := receive(requests)) is not None:
        try:
            site.train(request, replies)
        except Exception as error:
            _reply_failure(replies, _reason(error), error)


class _Site:
    """The open data set, trainer and private state of one site."""

    def __init__(self, request: Message) -> None:
        # Heavy imports come after the frame streams are set up, and only in this process.
        from fedad_components.config import FedADConfig
        from fedad_components.fedsd.trainer import LocalTrainer
        from fedad_components.imaging.cache import cache_side
        from fedad_components.imaging.catalogue import Catalogue
        from fedad_components.imaging.ingest import ingest
        from fedad_components.worker.site_state import SiteStateStore

        config = FedADConfig.parse(request.fields["config"])
        folder = Path(request.fields["state_dir"]) / config.federation.experiment
        self._store = SiteStateStore(folder, config.identity())
        self._store.lock()
        data_set = Catalogue.load(request.fields["catalogue"]).data_set(config.federation.data_set)
        cached = ingest(data_set, request.fields["cache_dir"], cache_side(config.model.image_size))
        logger.info("data set %s: %s", data_set.id, cached.account.summary())
        self._trainer = LocalTrainer(config, cached.images, request.fields["site"])
        self.n_samples = len(cached.images)

    def train(self, request: Message, replies: BinaryIO) -> None:
        round_number = int(request.fields["round"])
        state = self._store.load_before(round_number)
        if state is not None:
            self._trainer.load_site_state(state)
        result = self._trainer.train_round(
            request.tensors,
            float(request.fields["lambda_t"]),
            round_number,
            on_epoch=lambda epoch, losses: send(replies, Message("epoch", {"epoch": epoch, "losses": losses})),
        )
        self._store.save(round_number, self._trainer.site_state())
        fields = {"n_samples": result.n_samples, "losses": result.losses, "seconds": result.seconds}
        send(replies, Message("result", fields, result.update))


def _reason(error: Exception) -> Reason:
    from fedad_components.files import LockedError
    from fedad_components.imaging.account import DataRefused
    from fedad_components.imaging.catalogue import CatalogueError
    from fedad_components.worker.site_state import SiteStateError

    if isinstance(error, (DataRefused, CatalogueError)):
        return Reason.DATA_REFUSED
    if isinstance(error, (SiteStateError, LockedError)):
        return Reason.STATE_REFUSED
    return Reason.TRAINING_FAILED


def _reply_failure(replies: BinaryIO, reason: Reason, error: Exception) -> None:
    logger.exception("%s", reason.value)
    send(replies, Message("failure", {"reason": reason.value, "message": f"{type(error).__name__}: {error}"}))


def _exit_with_parent(parent: int) -> None:
    """End when the parent is gone: an orphan would hold the site's lock and its GPU."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
