"""Logs are found and read: files in the order of their numbers, a line at a time. Nothing is verified here.

A party's log is one folder with ``audit-000001.jsonl``, ``audit-000002.jsonl`` and so on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedad_components.audit.event import Event, EventError, line_hash, parse

LONGEST_LINE = 4 * 2**20
"""Bytes; no event is as long, and a line without an end must not fill the memory."""
_BLOCK = 2**16
_FILE_NAME = re.compile(r"audit-([0-9]{6,})\.jsonl")
_TORN_NAME = re.compile(r"torn-([0-9]+)\.bin")


class ReadError(ValueError):
    """Paths without a log, an unreadable file, or a line that is no event; the message names it and the fix."""


class Chain(NamedTuple):
    """The files of one party's log, in order."""

    folder: Path
    files: list[Path]


class Line(NamedTuple):
    """One line as it stands in the file, without its newline; line numbers start at 1."""

    path: Path
    line: int
    content: bytes
    whole: bool
    """False if no newline ends it, or it is longer than LONGEST_LINE and only its beginning is here."""


class Located(NamedTuple):
    """An event and where it stands."""

    path: Path
    line: int
    event: Event
    hash: str
    """SHA-256 of the line, which the next event names."""


class BadLine(NamedTuple):
    """A line that is no event, and why."""

    path: Path
    line: int
    problem: str


def file_name(number: int) -> str:
    """Of a log's file; the first is 1."""
    return f"audit-{number:06d}.jsonl"


def file_number(path: Path) -> int | None:
    """The number in a log file's name; None if it is no such name."""
    return _number(_FILE_NAME, path)


def torn_name(number: int) -> str:
    """Of the file beside a log that keeps the bytes of a torn line."""
    return f"torn-{number}.bin"


def torn_number(path: Path) -> int | None:
    """The number in the name of a torn line's file; None if it is no such name."""
    return _number(_TORN_NAME, path)


def torn_reason(name: str, content: bytes) -> str:
    """What a ``log_torn`` event says of the file that keeps the torn bytes."""
    return f"{name}: {len(content)} bytes, SHA-256 {line_hash(content)}"


def log_files(folder: Path) -> list[Path]:
    """A log's files in the order of their numbers."""
    return sorted((path for path in folder.iterdir() if file_number(path) is not None), key=_order)


def _number(pattern: re.Pattern[str], path: Path) -> int | None:
    match = pattern.fullmatch(path.name)
    return int(match[1]) if match else None


def find_chains(paths: Iterable[str | Path]) -> list[Chain]:
    """The logs among ``paths``: each a log's file, a party's folder, or a folder with parties' folders at any depth.

    Links below a folder are not followed.

    Raises:
        ReadError: if a path does not exist, may not be read, or holds no log.
    """
    found: dict[Path, set[Path]] = {}
    for path in map(Path, paths):
        files = list(_log_files(path))
        if not files:
            raise ReadError(f"{path}: no log there; expected {file_name(1)}, or a folder that holds such files")
        for file in files:
            found.setdefault(file.parent, set()).add(file)
    if not found:
        raise ReadError("no path was given; name a log's file or the folder of one or more logs")
    return [Chain(folder, sorted(found[folder], key=_order)) for folder in sorted(found)]


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files of :func:`find_chains`, one log after the other.

    Raises:
        ReadError: as there.
    """
    return [file for chain in find_chains(paths) for file in chain.files]


def _order(file: Path) -> tuple[int, str]:
    return file_number(file) or 0, file.name


def _log_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path  # whatever its name: a copy may have another one
        return
    if not path.is_dir():
        raise ReadError(f"{path}: there is no such file or folder")

    def refuse(error: OSError) -> None:
        raise ReadError(f"{error.filename}: {error.strerror}; run as an account that may read it") from None

    for folder, _, names in os.walk(path, onerror=refuse):
        for file in (Path(folder, name) for name in names):
            if file_number(file) is None:
                continue
            if not file.is_file():  # a pipe would never end
                raise ReadError(f"{file}: no plain file; copy the log anew")
            yield file


def read_lines(file: Path) -> Iterator[Line]:
    """The file's lines, whatever they are, with memory for one.

    Raises:
        ReadError: if the file cannot be read.
    """
    try:
        with file.open("rb") as stream:
            number = 0
            while content := stream.readline(LONGEST_LINE):
                number += 1
                whole = content.endswith(b"\n")
                yield Line(file, number, content[:-1] if whole else content, whole)
                while not whole and content and not content.endswith(b"\n"):
                    content = stream.readline(LONGEST_LINE)
    except OSError as error:
        raise ReadError(f"{file}: {error.strerror}; run as an account that may read it") from None


def lines_backwards(file: Path) -> Iterator[bytes]:
    """The file's lines from the end, first what follows the last newline: nothing, unless the last line is torn.

    Raises:
        OSError: if the file is a link or cannot be read.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        start = stream.seek(0, os.SEEK_END)
        rest = b""
        while start:
            length = min(_BLOCK, start)
            start -= length
            stream.seek(start)
            rest, *lines = (stream.read(length) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest


def read(paths: Sequence[str | Path], bad: list[BadLine] | None = None) -> Iterator[Located]:
    """Every event, log after log, in the order of the files.

    Args:
        bad: where lines that are no events are put; without it the first of them raises.

    Raises:
        ReadError: as :func:`find_files`; and for a line that is no event, naming file and line.
    """
    for file in find_files(paths):
        for line in read_lines(file):
            try:
                if not line.whole:
                    raise EventError("torn: no newline ends it")
                event, digest = parse(line.content)
            except EventError as error:
                if bad is None:
                    raise ReadError(
                        f"{file}:{line.line}: not an event ({error}); `fedad audit verify` says what is wrong"
                    ) from None
                bad.append(BadLine(file, line.line, str(error)))
            else:
                yield Located(file, line.line, event, digest)
