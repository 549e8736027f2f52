"""`fedad audit export`: the compliance logs for a hospital's own audit systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedad_components.cli.audit.opening import LogPaths, OptionError, check_out, name_bad_lines, open_logs
from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.audit.event import Event
    from fedad_components.audit.export.syslog import Message

EPILOG = (
    "Examples:\n\nfedad audit export hospital-a/local/fedad/audit --format fhir --out audit.json\n\n"
    "fedad audit export copies/ --format syslog --collector logs.hospital.example:6514 --ca ca.pem\n\n"
    "Exit codes: 0 exported; 1 a path, an option or the collector cannot be used, or a live log cannot be written; "
    "3 exported, but some lines are no events and are not in it."
)


class Format(str, Enum):
    """What to write."""

    FHIR = "fhir"
    ATNA = "atna"
    SYSLOG = "syslog"
    CSV = "csv"


class Content(str, Enum):
    """What a line of syslog carries."""

    JSON = "json"
    ATNA = "atna"


def export(
    paths: LogPaths,
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="fhir: R4 AuditEvents; atna: DICOM PS3.15 audit messages; syslog: RFC 5424; csv: a table.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; it must not exist.")] = None,
    collector: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="syslog: send over TLS to this collector (RFC 5425).")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM of the authority that signed the collector's certificate.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM of our certificate, if the collector wants one.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM of that certificate's key.")] = None,
    message: Annotated[
        Content, typer.Option(help="syslog: carry the log's own line, or the DICOM audit message.")
    ] = Content.JSON,
) -> None:
    """Export events for a FHIR server, an ATNA repository, a log collector or a spreadsheet.

    An export is a view: only the logs themselves can be verified. Exporting
    a party's live log is an event of that log; on a copy it leaves no trace.
    """
    from fedad_components.audit.access import log_access
    from fedad_components.audit.event import Kind, Outcome
    from fedad_components.audit.export.collector import Collector, CollectorError
    from fedad_components.audit.export.syslog import Message
    from fedad_components.audit.keys import KeysError
    from fedad_components.audit.log import AuditError
    from fedad_components.audit.reading import ReadError
    from fedad_components.files import write_atomic

    refused = (AuditError, CollectorError, KeysError, OptionError, ReadError, OSError)
    try:
        _check(format_, out, collector, {"--ca": ca, "--certificate": certificate, "--key": key})
        receiver = Collector.at(collector, ca, certificate, key) if collector and ca else None
        if out:
            check_out(out, paths)
        events, bad = open_logs(paths, Kind.LOG_EXPORTED, "audit export", f"as {format_.value}")
    except refused as error:
        complain(error)
        raise typer.Exit(1) from None
    counted = _Counted(events)
    try:
        if receiver:
            receiver.send(_lines(counted, Message(message.value)))
        elif out:
            write_atomic(out, _chunks(format_, counted, Message(message.value)))
    except refused as error:
        complain(error)
        with suppress(*refused):  # the log says already that it was exported
            log_access(paths, Kind.LOG_EXPORTED, "audit export", Outcome.FAILED, "the export did not finish")
        raise typer.Exit(1) from None
    Console(markup=False, highlight=False).print(f"{counted.n} events to {collector or out}", soft_wrap=True)
    name_bad_lines(bad)


class _Counted:
    """Events, and how many went by."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = events
        self.n = 0

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.n += 1
            yield event


def _check(format_: Format, out: Path | None, collector: str | None, tls: dict[str, Path | None]) -> None:
    if (out is None) == (collector is None):
        raise OptionError("give either --out FILE or --collector HOST:PORT")
    if collector and format_ is not Format.SYSLOG:
        raise OptionError(f"--collector takes --format syslog, not {format_.value}")
    if collector and not tls["--ca"]:
        raise OptionError("--collector needs --ca FILE: the authority that signed the collector's certificate")
    if not collector and (idle := [name for name, value in tls.items() if value]):
        raise OptionError(f"{', '.join(idle)}: only with --collector")


def _chunks(format_: Format, events: Iterable[Event], message: Message) -> Iterator[bytes]:
    from fedad_components.audit.export import atna, fhir, syslog, table

    if format_ is Format.SYSLOG:
        return syslog.export(events, message)
    return {Format.FHIR: fhir, Format.ATNA: atna, Format.CSV: table}[format_].export(events)


def _lines(events: Iterable[Event], message: Message) -> Iterator[bytes]:
    """Lines for a collector; those that it may cut are counted, and said at the end."""
    from fedad_components.audit.export.syslog import COMMON_LIMIT, line

    long = 0
    for event in events:
        content = line(event, message)
        long += len(content) > COMMON_LIMIT
        yield content
    if long:
        complain(
            f"{long} lines are longer than {COMMON_LIMIT} octets, as far as every collector should take them "
            f"(RFC 5425, 4.3.1): compare what it keeps",
            "note",
        )
