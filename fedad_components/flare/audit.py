"""The compliance log from inside FLARE: whose log a process writes, and what every event of a job has in common.

One rule decides whether there is a log: a startup kit has one, signed with the kit's key, and without the key nothing
happens that the log would have to show. FLARE's simulator and tests have no kit, so no key and no log.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedad_components.audit.checkpoint import CheckpointError, accept_peer, write_checkpoint
from fedad_components.audit.event import (
    LONGEST_NAME,
    PLAIN_WORD,
    Actor,
    Event,
    Kind,
    Outcome,
    Payload,
    SignedCheckpoint,
    canonical,
)
from fedad_components.audit.keys import KeysError, Signer, root_of_kit
from fedad_components.audit.log import AuditError, AuditLog
from fedad_components.audit.payload import Tensor, describe
from fedad_components.config import ExperimentConfig
from fedad_components.flare.context import CONFIG_PROP
from fedad_components.flare.site import SitePaths
from fedad_components.wire import ResultMeta, WireError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

JOB_AUDIT_ID = "fedad_job_audit"
"""Component id of :class:`JobAudit` in ``privacy.json``."""


def hashed(text: str) -> str:
    """A name that can say anything, as it may stand in the log."""
    return f"sha256:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def word(text: Any) -> str:
    """A name from outside, as it may stand in the log; of one with spaces or other characters only its hash."""
    return str(text) if PLAIN_WORD.fullmatch(str(text)) else hashed(str(text))


def actor(name: str | None, org: str | None = None, role: str | None = None) -> Actor | None:
    """A person as a verified certificate names them; None without a name."""
    return Actor(name=name[:LONGEST_NAME], org=org or None, role=role or None) if name else None


class Party:
    """A kit's log and key.

    Raises:
        AuditError: if key, certificate or root certificate cannot be used.
    """

    def __init__(self, kit: Path) -> None:
        try:
            self.signer = Signer.from_kit(kit)
            self.root = root_of_kit(kit)
        except KeysError as error:
            raise AuditError(str(error)) from None
        self.kit = kit
        self.log = AuditLog(SitePaths.of_kit(kit).audit, self.signer.name)

    @property
    def is_site(self) -> bool:
        """Not the server."""
        return (self.kit / "startup" / "fed_client.json").is_file()

    @property
    def server(self) -> str:
        """At a site: the name in the server's certificate, as the kit has it."""
        path = self.kit / "startup" / "fed_client.json"
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["servers"][0]["identity"])
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise AuditError(f"{path}: names no server: {error!r}; take the kit anew") from None


@lru_cache(maxsize=4)
def party_of(kit: Path) -> Party:
    """A kit's one log in this process.

    Raises:
        AuditError: as :class:`Party`.
    """
    return Party(kit)


class Record:
    """Writes the events of a job, or of a process; where there is no kit, it writes nothing.

    Args:
        party: whose log; None where there is none.
        common: fields that all events have.
    """

    def __init__(self, party: Party | None, common: Mapping[str, Any]) -> None:
        self.party, self._common = party, dict(common)

    def write(self, kind: Kind, outcome: Outcome = Outcome.SUCCESS, **fields: Any) -> Event | None:
        """Append an event; it survives a loss of power.

        Raises:
            AuditError: if it was not written: what it stands for must not happen.
        """
        return self.party.log.write(kind, outcome, **{**self._common, **fields}) if self.party else None

    def note(self, kind: Kind, outcome: Outcome = Outcome.REFUSED, **fields: Any) -> None:
        """Append an event that nothing waits for, as of a refusal: if that fails, FLARE's log says so."""
        try:
            self.write(kind, outcome, **fields)
        except AuditError as error:
            logger.error("%s is missing in the compliance log: %s", kind.value, error)

    def checkpoint(self) -> SignedCheckpoint | None:
        """Sign the log as it is; what is returned goes to the peers.

        Raises:
            AuditError: as :meth:`write`.
        """
        return write_checkpoint(self.party.log, self.party.signer) if self.party else None

    def accept(self, checkpoint: SignedCheckpoint | None, peer: str) -> None:
        """Verify and keep what a peer says of its own log.

        Raises:
            CheckpointError: if there is none, or it is not the peer's; the log has the refusal.
            AuditError: as :meth:`write`.
        """
        if self.party is None:
            return
        if checkpoint is None:
            reason = "no checkpoint came with it"
            self.write(Kind.PEER_CHECKPOINT, Outcome.REFUSED, peer=word(peer), reason=reason)
            raise CheckpointError(f"{reason}: {peer!r} runs another release, or without a compliance log")
        accept_peer(self.party.log, checkpoint, self.party.root, peer)


def audit(fl_ctx: FLContext) -> Record:
    """The log of the party whose process this is, for events of the context's job.

    Raises:
        AuditError: if a kit's key or certificate cannot be used.
        SiteError: if a kit has no private folder.
    """
    engine = fl_ctx.get_engine()
    kit = SitePaths.from_context(fl_ctx).kit if engine is not None else None
    if kit is None:
        _say_once()
        return Record(None, {})
    common: dict[str, Any] = {}
    if job_id := fl_ctx.get_job_id():
        common["job_id"] = word(job_id)
    if isinstance(config := fl_ctx.get_prop(CONFIG_PROP), ExperimentConfig):
        common["experiment"] = config.federation.experiment
    if task_id := fl_ctx.get_prop(FLContextKey.TASK_ID):
        common["task_id"] = word(task_id)
    return Record(party_of(kit), common)


@lru_cache(maxsize=1)
def _say_once() -> None:
    logger.warning("no startup kit, so no key: nothing is written to a compliance log (FLARE's simulator)")


def payload(tensors: Mapping[str, torch.Tensor]) -> Payload:
    """What travels, as both ends describe it; tensors are those of the wire, on the CPU."""
    import torch  # a site's parent process has no use for it

    return describe(
        {
            name: Tensor(
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data,
            )
            for name, tensor in tensors.items()
        }
    )


def counts_nonce(meta: ResultMeta) -> str | None:
    """A new key for :func:`counts_of`; None where the meta has no counts."""
    return None if meta.events is None and meta.validation is None else secrets.token_hex(16)


def counts_of(meta: ResultMeta, nonce: str | None) -> dict[str, str] | None:
    """The counts of patients in a result's meta, as both ends write them down; None where there are none.

    HMAC-SHA256: counts are so few that whoever reads a plain hash finds them by trying all.

    Raises:
        WireError: if there are counts, and no nonce, or the other way round.
    """
    told = meta.model_dump(mode="json", include={"events", "validation"}, exclude_none=True)
    if bool(told) != (nonce is not None):
        raise WireError(f"counts_nonce: {'missing beside counts' if told else 'without counts'}")
    key = bytes.fromhex(nonce or "")
    return {name: hmac.digest(key, canonical({name: value}), "sha256").hex() for name, value in told.items()} or None


class JobAudit(FLComponent):
    """That a job's process started and stopped; a component of the site's ``privacy.json``, which no job can take away.

    At the server, FedAD's controller writes the same.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Nothing waits for these: a result is refused where the log cannot be written (StrictEgress)."""
        if event_type == EventType.START_RUN:
            audit(fl_ctx).note(Kind.JOB_PROCESS_STARTED, Outcome.SUCCESS)
        elif event_type == EventType.END_RUN:
            audit(fl_ctx).note(Kind.JOB_PROCESS_STOPPED, Outcome.SUCCESS)
