"""The log as syslog: a line an event (RFC 5424), for a file or for `collector.py` (RFC 5425).

Of two kinds: the event itself as JSON, facility 13 (log audit); or DICOM's audit message, facility 10 as PS3.15 A.6
and IHE's [ITI-20] have it. No receiver of syslog confirms that it kept a message; compare with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from fedad_components.audit.event import Event, Outcome
from fedad_components.audit.export import atna
from fedad_components.audit.export.fields import fields

COMMON_LIMIT = 8192
"""Octets that RFC 5425 (4.3.1) asks of receivers: a longer message may arrive cut."""
_SD_ID = "fedad@32473"
"""FedAD has no enterprise number of its own; 32473 is the number for examples (RFC 5612)."""
_BOM = "\ufeff"
_LONGEST_HOST = 255
_LONGEST_VALUE = 1000
_IN_MESSAGE_ONLY = {"v", "time", "event", "certificate", "checkpoint.certificate", "files", "participants", "software"}


class Message(str, Enum):
    """What a line carries."""

    JSON = "json"
    ATNA = "atna"


@dataclass(frozen=True)
class _Form:
    facility: int
    severities: dict[Outcome, int]
    message_id: Callable[[Event], str]
    content: Callable[[Event], bytes]


_FORMS = {
    Message.JSON: _Form(
        facility=13,
        severities={Outcome.SUCCESS: 6, Outcome.REFUSED: 4, Outcome.FAILED: 3},
        message_id=lambda event: event.event.value,
        content=Event.line,
    ),
    Message.ATNA: _Form(
        facility=10,
        severities={Outcome.SUCCESS: 5, Outcome.REFUSED: 4, Outcome.FAILED: 3},
        message_id=lambda event: "DICOM+RFC3881",
        content=atna.message,
    ),
}


def line(event: Event, message: Message = Message.JSON) -> bytes:
    """One message of RFC 5424 without a line's end; there is none in it, either.

    HOSTNAME is the party's name, MSGID the kind of event; the structured data hold its short fields.
    """
    form = _FORMS[message]
    priority = 8 * form.facility + form.severities[event.outcome]
    host = "".join(c if "!" <= c <= "~" else "_" for c in event.site)[:_LONGEST_HOST]
    values = [
        f'{field.name}="{_escaped(field.text[:_LONGEST_VALUE])}"'
        for field in fields(event)
        if field.name not in _IN_MESSAGE_ONLY
    ]
    head = f"<{priority}>1 {event.time} {host} fedad - {form.message_id(event)} [{' '.join([_SD_ID, *values])}] {_BOM}"
    return head.encode() + form.content(event)


def _escaped(value: str) -> str:
    """RFC 5424, 6.3.3."""
    for character in ("\\", '"', "]"):
        value = value.replace(character, f"\\{character}")
    return value


def export(events: Iterable[Event], message: Message = Message.JSON) -> Iterator[bytes]:
    """Lines for a file."""
    for event in events:
        yield line(event, message) + b"\n"
