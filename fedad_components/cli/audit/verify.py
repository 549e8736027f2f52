"""`fedad audit verify`: are these logs what the parties wrote?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedad_components.cli.audit.opening import LogPaths, RootCertificate
from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.audit.findings import Finding, Verification

EPILOG = (
    "Examples:\n\nfedad audit verify copies/ --root-ca rootCA.pem\n\n"
    "fedad audit verify copies/server copies/hospital-a --root-ca rootCA.pem --json\n\n"
    "Exit codes: 0 verified; 1 something is wrong, and the findings say where and what; 2 a path or the root "
    "certificate cannot be used."
)


def verify(
    paths: LogPaths,
    root_ca: RootCertificate = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Verify copies of the compliance logs, away from the system.

    Each log is verified line by line (hash chain, numbers, clock, signed
    checkpoints), then against the others: the checkpoints that its peers
    hold, and the updates that the server counted.

    Without --root-ca, signatures are checked against the certificates in
    the logs only. Take the copies while no job runs: a peer may otherwise
    hold a checkpoint that is newer than your copy, which looks like a log
    that was cut.
    """
    from fedad_components.audit.verify import VerifyError
    from fedad_components.audit.verify import verify as verify_logs

    try:
        result = verify_logs(paths, root_ca)
    except VerifyError as error:
        complain(error)
        raise typer.Exit(2) from None
    if as_json:
        print(result.model_dump_json(indent=2))
    else:
        _print(result)
    if not result.verified:
        raise typer.Exit(1)


def _print(result: Verification) -> None:
    console = Console(highlight=False, markup=False)
    if result.findings:
        console.print(_table("Findings", result.findings))
    if result.warnings:
        console.print(_table("Warnings", result.warnings))
    of = ", ".join(map(repr, result.sites)) or "nobody"  # repr: a name may hold control characters
    console.print(
        f"{result.events} events in {len(result.files)} files, {result.checkpoints} signed checkpoints; logs of: {of}",
        soft_wrap=True,
    )
    if not result.root_checked:
        console.print(
            "Signatures were checked against the certificates in the logs only, not against the consortium's root: "
            "name it with --root-ca.",
            soft_wrap=True,
        )
    if not result.verified:
        answer = Text("Not verified.", "red")
    elif result.warnings:
        answer = Text("Verified, with warnings: what they name, the logs cannot prove.", "yellow")
    else:
        answer = Text("Verified: nothing is wrong.", "green")
    console.print(answer)


def _table(title: str, rows: list[Finding]) -> Table:
    from fedad_components.audit.export.fields import one_line

    table = Table(
        Column("where", overflow="fold"),
        Column("what", no_wrap=True),
        Column("detail", overflow="fold"),
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in rows:
        where = f"{row.file}:{row.line}" if row.line else row.file
        table.add_row(one_line(where), row.kind.value, one_line(row.detail))  # folders have names of strangers, too
    return table
