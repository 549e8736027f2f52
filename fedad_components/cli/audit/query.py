"""`fedad audit query`: find events in the compliance logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from fedad_components.audit.event import Kind, Outcome
from fedad_components.cli.audit.opening import LogPaths, name_bad_lines, open_logs
from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.audit.event import Event

EPILOG = (
    "Examples:\n\nfedad audit query copies/ --outcome refused --since 2030-01-01T00:00:00Z\n\n"
    "fedad audit query hospital-a/local/fedad/audit --event result_sent --job 0c9e6a5e --json\n\n"
    "Exit codes: 0 done, also if nothing was found; 1 a path or a time cannot be used, or a live log cannot be "
    "written; 3 done, but some lines are no events."
)


def query(
    paths: LogPaths,
    site: Annotated[
        list[str] | None, typer.Option(help="Party whose log it is. May be repeated, as the others.")
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="Name of the person or account that acted.")] = None,
    job: Annotated[list[str] | None, typer.Option(help="Id or name of a job.")] = None,
    event: Annotated[
        list[Kind] | None, typer.Option(metavar="KIND", help="What happened: job_submitted, result_sent ...")
    ] = None,
    outcome: Annotated[list[Outcome] | None, typer.Option(help="How it ended.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From this time on (RFC 3339): 2030-01-31T08:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before this time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events' lines as they stand in the logs.")] = False,
) -> None:
    """Find events by site, user, job, kind, outcome and time.

    The events of all the logs, by time. Nothing is verified here. Reading a
    party's live log is an event of that log; reading a copy leaves no trace.
    """
    from fedad_components.audit.keys import KeysError
    from fedad_components.audit.log import AuditError
    from fedad_components.audit.query import Filter, QueryError, as_time, select
    from fedad_components.audit.reading import ReadError

    try:
        wanted = Filter(
            sites=frozenset(site or ()),
            users=frozenset(user or ()),
            jobs=frozenset(job or ()),
            events=frozenset(event or ()),
            outcomes=frozenset(outcome or ()),
            since=as_time(since) if since is not None else None,
            until=as_time(until) if until is not None else None,
        )
        events, bad = open_logs(paths, Kind.LOG_READ, "audit query")
        found = sorted(select(events, wanted), key=lambda one: one.time)
    except (AuditError, KeysError, QueryError, ReadError) as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        stream = typer.get_binary_stream("stdout")
        stream.writelines(one.line() + b"\n" for one in found)
    else:
        _print(found)
    name_bad_lines(bad)


def _print(found: list[Event]) -> None:
    from fedad_components.job_reader import printable

    table = Table(
        Column("time (UTC)", no_wrap=True),
        *(Column(name, overflow="fold") for name in ("site", "event", "outcome", "who", "what")),
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for one in found:
        time = one.time.replace("T", " ")[: len("2030-01-31 08:00:00")]
        who = one.actor.name if one.actor else ""
        cells = (one.site, one.event.value, one.outcome.value, who, _what(one))
        table.add_row(time, *(printable(cell) for cell in cells))
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print(f"{len(found)} events")


def _what(event: Event) -> str:
    """The event's particulars, as far as a table has room."""
    parts = [
        event.command,
        event.job_name or event.job_id,
        f"round {event.round}" if event.round is not None else None,
        f"data set {event.data_set}" if event.data_set else None,
        f"with {event.peer}" if event.peer else None,
        f"{event.payload.tensors} tensors, {event.payload.bytes:,} bytes" if event.payload else None,
        event.reason,
    ]
    return "; ".join(part for part in parts if part)
