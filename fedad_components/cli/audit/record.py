"""`fedad audit record`: a draft of a record that the law asks for."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedad_components.cli.audit.opening import OptionError, check_new, log_access
from fedad_components.cli.messages import complain

EPILOG = (
    "Example:  fedad audit record --gdpr-art30 workspace/fedad/prod_00/* --out art30.md\n\n"
    "Exit codes: 0 written; 1 a kit cannot be used, its live log cannot be written, or --out exists."
)


def record(
    kits: Annotated[
        list[Path], typer.Argument(metavar="KIT...", help="Startup kits of one consortium; more leave fewer blanks.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.md", help="Markdown file to write; it must not exist.")],
    gdpr_art30: Annotated[
        bool, typer.Option("--gdpr-art30", help="The record of processing activities, Art. 30 GDPR.")
    ] = False,
) -> None:
    """Draft the record of processing activities from kits and logs.

    What the system does not know is left as [to be filled in: ...]. Whether
    the record suffices is for the controllers to judge. No key is read,
    except to log that a kit's own log was read.
    """
    from fedad_components.audit.access import LIVE
    from fedad_components.audit.art30 import RecordError, draft
    from fedad_components.audit.event import Kind
    from fedad_components.audit.keys import KeysError
    from fedad_components.audit.log import AuditError
    from fedad_components.audit.reading import ReadError, log_files
    from fedad_components.files import write_atomic

    try:
        if not gdpr_art30:
            raise OptionError("which record? There is one: --gdpr-art30")
        check_new(out)
        logs = [folder for kit in kits if (folder := kit.joinpath(*LIVE)).is_dir() and log_files(folder)]
        if logs:
            log_access(logs, Kind.LOG_READ, "audit record")
        content = draft(kits, datetime.now(timezone.utc))
        write_atomic(out, content.encode("utf-8"))
    except (AuditError, KeysError, OptionError, ReadError, RecordError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(f"{out}: a draft with {content.count('[to be filled in:')} blanks")
