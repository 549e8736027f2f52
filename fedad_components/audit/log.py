"""A party's own log: one writer at a time over all its threads and processes, and no event that is lost in silence."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedad_components.audit.ending import RESTORE, AuditError, End, read_end
from fedad_components.audit.event import Event, Kind, Outcome, line_hash, now
from fedad_components.audit.reading import LONGEST_LINE, file_name, log_files, torn_name, torn_number, torn_reason
from fedad_components.files import alone_in, make_private_dir, sync_folder, write_atomic

__all__ = ["AuditError", "AuditLog", "Place"]

FILE_BYTES = 64 * 2**20
_UNFINISHED = ".part"
"""Ends the name of a torn line's file until the event that names it is written."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class Place(NamedTuple):
    """Where an event will stand: the fields that its writer does not choose."""

    seq: int
    time: str
    prev: str


class AuditLog:
    """The log of ``site`` in ``folder``; any number of processes and threads may write it at once.

    Args:
        folder: made with mode 0700 if it is not there.
        site: the name in the party's certificate.
        file_bytes: a file that is as long is closed, and the next one begun.
    """

    def __init__(self, folder: str | Path, site: str, *, file_bytes: int = FILE_BYTES) -> None:
        self.folder = Path(folder)
        self.site = site
        self.file_bytes = file_bytes
        self._known: End | None = None
        """The end when this object wrote last; others may have written since."""

    def write(self, kind: Kind, outcome: Outcome = Outcome.SUCCESS, *, durable: bool = True, **fields: Any) -> Event:
        """Append an event.

        Args:
            durable: return only when the event would survive a loss of power.
            fields: those of :class:`Event` that apply.

        Raises:
            AuditError: if it was not written. Whatever the event stands for has to be refused.
        """
        return self.write_placed(kind, outcome, lambda place: fields, durable=durable)

    def write_placed(
        self, kind: Kind, outcome: Outcome, fields: Callable[[Place], dict[str, Any]], *, durable: bool = True
    ) -> Event:
        """:meth:`write` for an event that tells of its own place; nobody else writes while ``fields`` is called.

        Raises:
            AuditError: as there.
        """
        with self._alone():
            end, place = self._next(self._find_end())
            self._known, event = self._append(end, place, kind, outcome, fields(place), durable)
            return event

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The only writer of the folder, with the operating system's errors as an AuditError."""
        try:
            if self._known is None:
                make_private_dir(self.folder)
            status = os.lstat(self.folder)
            if not stat.S_ISDIR(status.st_mode):
                raise AuditError(f"{self.folder}: a link or a file, not the log's folder: {RESTORE}")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise AuditError(f"{self.folder}: others may write it: chmod 700 it")
            with alone_in(self.folder):
                yield
        except OSError as error:
            fix = (
                "make room on its disk"
                if error.errno in _FULL
                else "give the account of this process the right to write it (folder 0700, files 0600)"
                if error.errno in _FORBIDDEN
                else RESTORE
            )
            where = error.filename or self.folder
            raise AuditError(f"{where}: the compliance log cannot be written ({error.strerror}): {fix}") from None

    def _find_end(self) -> End:
        """The end of the chain, with nothing torn behind it."""
        known = self._known
        if known:
            path = self.folder / file_name(known.number)
            status = os.lstat(path)
            if status.st_ino != known.inode or not stat.S_ISREG(status.st_mode) or status.st_size < known.size:
                raise AuditError(f"{path}: replaced or cut while this process ran: {RESTORE}")
            if status.st_size == known.size and not known.closed:
                return known
        files = log_files(self.folder)
        for file in files[-2:]:
            if not stat.S_ISREG(os.lstat(file).st_mode):
                raise AuditError(f"{file}: a link or a folder, not a file of the log: {RESTORE}")
        end = read_end(files, self.site)
        if end.torn:
            self._put_aside(files[-1], end)
        return self._log_torn(end._replace(torn=b""))

    def _put_aside(self, path: Path, end: End) -> None:
        """Keep the torn bytes in a file of their own, then cut them off."""
        kept = list(self.folder.glob(f"torn-*{_UNFINISHED}"))
        if all(part.read_bytes() != end.torn for part in kept):  # else a crash came between the two steps
            names = (path.with_suffix("") if path in kept else path for path in self.folder.iterdir())
            number = 1 + max(torn_number(name) or 0 for name in names)
            write_atomic(self.folder / (torn_name(number) + _UNFINISHED), end.torn)
        with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
            file.truncate(end.size)
            os.fsync(file.fileno())

    def _log_torn(self, end: End) -> End:
        """Write the event of each torn line that has none yet; its file gets its name when that is done."""
        for part in sorted(self.folder.glob(f"torn-*{_UNFINISHED}")):
            whole = part.with_suffix("")
            end, place = self._next(end)
            reason = torn_reason(whole.name, part.read_bytes())
            end, _ = self._append(end, place, Kind.LOG_TORN, Outcome.FAILED, {"reason": reason}, durable=True)
            os.replace(part, whole)
        return end

    def _next(self, end: End) -> tuple[End, Place]:
        """The next event's place, after those that the clock or the file's length ask for."""
        time = now()
        if time < end.time:
            reason = f"the clock reads {time}, and the event before is of {end.time}"
            end = self._append_own(end, time, Kind.CLOCK_STEPPED_BACK, reason)
        if end.size >= self.file_bytes and not end.closed:
            end = self._append_own(end, time, Kind.LOG_ROTATED, f"goes on in {file_name(end.number + 1)}")
        return end, Place(end.seq + 1, time, end.hash)

    def _append_own(self, end: End, time: str, kind: Kind, reason: str) -> End:
        place = Place(end.seq + 1, time, end.hash)
        return self._append(end, place, kind, Outcome.SUCCESS, {"reason": reason}, durable=True)[0]

    def _append(
        self, end: End, place: Place, kind: Kind, outcome: Outcome, fields: dict[str, Any], durable: bool
    ) -> tuple[End, Event]:
        try:
            event = Event(**place._asdict(), site=self.site, event=kind, outcome=outcome, **fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise AuditError(f"{self.folder}: no {kind.value} can be written: {name}: {first['msg']}") from None
        line = event.line()
        if len(line) >= LONGEST_LINE:
            raise AuditError(f"{self.folder}: no {kind.value} can be written: a line of {len(line)} bytes is too long")
        number, size = (end.number + 1, 0) if end.closed else (end.number, end.size)
        inode = self._append_bytes(self.folder / file_name(number), size, line + b"\n", durable)
        closed = kind is Kind.LOG_ROTATED
        return End(number, inode, size + len(line) + 1, event.seq, line_hash(line), event.time, closed), event

    def _append_bytes(self, path: Path, size: int, content: bytes, durable: bool) -> int:
        """Append to a file of that size, wholly or not at all; its inode."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            status = os.fstat(descriptor)
            if status.st_size != size:
                raise AuditError(f"{path}: written by somebody else, without the log's lock: {RESTORE}")
            try:
                written = os.write(descriptor, content)
                while written < len(content):
                    written += os.write(descriptor, content[written:])
                if durable:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        if size == 0:
            sync_folder(path.parent)
        return status.st_ino
