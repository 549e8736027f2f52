"""`fedad audit report`: the compliance logs as one page to read and print."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedad_components.cli.audit.opening import LogPaths, OptionError, RootCertificate, check_out, log_access
from fedad_components.cli.messages import complain

EPILOG = (
    "Examples:\n\nfedad audit report copies/ --root-ca rootCA.pem --out report.html\n\n"
    "fedad audit report /opt/fedad/hospital-a/local/fedad/audit --out report.html\n\n"
    "Exit codes: 0 written, and the logs are verified; 1 written, and the report says what is wrong; 2 a path, the "
    "root certificate or --out cannot be used, or a live log cannot be written."
)


def report(
    paths: LogPaths,
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="File to write; it must not exist.")],
    root_ca: RootCertificate = None,
) -> None:
    """Write a page for a person: what ran, what left each site, who was refused, and whether the logs hold.

    One file that needs no other and no network, made to be printed on A4.
    Reading a party's live log is an event of that log; reading a copy leaves
    no trace.
    """
    from fedad_components.audit.event import Kind
    from fedad_components.audit.keys import KeysError
    from fedad_components.audit.log import AuditError
    from fedad_components.audit.reading import ReadError
    from fedad_components.audit.report import make_report, render
    from fedad_components.audit.verify import VerifyError
    from fedad_components.files import write_atomic

    try:
        check_out(out, paths)
        log_access(paths, Kind.LOG_EXPORTED, "audit report")
        made = make_report(paths, root_ca, datetime.now(timezone.utc))
        write_atomic(out, render(made).encode("utf-8"))
    except (AuditError, KeysError, OptionError, ReadError, VerifyError, OSError) as error:
        complain(error)
        raise typer.Exit(2) from None
    answer = "verified" if made.verification.verified else f"NOT verified: {len(made.verification.findings)} findings"
    Console(markup=False, highlight=False).print(f"{out}: {answer}", soft_wrap=True)
    if not made.verification.verified:
        raise typer.Exit(1)
