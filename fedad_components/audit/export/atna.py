"""The log as DICOM audit messages (PS3.15 A.5), which IHE ATNA's Record Audit Event [ITI-20] carries.

The XML is built as a tree, and text that does not print is escaped before: nothing in an event can add or end an
element. Details are base64, as PS3.15 has it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element, SubElement, tostring

from fedad_components.audit.event import Event
from fedad_components.audit.export.fields import one_line
from fedad_components.audit.export.meaning import (
    APPLICATION_SERVER,
    CODINGS,
    OUTCOMES,
    Code,
    Participant,
    Thing,
    codes,
    participants,
    things,
)

_MACHINE_NAME = "1"
_SYSTEM_OBJECT = "2"


def export(events: Iterable[Event]) -> Iterator[bytes]:
    """One document; PS3.15 defines a message and no file of many, so the root ``AuditMessages`` is ours."""
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<AuditMessages>\n'
    for event in events:
        yield message(event) + b"\n"
    yield b"</AuditMessages>\n"


def message(event: Event) -> bytes:
    """One AuditMessage in UTF-8, on one line, without an XML declaration."""
    root = Element("AuditMessage")
    first, *others = codes(event)
    identification = SubElement(
        root,
        "EventIdentification",
        EventActionCode=CODINGS[event.event].action,
        EventDateTime=event.time,
        EventOutcomeIndicator=OUTCOMES[event.outcome],
    )
    _coded(identification, "EventID", first)
    for code in others:
        _coded(identification, "EventTypeCode", code)
    if event.reason:
        SubElement(identification, "EventOutcomeDescription").text = one_line(event.reason)
    for participant in participants(event):
        _active_participant(root, participant)
    source = SubElement(root, "AuditSourceIdentification", AuditSourceID=one_line(event.site))
    _coded(source, "AuditSourceTypeCode", APPLICATION_SERVER)
    for thing in things(event):
        _object(root, thing)
    return tostring(root, encoding="utf-8", xml_declaration=False)


def _coded(parent: Element, name: str, code: Code) -> None:
    attributes = {"csd-code": code.value, "codeSystemName": code.system, "originalText": code.text}
    SubElement(parent, name, attributes)


def _active_participant(root: Element, participant: Participant) -> None:
    attributes = {
        "UserID": participant.name,
        "UserName": f"{participant.name} ({participant.org})" if participant.org else participant.name,
        "UserIsRequestor": str(participant.requestor).lower(),
    }
    if participant.remote:
        attributes |= {"NetworkAccessPointID": participant.name, "NetworkAccessPointTypeCode": _MACHINE_NAME}
    element = SubElement(root, "ActiveParticipant", attributes)
    for role in participant.roles:
        _coded(element, "RoleIDCode", role)


def _object(root: Element, thing: Thing) -> None:
    attributes = {"ParticipantObjectID": thing.id, "ParticipantObjectTypeCode": _SYSTEM_OBJECT}
    if thing.role:
        attributes["ParticipantObjectTypeCodeRole"] = thing.role.value
    element = SubElement(root, "ParticipantObjectIdentification", attributes)
    _coded(element, "ParticipantObjectIDTypeCode", thing.kind)
    SubElement(element, "ParticipantObjectName").text = thing.name
    values = [(detail.name, detail.text.encode()) for detail in thing.details]
    values += [("line", thing.record)] if thing.record is not None else []
    for name, value in values:
        SubElement(element, "ParticipantObjectDetail", type=name, value=base64.b64encode(value).decode())
