"""`fedad site`: what a site's reviewer does about the jobs that wait for an approval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.approval.store import Approvals, Entry

app = typer.Typer(no_args_is_help=True, help="Review, approve and reject the jobs that wait at a site.")

_console = Console(highlight=False, markup=False)
_SHOWN = 16
"""Characters of a digest in a table; 12 are enough to name it."""

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The site's startup kit.")]
Digest = Annotated[
    str, typer.Argument(metavar="DIGEST", help="The digest that `review` showed, or its first 12 characters or more.")
]
JobOrDigest = Annotated[
    str,
    typer.Argument(metavar="DIGEST", help="The digest, its first 12 characters or more, or FLARE's job id."),
]
By = Annotated[str, typer.Option(help="The reviewer's name, for the record. Default: the account's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(
    epilog="Examples:\n\nfedad site review /opt/fedad/hospital-a\n\n"
    "fedad site review /opt/fedad/hospital-a 3f9a61c20b7e\n\n"
    "Exit codes: 0 shown; 1 KIT or its approvals cannot be read, or there is no such job."
)
def review(
    kit: Kit,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB|DIGEST]", help="One job: its id, its digest, or the digest's first characters."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also list the jobs that are decided.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the jobs that wait for an approval, or show one: its files, who sent it, what it would let out.

    Nothing of the job is executed. The files as the site received them are in
    the folder that is named; look into it with any editor, change nothing.
    """
    from fedad_components.cli.egress import page_of, print_page
    from fedad_components.job_reader import printable

    with _errors():
        approvals = _approvals(kit)
        if job is None:
            from fedad_components.approval.store import State

            entries = [entry for entry in approvals.entries() if every or entry.state is State.PENDING]
            if as_json:
                print(json.dumps([_as_json(entry) for entry in entries], indent=2))
            else:
                _list(entries, "No job waits." if not every else "No job has come yet.")
            return
        entry = approvals.find(job)
        content = entry.job()
        page = replace(page_of(entry.folder, kit), job=entry.request.job_name)
    if as_json:
        covered = {"files": content.file_digests, "meta": content.lasting_meta}
        print(json.dumps({**_as_json(entry), **covered, "page": page.to_json()}, indent=2))
        return
    _list([entry])
    for what, value in (("digest", entry.digest), ("folder", entry.folder), ("last job id", entry.request.last_job_id)):
        _console.print(printable(f"{what} {value}"), soft_wrap=True)
    for decision in entry.decisions:
        note = f": {decision.note}" if decision.note else ""
        text = f"{decision.time} {decision.state} by {decision.by} (account {decision.account}){note}"
        _console.print(printable(text), soft_wrap=True)
    files = Table("file", "SHA-256", title="The digest covers these files")
    for path, digest in content.file_digests.items():
        files.add_row(path, digest[:_SHOWN] + "…")
    meta = Table("meta.json", Column("value", overflow="fold"), title="and this of the job's meta")
    for key, value in content.lasting_meta.items():
        meta.add_row(printable(key), printable(json.dumps(value)))
    _console.print(files, meta)
    print_page(page, kit)


@app.command(
    epilog='Example:  fedad site approve /opt/fedad/hospital-a 3f9a61c20b7e --by "A. Reviewer" --note "protocol 12"\n\n'
    "Exit codes: 0 approved; 1 it is not, and the message says why."
)
def approve(
    kit: Kit,
    digest: Digest,
    by: By = "",
    note: Annotated[str, typer.Option(help="Your words; they stay at this site. No patient's name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Let exactly this job run at this site, as often as it is submitted, until it is rejected."""
    _decide(kit, digest, "approved", by, note, as_json)


@app.command(
    epilog='Example:  fedad site reject /opt/fedad/hospital-a 3f9a61c20b7e --reason "no ethics vote for this data"\n\n'
    "Exit codes: 0 rejected; 1 it is not, and the message says why."
)
def reject(
    kit: Kit,
    digest: JobOrDigest,
    reason: Annotated[
        str, typer.Option(help="Your words, at most 500 characters; they stay at this site. No patient's name.")
    ],
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Refuse this job, or withdraw its approval; a job that runs already is not stopped."""
    _decide(kit, digest, "rejected", by, reason, as_json)


def _decide(kit: Path, what: str, state: Literal["approved", "rejected"], by: str, note: str, as_json: bool) -> None:
    with _errors():
        approvals = _approvals(kit)
        entry = approvals.find(what, digest_only=state == "approved")
        approvals.decide(entry, state, by=by, note=note)
        entry = approvals.find(entry.digest)
    if as_json:
        print(json.dumps(_as_json(entry), indent=2))
        return
    again = "; now have the same job submitted again" if state == "approved" else ""
    _console.print(f"{entry.digest}: {state} by {entry.decisions[-1].by}{again}", soft_wrap=True)


@contextmanager
def _errors() -> Iterator[None]:
    """Say what went wrong, and exit with 1."""
    from fedad_components.approval.store import ApprovalError
    from fedad_components.audit.log import AuditError
    from fedad_components.flare.provision import KitError
    from fedad_components.flare.site import SiteError
    from fedad_components.imaging.catalogue import CatalogueError

    try:
        yield
    except (ApprovalError, AuditError, CatalogueError, KitError, SiteError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None


def _approvals(kit: Path) -> Approvals:
    from fedad_components.flare.approval import approvals_of
    from fedad_components.flare.provision import KitError, kit_kind

    if kit_kind(kit) != "client":
        raise KitError(f"{kit}: not a site's kit; jobs are approved at the sites")
    return approvals_of(kit)


def _list(entries: list[Entry], none: str = "") -> None:
    from fedad_components.job_reader import printable

    if not entries:
        _console.print(none)
        return
    table = Table(Column("digest", no_wrap=True), "state", "job", "submitter", "first came", "times", box=SIMPLE_HEAD)
    for entry in entries:
        request = entry.request
        table.add_row(
            entry.digest[:_SHOWN],
            entry.state.value,
            printable(request.job_name),
            printable(request.submitter),
            f"{request.first_time[:16].replace('T', ' ')} UTC",
            str(request.times),
        )
    _console.print(table)


def _as_json(entry: Entry) -> dict[str, Any]:
    return {
        **entry.request.model_dump(exclude={"version"}),
        "state": entry.state.value,
        "decisions": [decision.model_dump(exclude={"version", "digest"}) for decision in entry.decisions],
        "folder": str(entry.folder),
    }
