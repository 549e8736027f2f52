"""What each event means in the vocabulary of health-care audit: codes, action, outcome, who took part, what was used.

FHIR's AuditEvent and DICOM's audit message share this vocabulary; `fhir.py` and `atna.py` only spell it. Codes of
DICOM (PS3.16, context groups 400 to 403) stand where their definition fits the event. DICOM's rules for patient data
ask for a patient and a study in Export and Import (PS3.15 A.5.3.5, A.5.3.6); this log knows neither, so these
messages name the tensors that travelled instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from fedad_components.audit.event import Event, Kind, Outcome
from fedad_components.audit.export.fields import Field, fields, one_line


class Code(NamedTuple):
    """A coded value; ``system`` is DICOM's designator of the scheme."""

    value: str
    system: str
    text: str


DCM = "DCM"
LOCAL = "99FEDAD"
"""Our own codes: DICOM keeps designators that begin with 99 for private schemes."""
LOCAL_OID = "2.25.41192769274791192394594211169798362524"
"""The same scheme as an OID: made from a UUID (ITU-T X.667), which needs no registration."""
RFC_3881 = "RFC-3881"
APPLICATION_SERVER = Code("4", RFC_3881, "Application Server")

_ACTIVITY = Code("110100", DCM, "Application Activity")
_LOG_USED = Code("110101", DCM, "Audit Log Used")
_EXPORT = Code("110106", DCM, "Export")
_IMPORT = Code("110107", DCM, "Import")
_ALERT = Code("110113", DCM, "Security Alert")
_AUTHENTICATION = Code("110114", DCM, "User Authentication")
_START = Code("110120", DCM, "Application Start")
_STOP = Code("110121", DCM, "Application Stop")
_LOGIN = Code("110122", DCM, "Login")
_NODE_AUTHENTICATION = Code("110126", DCM, "Node Authentication")
_SECURITY_CONFIGURATION = Code("110129", DCM, "Security Configuration")
_AUTHORIZATION = Code("110144", DCM, "Authorization Decision")
_APPLICATION = Code("110150", DCM, "Application")
_LAUNCHER = Code("110151", DCM, "Application Launcher")
_DESTINATION = Code("110152", DCM, "Destination Role ID")
_SOURCE = Code("110153", DCM, "Source Role ID")


class Coding(NamedTuple):
    """How a kind of event is coded."""

    action: str
    """C create, R read, U update, D delete, E execute."""
    event: Code | None = None
    """None: no code of DICOM fits, and the event's own word is the code."""
    subtype: Code | None = None


CODINGS = {
    Kind.SYSTEM_STARTED: Coding("E", _ACTIVITY, _START),
    Kind.SYSTEM_STOPPED: Coding("E", _ACTIVITY, _STOP),
    Kind.JOB_PROCESS_STARTED: Coding("E", _ACTIVITY, _START),
    Kind.JOB_PROCESS_STOPPED: Coding("E", _ACTIVITY, _STOP),
    Kind.SIGNED_IN: Coding("E", _AUTHENTICATION, _LOGIN),
    Kind.CONNECTION_REFUSED: Coding("E", _ALERT, _NODE_AUTHENTICATION),
    Kind.COMMAND: Coding("E"),
    Kind.JOB_SUBMITTED: Coding("C"),
    Kind.JOB_APPROVAL: Coding("E", None, _AUTHORIZATION),
    Kind.JOB_DEPLOYED: Coding("E"),
    Kind.JOB_ENDED: Coding("E"),
    Kind.DATA_SET_OPENED: Coding("R"),
    Kind.TASK_SENT: Coding("R", _EXPORT),
    Kind.TASK_RECEIVED: Coding("C", _IMPORT),
    Kind.RESULT_SENT: Coding("R", _EXPORT),
    Kind.UPDATE_RECEIVED: Coding("C", _IMPORT),
    Kind.AGGREGATED: Coding("C"),
    Kind.MODEL_SAVED: Coding("C"),
    Kind.MODEL_RESUMED: Coding("R"),
    Kind.LEDGER_CHARGED: Coding("U"),
    Kind.POLICY_CHANGED: Coding("E", _ALERT, _SECURITY_CONFIGURATION),
    Kind.CERTIFICATE_CHANGED: Coding("E", _ALERT, _SECURITY_CONFIGURATION),
    Kind.CLOCK_STEPPED_BACK: Coding("E", _ALERT),
    Kind.LOG_ROTATED: Coding("U"),
    Kind.LOG_TORN: Coding("E", _ALERT),
    Kind.LOG_READ: Coding("R", _LOG_USED),
    Kind.LOG_EXPORTED: Coding("R", _LOG_USED),
    Kind.LOG_CUT: Coding("D"),
    Kind.CHECKPOINT: Coding("C"),
    Kind.PEER_CHECKPOINT: Coding("C"),
}
OUTCOMES = {Outcome.SUCCESS: "0", Outcome.REFUSED: "4", Outcome.FAILED: "8"}
"""Success, minor failure, serious failure."""


@dataclass(frozen=True)
class Participant:
    """A person or party that took part."""

    name: str
    roles: tuple[Code, ...]
    requestor: bool
    org: str | None = None
    remote: bool = False
    """The other end of a connection."""


@dataclass(frozen=True)
class Thing:
    """What was used: always a system object, never a person."""

    kind: Code
    id: str
    name: str
    role: Code | None
    details: tuple[Field, ...]
    record: bytes | None = None
    """Of the log: the event's line, whole."""


_JOB = Code("20", RFC_3881, "Job")
_JOB_STREAM = Code("21", RFC_3881, "Job Stream")
_REPOSITORY = Code("17", RFC_3881, "Data Repository")
_SECURITY_RESOURCE = Code("13", RFC_3881, "Security Resource")
_URI = Code("12", RFC_3881, "URI")


class _ThingFields(NamedTuple):
    kind: str
    ids: tuple[str, ...]
    """The first of these fields that is present is its id; without one, the event does not name such a thing."""
    name: str
    role: Code | None
    details: tuple[str, ...]
    """Fields, with those below them."""


_THINGS = (
    _ThingFields("job", ("job_id",), "job_name", _JOB, ("job_digest", "files")),
    _ThingFields(
        "experiment",
        ("experiment",),
        "experiment",
        _JOB_STREAM,
        ("round", "task_id", "participants", "lambda_t", "instability"),
    ),
    _ThingFields("data set", ("data_set", "privacy.data_set"), "data_set", _REPOSITORY, ("images", "privacy")),
    _ThingFields("tensors", ("payload.sha256",), "payload.sha256", None, ("payload", "counts")),
    _ThingFields("policy", ("policy.digest",), "policy.digest", _SECURITY_RESOURCE, ("policy",)),
)
_SAID_ELSEWHERE = (
    *("time", "site", "event", "outcome", "actor", "peer", "reason"),
    *("certificate", "checkpoint.certificate"),  # long, and in the line
)
"""Fields that are no detail of the log's line."""


def codes(event: Event) -> list[Code]:
    """The code of the event, then those of its type; the log's own word is always among them."""
    coding = CODINGS[event.event]
    own = Code(event.event.value, LOCAL, event.event.value.replace("_", " "))
    dicom = [code for code in (coding.event, coding.subtype) if code]
    return [*dicom, own] if coding.event else [own, *dicom]


def participants(event: Event) -> Iterator[Participant]:
    """Who acted, the party whose log it is, and the other end. One of the first two is the requestor."""
    code = CODINGS[event.event].event
    here, there = _APPLICATION, None
    if code == _EXPORT:
        here, there = _SOURCE, _DESTINATION
    elif code == _IMPORT:
        here, there = _DESTINATION, _SOURCE
    if actor := event.actor:
        role = one_line(actor.role or "")
        word = "_".join(role.split())  # a code has no spaces at its ends, and none in a row
        roles = [_LAUNCHER] if code == _ACTIVITY else []
        roles += [Code(word, LOCAL, role)] if word else []
        yield Participant(
            one_line(actor.name), tuple(roles), requestor=True, org=one_line(actor.org) if actor.org else None
        )
    yield Participant(one_line(event.site), (here,), requestor=event.actor is None)
    if event.peer:
        yield Participant(one_line(event.peer), (there,) if there else (), requestor=False, remote=True)


def things(event: Event) -> Iterator[Thing]:
    """What the event names, and last the log itself: the event's line, with the details that belong to nothing else."""
    present = {field.name: field for field in fields(event)}
    rest = {name: field for name, field in present.items() if not _within(name, _SAID_ELSEWHERE)}
    for thing in _THINGS:
        found = next((present[name] for name in thing.ids if name in present), None)
        if found:
            details = tuple(field for name, field in present.items() if _within(name, thing.details))
            for name in (*thing.ids, thing.name, *(detail.name for detail in details)):
                rest.pop(name, None)
            name = present.get(thing.name, found).text
            yield Thing(Code(thing.kind, LOCAL, thing.kind), found.text, name, thing.role, details)
    log = f"https://fedad.invalid/log/{quote(one_line(event.site), safe='')}"
    yield Thing(_URI, log, "Security Audit Log", _SECURITY_RESOURCE, tuple(rest.values()), event.line())


def _within(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)
