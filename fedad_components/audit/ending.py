"""Where a log ends: its last whole event, and what a crash left behind it. Reads the last lines only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json

from fedad_components.audit.event import FIRST_PREV, Event, EventError, Kind, line_hash, parse
from fedad_components.audit.reading import LONGEST_LINE, file_number, lines_backwards

RESTORE = (
    "nothing that the log would have to show may happen until then. Put the newest copy of the log back, or move the "
    "folder aside so that a new log begins, and tell the auditor"
)


class AuditError(RuntimeError):
    """The log cannot be written; the message names file and fix. What the event stood for must not happen."""


class End(NamedTuple):
    """The end of a chain."""

    number: int
    """Of the last file; 0 where there is none yet."""
    inode: int
    size: int
    """Bytes of its whole lines."""
    seq: int
    """Of the last event, which the file before holds if the last file is empty; -1 before the first."""
    hash: str
    time: str
    closed: bool
    """The last event is the file's rotation: the next one opens another file."""
    torn: bytes = b""
    """What follows the whole lines."""


NOTHING = End(number=0, inode=0, size=0, seq=-1, hash=FIRST_PREV, time="", closed=True)


def read_end(files: Sequence[Path], site: str) -> End:
    """The end of the log of ``site`` in these files, in order.

    The last event has to name the line before it. Lines after it that are no JSON are what a crash tore.

    Raises:
        AuditError: if a file is missing, or the last lines are not those of this log.
        OSError: if a file cannot be read.
    """
    if not files:
        return NOTHING
    for file, following in pairwise(files):
        if file_number(following) != (file_number(file) or 0) + 1:
            raise AuditError(f"{following}: the file before it is missing: {RESTORE}")
    path, number = files[-1], file_number(files[-1]) or 0
    status = os.lstat(path)
    lines = lines_backwards(path)
    torn = next(lines)
    for line in lines:
        if _is_json(line):
            event, digest = _event(path, line, site)
            before = next(lines, None)
            if before is None and files[:-1]:
                before = _last_line(files[-2])
            expected = line_hash(before) if before is not None else event.prev if event.seq else FIRST_PREV
            if event.prev != expected:
                raise AuditError(f"{path}: its last line does not follow from the one before: {RESTORE}")
            closed, size = event.event is Kind.LOG_ROTATED, status.st_size - len(torn)
            return End(number, status.st_ino, size, event.seq, digest, event.time, closed, torn)
        torn = line + b"\n" + torn
        if len(torn) > LONGEST_LINE:
            raise AuditError(f"{path}: its last {len(torn)} bytes are no events: {RESTORE}")
    if not files[:-1]:
        return NOTHING._replace(number=number, inode=status.st_ino, closed=False, torn=torn)
    event, digest = _event(files[-2], _last_line(files[-2]), site)
    if event.event is not Kind.LOG_ROTATED:
        raise AuditError(f"{files[-2]}: does not end in its rotation, and {path.name} follows: {RESTORE}")
    return End(number, status.st_ino, 0, event.seq, digest, event.time, False, torn)


def _is_json(line: bytes) -> bool:
    try:
        from_json(line)
    except ValueError:
        return False
    return True


def _event(path: Path, line: bytes, site: str) -> tuple[Event, str]:
    try:
        event, digest = parse(line)
    except EventError as error:
        raise AuditError(f"{path}: its last line is no event ({error}): {RESTORE}") from None
    if event.site != site:
        raise AuditError(f"{path}: the log of another party, {event.site!r}, not of {site!r}: give each its own folder")
    return event, digest


def _last_line(file: Path) -> bytes:
    lines = lines_backwards(file)
    next(lines)
    return next(lines, b"")
