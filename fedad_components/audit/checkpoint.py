"""Signed checkpoints: a party states the end of its log, and keeps what others stated of theirs.

A party that later rewrites or cuts its log contradicts the checkpoints that its peers hold.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from pydantic import ValidationError

from fedad_components.audit.event import Event, EventError, Kind, Outcome, SignedCheckpoint, canonical, moment, parse
from fedad_components.audit.keys import Signer, check_certificate, is_exact, verify_signature
from fedad_components.audit.log import AuditError, AuditLog, Place
from fedad_components.audit.reading import lines_backwards, log_files

EVERY_SECONDS = 300.0


class CheckpointError(ValueError):
    """A peer's checkpoint is not what it says; the message says why."""


def sign(signer: Signer, site: str, seq: int, root: str, time: str) -> SignedCheckpoint:
    """State that the log of ``site`` ends, or once ended, in event ``seq`` with hash ``root``."""
    stated = {"site": site, "seq": seq, "root": root, "time": time, "certificate": signer.certificate}
    return SignedCheckpoint.model_validate({**stated, "signature": signer.sign(canonical(stated))})


def signature_holds(checkpoint: SignedCheckpoint) -> bool:
    """Whether the key of its certificate signed it. Whose certificate that is, is another question."""
    stated = checkpoint.model_dump(mode="json", exclude={"signature"})
    return is_exact(checkpoint.certificate) and verify_signature(
        checkpoint.certificate, checkpoint.signature, canonical(stated)
    )


def write_checkpoint(log: AuditLog, signer: Signer) -> SignedCheckpoint:
    """Sign the log as it is now, and append that.

    Raises:
        AuditError: if it cannot be written, the log is empty, or the signer is another party.
    """
    if signer.name != log.site:
        raise AuditError(f"{log.folder}: the log of {log.site!r} cannot be signed by {signer.name!r}: use its own kit")
    made: list[SignedCheckpoint] = []

    def fields(place: Place) -> dict[str, Any]:
        if place.seq == 0:
            raise AuditError(f"{log.folder}: the log is empty, and there is nothing to sign: write an event first")
        made.append(sign(signer, log.site, place.seq - 1, place.prev, place.time))
        return {"checkpoint": made[0]}

    log.write_placed(Kind.CHECKPOINT, Outcome.SUCCESS, fields)
    return made[0]


def latest(log: AuditLog) -> SignedCheckpoint | None:
    """The log's own last checkpoint, the one to send to peers; None if it has none. Read from the files' end.

    Raises:
        OSError: if they cannot be read.
    """
    found, _ = _since_checkpoint(log)
    return found


def due(log: AuditLog, every_seconds: float = EVERY_SECONDS) -> bool:
    """Whether events wait for a checkpoint, and the last one is as old or there is none.

    Raises:
        OSError: if the files cannot be read.
    """
    checkpoint, later = _since_checkpoint(log)
    if checkpoint is None or not later:
        return later
    return not timedelta() <= _age(checkpoint) < timedelta(seconds=every_seconds)  # below 0: the clock was set back


def _age(checkpoint: SignedCheckpoint) -> timedelta:
    return datetime.now(timezone.utc) - moment(checkpoint.time)


def accept_peer(log: AuditLog, checkpoint: SignedCheckpoint | dict[str, Any], root_pem: str, peer: str) -> Event:
    """Check what ``peer`` sent and keep it; a checkpoint that is not the peer's is refused, and the log says so.

    Args:
        root_pem: the consortium's root certificate.
        peer: who sent it, as FLARE's connection knows.

    Raises:
        CheckpointError: if it is refused.
        AuditError: if neither could be written.
    """
    try:
        problem, checked = None, SignedCheckpoint.model_validate(checkpoint)
    except ValidationError:
        problem = "not a checkpoint"
    else:
        problem = _problem(checked, root_pem, peer)
    if problem:
        log.write(Kind.PEER_CHECKPOINT, Outcome.REFUSED, peer=peer, reason=problem)
        raise CheckpointError(f"the checkpoint of {peer!r} is refused: {problem}")
    return log.write(Kind.PEER_CHECKPOINT, peer=peer, checkpoint=checked)


def _problem(checkpoint: SignedCheckpoint, root_pem: str, peer: str) -> str | None:
    if checkpoint.site != peer:
        return "it is of another party"
    if not signature_holds(checkpoint):
        return "its signature is not by its certificate's key"
    problems = check_certificate(checkpoint.certificate, root_pem, datetime.now(timezone.utc), peer)
    if any(problem.expired for problem in problems):
        return "its certificate is not valid now"
    return "its certificate is not the party's under the root" if problems else None


def _since_checkpoint(log: AuditLog) -> tuple[SignedCheckpoint | None, bool]:
    """The last checkpoint, and whether events came after it."""
    later = False
    for file in reversed(log_files(log.folder) if log.folder.is_dir() else []):
        for line in lines_backwards(file):
            if b'"event":"checkpoint"' in line:
                try:
                    return parse(line).event.checkpoint, later
                except EventError:
                    continue  # torn, or changed: the next write or the auditor finds it
            later = later or bool(line)
    return None, later
