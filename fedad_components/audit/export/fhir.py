"""The log as FHIR R4: a Bundle of AuditEvents (https://hl7.org/fhir/R4/auditevent.html), valid under R4B too."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from fedad_components.audit.event import Event, line_hash
from fedad_components.audit.export.fields import one_line
from fedad_components.audit.export.meaning import (
    APPLICATION_SERVER,
    CODINGS,
    DCM,
    LOCAL,
    LOCAL_OID,
    OUTCOMES,
    Code,
    Participant,
    Thing,
    codes,
    participants,
    things,
)

_SYSTEMS = {DCM: "http://dicom.nema.org/resources/ontology/DCM", LOCAL: f"urn:oid:{LOCAL_OID}"}
_TERMINOLOGY = "http://terminology.hl7.org/CodeSystem"
_MACHINE_NAME = "1"


def export(events: Iterable[Event]) -> Iterator[bytes]:
    """A Bundle of type ``collection``, one entry a chunk: its length is bound by nothing here."""
    before = b'{"resourceType":"Bundle","type":"collection","entry":[\n'
    none = True
    for event in events:
        resource = audit_event(event)
        entry = {"fullUrl": f"urn:uuid:{resource['id']}", "resource": resource}
        yield before + json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
        before, none = b",\n", False
    # An empty array is not valid FHIR.
    yield b'{"resourceType":"Bundle","type":"collection"}\n' if none else b"\n]}\n"


def audit_event(event: Event) -> dict[str, Any]:
    """One AuditEvent. Its id follows from the event's line: the same event is the same resource in every export."""
    first, *others = (_coding(code) for code in codes(event))
    resource = {
        "resourceType": "AuditEvent",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{LOCAL_OID} {line_hash(event.line())}")),
        "type": first,
        "subtype": others,
        "action": CODINGS[event.event].action,
        "recorded": event.time,
        "outcome": OUTCOMES[event.outcome],
        "outcomeDesc": one_line(event.reason or ""),
        "agent": [_agent(participant) for participant in participants(event)],
        "source": {
            "site": one_line(event.site),
            "observer": _named(one_line(event.site)),
            "type": [_coding(APPLICATION_SERVER, "security-source-type")],
        },
        "entity": [_entity(thing) for thing in things(event)],
    }
    return {name: value for name, value in resource.items() if value not in ("", [])}


def _coding(code: Code, system: str | None = None) -> dict[str, str]:
    return {
        "system": f"{_TERMINOLOGY}/{system}" if system else _SYSTEMS[code.system],
        "code": code.value,
        "display": code.text,
    }


def _named(name: str, org: str | None = None) -> dict[str, Any]:
    """A Reference to somebody who is known by the name in their certificate, and nowhere a resource."""
    identifier = {"value": name, **({"assigner": {"display": org}} if org else {})}
    return {"identifier": identifier, "display": name}


def _agent(participant: Participant) -> dict[str, Any]:
    agent: dict[str, Any] = {
        "who": _named(participant.name, participant.org),
        "name": participant.name,
        "requestor": participant.requestor,
    }
    if participant.roles:
        agent["role"] = [{"coding": [_coding(role)]} for role in participant.roles]
    if participant.remote:
        agent["network"] = {"address": participant.name, "type": _MACHINE_NAME}
    return agent


def _entity(thing: Thing) -> dict[str, Any]:
    entity: dict[str, Any] = {
        "what": {"identifier": {"value": thing.id}, "display": thing.name},
        "type": {"system": f"{_TERMINOLOGY}/audit-entity-type", "code": "2", "display": "System Object"},
        "name": thing.name,
        "description": thing.kind.text,
    }
    if thing.role:
        entity["role"] = _coding(thing.role, "object-role")
    details = [{"type": detail.name, "valueString": detail.text} for detail in thing.details]
    if thing.record is not None:
        details.append({"type": "line", "valueBase64Binary": base64.b64encode(thing.record).decode()})
    return {**entity, "detail": details} if details else entity
