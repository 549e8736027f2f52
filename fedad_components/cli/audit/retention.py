"""`fedad audit retention`: archive and remove what is older than has to be kept."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedad_components.cli.messages import complain

EPILOG = (
    "Examples:\n\nfedad audit retention /opt/fedad/hospital-a\n\n"
    "fedad audit retention /opt/fedad/hospital-a --archive /archive/hospital-a --apply\n\n"
    "Exit codes: 0 done, also if there is nothing to do; 1 refused: a legal hold, a log that does not verify, or a "
    "file that cannot be read or written."
)


def retention(
    place: Annotated[
        Path, typer.Argument(metavar="KIT_OR_FOLDER", help="Startup kit of a server or site, or its log's folder.")
    ],
    years: Annotated[
        int, typer.Option(min=1, help="How long an event is kept. HIPAA, 45 CFR 164.316(b)(2): 6 years.")
    ] = 6,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for this party's old files; needed by --apply.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Archive and remove, instead of only showing what.")] = False,
) -> None:
    """Archive whole files of a log that are older than the limit, then remove them at a signed cut.

    The last file always stays. The rest of the log verifies as before; the
    removed files verify together with it. A file retention.hold in the log's
    folder, with the reason in it, stops every removal.
    """
    from fedad_components.audit.keys import KeysError
    from fedad_components.audit.log import AuditError
    from fedad_components.audit.retention import RetentionError, log_folder, plan
    from fedad_components.audit.retention import apply as apply_plan
    from fedad_components.audit.verify import VerifyError
    from fedad_components.job_reader import printable

    console = Console(markup=False, highlight=False, soft_wrap=True)
    try:
        if apply and archive is None:
            raise RetentionError("--apply needs --archive DIR: nothing is removed that is not kept elsewhere")
        planned = plan(log_folder(place), datetime.now(timezone.utc), years)
        for file in planned.files:
            console.print(f"{file.path}: events {file.first_seq} to {file.seq}, newest of {file.newest}")
        console.print(
            f"{len(planned.files)} files are older than {planned.limit[:10]} as a whole; {planned.kept} files stay"
        )
        if planned.hold is not None:
            complain(f"legal hold, nothing will be removed: {printable(planned.hold)}", "note")
        if apply and archive is not None:
            apply_plan(planned, archive)
            console.print(f"archived in {archive} and removed: {len(planned.files)} files")
        elif planned.files:
            console.print("Nothing was changed: add --archive DIR --apply.")
    except (AuditError, KeysError, RetentionError, VerifyError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
