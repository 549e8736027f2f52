"""Audit messages have the structure of PS3.15 A.5.1, and nothing in an event can change it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from audit_events import NASTY, event_of, every_kind, nasty_event
from hypothesis import given, settings
from hypothesis import strategies as st

from fedad_components.audit.event import Event, Kind
from fedad_components.audit.export import atna
from fedad_components.audit.export.fields import one_line

etree = pytest.importorskip("lxml.etree", reason="the extra `test` installs lxml")
SCHEMA = etree.RelaxNG(etree.parse(Path(__file__).with_name("audit_message.rng")))


def parsed(event: Event) -> etree._Element:
    """The message, valid against the schema."""
    root = etree.fromstring(atna.message(event))
    SCHEMA.assertValid(root)
    return root


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_a_valid_message(kind: Kind) -> None:
    root = parsed(event_of(kind))
    assert kind.value in root.xpath("EventIdentification/*/@csd-code")
    assert root.xpath("count(ActiveParticipant[@UserIsRequestor='true'])") == 1
    assert root.xpath("AuditSourceIdentification/@AuditSourceID") == ["hospital-a"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("remove", "EventIdentification"),
        ("remove", "EventIdentification/EventID"),
        ("remove", "ActiveParticipant"),
        ("remove", "AuditSourceIdentification"),
        ("remove", "ParticipantObjectIdentification/ParticipantObjectIDTypeCode"),
        ("remove", "ParticipantObjectIdentification/ParticipantObjectName"),
        ("last", "EventIdentification"),
        ("last", "EventIdentification/EventID"),
        ("last", "ParticipantObjectIdentification/ParticipantObjectIDTypeCode"),
        ("rename", "EventIdentification/EventID/@csd-code"),
        ("rename", "EventIdentification/@EventOutcomeIndicator"),
        ("rename", "ActiveParticipant/@UserIsRequestor"),
        ("rename", "ParticipantObjectIdentification/ParticipantObjectDetail/@value"),
    ],
)
def test_the_schema_refuses_another_structure(change: str, path: str) -> None:
    """A schema that accepts everything would make the tests above worthless."""
    root = parsed(event_of(Kind.RESULT_SENT))
    for found in root.xpath(path):
        if change == "remove":
            found.getparent().remove(found)
        elif change == "last":
            found.getparent().append(found)
        else:
            parent = found.getparent()
            parent.set("other", parent.attrib.pop(found.attrname))
    assert not SCHEMA.validate(root)


def test_a_result_is_an_export_from_source_to_destination() -> None:
    root = parsed(event_of(Kind.RESULT_SENT))
    assert root.xpath("EventIdentification/EventID/@csd-code") == ["110106"]
    assert root.xpath("EventIdentification/EventTypeCode/@csd-code") == ["result_sent"]
    assert root.xpath("ActiveParticipant/RoleIDCode/@csd-code") == ["110153", "110152"]
    details = {
        detail.get("type"): base64.b64decode(detail.get("value")) for detail in root.iter("{*}ParticipantObjectDetail")
    }
    assert details["payload.tensors"] == b"122"
    assert details["line"] == event_of(Kind.RESULT_SENT).line()


def test_reading_the_log_is_coded_as_audit_log_used() -> None:
    """PS3.15 A.5.3.2: action Read, and the log as a security resource, by URI, of that name."""
    root = parsed(event_of(Kind.LOG_READ))
    assert root.xpath("EventIdentification/EventID/@csd-code") == ["110101"]
    assert root.xpath("EventIdentification/@EventActionCode") == ["R"]
    log = root.xpath("ParticipantObjectIdentification")[-1]
    assert (log.get("ParticipantObjectTypeCode"), log.get("ParticipantObjectTypeCodeRole")) == ("2", "13")
    assert log.xpath("ParticipantObjectIDTypeCode/@csd-code") == ["12"]
    assert log.findtext("ParticipantObjectName") == "Security Audit Log"


def test_hostile_text_is_text() -> None:
    root = parsed(nasty_event())
    assert root.findtext("EventIdentification/EventOutcomeDescription") == one_line(NASTY)
    assert root.xpath("ActiveParticipant/@UserID") == [one_line(NASTY)] * 3
    assert root.xpath("//b") == []
    assert b"\n" not in atna.message(nasty_event())


def test_many_messages_are_one_document() -> None:
    events = every_kind()
    root = etree.fromstring(b"".join(atna.export(events)))
    assert (root.tag, len(root)) == ("AuditMessages", len(events))
    for message in root:
        assert SCHEMA.validate(etree.fromstring(etree.tostring(message)))


@given(st.text(min_size=1, max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_out_as_it_prints(text: str) -> None:
    root = parsed(event_of(Kind.COMMAND, site=text, reason=text, actor={"name": text, "role": text}))
    assert root.xpath("ActiveParticipant/@UserID") == [one_line(text)] * 2
    assert root.findtext("EventIdentification/EventOutcomeDescription") == one_line(text)
