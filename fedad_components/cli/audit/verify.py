"""`fedad audit verify`: are these logs what the parties wrote?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedad_components.cli.messages import complain

EPILOG = (
    "Examples:  fedad audit verify server/local/fedad/audit --root-ca startup/rootCA.pem  |  "
    "fedad audit verify copies/ --root-ca rootCA.pem --json\n\n"
    "Exit codes: 0 verified; 1 something is wrong with a log, and the findings say what; 2 a path or the root "
    "certificate cannot be used."
)


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Log files, a party's folder, or a folder with the folders of several."),
    ],
) -> None:
    """Verify copies of the compliance logs, away from the system."""
    from fedad_components.audit.reading import ReadError, read

    try:
        events = sum(1 for _ in read(paths))
    except ReadError as error:
        complain(error)
        raise typer.Exit(2) from None
    print(f"{events} events")
