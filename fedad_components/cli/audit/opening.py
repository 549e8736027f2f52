"""How the commands open logs: the access is logged first, and what is no event is named and left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.audit.event import Event, Kind
    from fedad_components.audit.reading import BadLine

LogPaths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", help="Log files, a party's folder, or a folder with the folders of several."),
]
RootCertificate = Annotated[
    Path | None,
    typer.Option("--root-ca", metavar="FILE", help="The consortium's root certificate: rootCA.pem of any kit."),
]

INCOMPLETE = 3
"""Exit code: done, without lines that are no events."""


class OptionError(ValueError):
    """Options that do not go together, or a file that must not be written; the message says which."""


def check_new(out: Path) -> None:
    """What is written must replace nothing.

    Raises:
        OptionError: otherwise.
    """
    if out.exists() or out.is_symlink():
        raise OptionError(f"{out}: exists; choose another name")


def check_out(out: Path, paths: Sequence[Path]) -> None:
    """What is written must replace nothing, and lie where no log is read from.

    Raises:
        OptionError: otherwise.
        ReadError: if a path holds no log.
    """
    from fedad_components.audit.reading import find_chains

    check_new(out)
    if not out.parent.is_dir():
        raise OptionError(f"{out.parent}: there is no such folder")
    if out.parent.resolve() in {chain.folder.resolve() for chain in find_chains(paths)}:
        raise OptionError(f"{out}: in the folder of a log; choose another one")


def log_access(paths: Sequence[Path], kind: Kind, command: str, reason: str | None = None) -> None:
    """Log the access where the logs are live, and say so where they are copies.

    Raises:
        ReadError: if a path holds no log.
        AuditError, KeysError: if a live log cannot be written: it must not be read, then.
    """
    from fedad_components.audit import access

    if copies := access.log_access(paths, kind, command, reason=reason):
        complain(f"reading copies is not logged: {len(copies)} of the logs", "note")


def open_logs(
    paths: Sequence[Path], kind: Kind, command: str, reason: str | None = None
) -> tuple[Iterator[Event], list[BadLine]]:
    """:func:`log_access`, and read.

    Returns:
        The events, and a list that fills with the other lines as they are read.

    Raises:
        ReadError, AuditError, KeysError: as there.
    """
    from fedad_components.audit.reading import read

    log_access(paths, kind, command, reason)
    bad: list[BadLine] = []
    return (located.event for located in read(paths, bad)), bad


def name_bad_lines(bad: Sequence[BadLine]) -> None:
    """Say how many lines were left out, and exit with INCOMPLETE if there are any."""
    from fedad_components.job_reader import printable

    if bad:
        first = bad[0]
        where, why = printable(first.path), printable(first.problem)
        complain(
            f"{len(bad)} lines are no events and were left out, first {where}:{first.line} ({why}); "
            f"`fedad audit verify` says what is wrong with the log",
            "warning",
        )
        raise typer.Exit(INCOMPLETE)
