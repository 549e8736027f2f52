"""Retention: old files of a log are archived, then removed at a cut that the party signs, so that the rest verifies.

Only whole files go, from the oldest on, never the one that is being written. For each, in this order: a verified copy
in the archive; a ``log_cut`` event with a signed checkpoint over the file's last line, to which the log's new beginning
leads back; the file's removal. A crash between any two leaves a log that verifies, and the next run goes on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedad_components.audit.access import ACCOUNT, LIVE, account_name, live_kit
from fedad_components.audit.checkpoint import sign, write_checkpoint
from fedad_components.audit.event import Actor, Kind, Outcome, rfc3339
from fedad_components.audit.keys import Signer
from fedad_components.audit.log import AuditLog, Place
from fedad_components.audit.reading import find_chains, log_files, read, torn_number, torn_reason
from fedad_components.audit.verify import verify
from fedad_components.files import alone_in, make_private_dir, sha256_of, sync_folder, write_atomic

YEARS = 6
"""HIPAA, 45 CFR 164.316(b)(2)(i): from the date of its creation."""
HOLD = "retention.hold"
"""A file of this name in the log's folder, with the reason in it, stops every removal."""


class RetentionError(ValueError):
    """Nothing is removed; the message says why, and the fix."""


@dataclass(frozen=True)
class OldFile:
    """A file of the log whose newest event is older than the limit.

    Attributes:
        seq: of its last event.
        root: that line's hash.
        torn: files beside it with the bytes of its torn lines.
    """

    path: Path
    first_seq: int
    seq: int
    root: str
    newest: str
    sha256: str
    torn: tuple[Path, ...]


@dataclass(frozen=True)
class Plan:
    """What may go.

    Attributes:
        limit: events before it are old.
        files: oldest first.
        kept: how many files stay.
        hold: the reason of a legal hold; None without one.
    """

    folder: Path
    limit: str
    files: tuple[OldFile, ...]
    kept: int
    hold: str | None


def log_folder(place: Path) -> Path:
    """The folder of the log of a startup kit, or of a log.

    Raises:
        RetentionError: if there is none, or more than one.
    """
    in_kit = place.joinpath(*LIVE)
    folder = in_kit if in_kit.is_dir() else place
    if not folder.is_dir() or not log_files(folder):
        raise RetentionError(f"{place}: no log there; expected a startup kit, or the folder with audit-000001.jsonl")
    return folder


def plan(folder: Path, now: datetime, years: int = YEARS) -> Plan:
    """Find the files that are old as a whole; changes nothing.

    Args:
        folder: of one log.
        now: with its zone.
        years: how long an event is kept; at least 1.

    Raises:
        RetentionError: if the log does not verify: then it is evidence, and stays as it is.
        VerifyError: if it cannot be read.
    """
    if years < 1:
        raise RetentionError(f"years = {years}: expected at least 1")
    # Without the root: a consortium that was provisioned anew since has another one, and the old signatures stay good.
    found = verify([folder]).findings
    if found:
        first = found[0]
        raise RetentionError(
            f"{first.file}:{first.line}: {first.kind.value}, and {len(found) - 1} findings more: a log that does not "
            f"verify is evidence, and nothing of it is removed; see `fedad audit verify`"
        )
    limit = rfc3339(_years_before(now, years))
    (chain,) = find_chains([folder])
    old: list[OldFile] = []
    for path in chain.files[:-1]:
        file = _read(path)
        if file.newest >= limit:
            break
        old.append(file)
    return Plan(folder, limit, tuple(old), len(chain.files) - len(old), _hold(folder))


def apply(planned: Plan, archive: Path) -> None:
    """Archive the plan's files, and remove them at signed cuts.

    Args:
        archive: a folder for this party's old files alone; made if it is not there.

    Raises:
        RetentionError: if there is a legal hold, the log is a copy, a file has changed since the plan, or the archive
            has another file of the same name.
        AuditError, KeysError: if the cut cannot be signed or written. That file stays.
        OSError: if the archive cannot be written.
    """
    folder, kit = planned.folder, live_kit(planned.folder)
    if planned.hold is not None or _hold(folder) is not None:
        raise RetentionError(f"{folder / HOLD}: a legal hold; remove that file once its reason is gone")
    if kit is None:
        raise RetentionError(f"{folder}: a copy: only the party itself, with the key of its kit, can sign a cut")
    if archive.resolve().is_relative_to(folder.resolve()):
        raise RetentionError(f"{archive}: in the log's own folder; choose another place")
    signer = Signer.from_kit(kit)
    log = AuditLog(folder, signer.name)
    make_private_dir(archive)
    for file in planned.files:
        for path in (file.path, *file.torn):
            _copy(path, archive, file.sha256 if path == file.path else None)
        _cut(log, signer, file)
        with alone_in(folder):
            # A torn line's file without its event is nothing, and the event without its file would be a finding.
            for path in (file.path, *file.torn):
                path.unlink()
            sync_folder(folder)
    if planned.files:
        write_checkpoint(log, signer)


def _cut(log: AuditLog, signer: Signer, file: OldFile) -> None:
    reason = (
        f"retention: {file.path.name} is archived and removed, events {file.first_seq} to {file.seq}, the newest of "
        f"{file.newest}; SHA-256 {file.sha256}"
    )

    def fields(place: Place) -> dict[str, Any]:
        actor = Actor(name=account_name(), role=ACCOUNT)
        return {
            "checkpoint": sign(signer, log.site, file.seq, file.root, place.time),
            "actor": actor,
            "reason": reason,
        }

    log.write_placed(Kind.LOG_CUT, Outcome.SUCCESS, fields)


def _read(path: Path) -> OldFile:
    """A file of a log that verifies; an event at a time."""
    first = last = newest = root = None
    named: set[str | None] = set()
    for located in read([path]):
        event, root = located.event, located.hash
        first, last = event.seq if first is None else first, event.seq
        newest = max(newest or event.time, event.time)
        if event.event is Kind.LOG_TORN:
            named.add(event.reason)
    if first is None or last is None or newest is None or root is None:
        raise RetentionError(f"{path}: no event in it; see `fedad audit verify`")
    beside = sorted(file for file in path.parent.iterdir() if torn_number(file) is not None)
    torn = tuple(file for file in beside if torn_reason(file.name, file.read_bytes()) in named)
    return OldFile(path, first, last, root, newest, sha256_of(path), torn)


def _copy(path: Path, archive: Path, expected: str | None) -> None:
    """Into the archive, read back and compared."""
    target, content = archive / path.name, path.read_bytes()
    digest = sha256(content).hexdigest()
    if expected is not None and digest != expected:
        raise RetentionError(f"{path}: changed meanwhile; it stays")
    if os.path.lexists(target):
        if target.is_symlink() or sha256_of(target) != digest:
            raise RetentionError(f"{target}: another file of that name; give each party an archive of its own")
        return
    write_atomic(target, content)
    if sha256_of(target) != digest:
        raise RetentionError(f"{target}: not as it was written; the original stays, look at that disk")


def _hold(folder: Path) -> str | None:
    """The reason of a legal hold. Whatever has that name holds, also if it cannot be read."""
    path = folder / HOLD
    if not os.path.lexists(path):
        return None
    try:
        with path.open("rb") as stream:
            return stream.read(1000).decode("utf-8", "replace").strip() or "no reason given"
    except OSError:
        return "its file cannot be read"


def _years_before(moment: datetime, years: int) -> datetime:
    try:
        return moment.replace(year=moment.year - years)
    except ValueError:  # 29 February
        return moment.replace(year=moment.year - years, day=28)
