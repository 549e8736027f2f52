"""Every kind of event is a FHIR AuditEvent that a FHIR library accepts, and holds what the log's line holds."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from audit_events import ACTOR, NASTY, event_of, every_kind, nasty_event
from hypothesis import given, settings
from hypothesis import strategies as st

from fedad_components.audit.event import Event, Kind
from fedad_components.audit.export import fhir
from fedad_components.audit.export.meaning import CODINGS, DCM

bundles = pytest.importorskip("fhir.resources.R4B.bundle", reason="the extra `test` installs fhir.resources")


def exported(events: list[Event]) -> list[dict[str, Any]]:
    """The resources of an export that the library has accepted as it stands."""
    content = b"".join(fhir.export(events))
    bundle = bundles.Bundle.model_validate_json(content)
    assert json.loads(bundle.model_dump_json()) == json.loads(content), "the library changed or dropped something"
    return [entry["resource"] for entry in json.loads(content).get("entry", [])]


def test_one_event_of_each_kind_makes_a_valid_bundle() -> None:
    events = every_kind()
    resources = exported(events)
    assert len(resources) == len(Kind) == len({resource["id"] for resource in resources})
    for event, resource in zip(events, resources, strict=True):
        codes = [resource["type"], *resource.get("subtype", [])]
        assert event.event.value in [code["code"] for code in codes]
        assert resource["recorded"] == event.time
        assert sum(agent["requestor"] for agent in resource["agent"]) == 1


def test_no_event_is_a_bundle_without_entries() -> None:
    assert exported([]) == []


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_coded(kind: Kind) -> None:
    resource = exported([event_of(kind)])[0]
    assert resource["action"] == CODINGS[kind].action
    for code in (resource["type"], *resource.get("subtype", [])):
        assert code["system"].startswith(("http://dicom.nema.org/", "urn:oid:2.25."))


def test_the_codes_of_dicom_have_the_meaning_that_dicom_gives_them() -> None:
    """pydicom carries PS3.16's dictionary: EventID is of context group 400, EventTypeCode of 401."""
    from pydicom.sr._concepts_dict import concepts

    dicom = {code: meaning for entry in concepts["DCM"].values() for code, meaning in entry.items()}
    for coding in CODINGS.values():
        for code, group in ((coding.event, 400), (coding.subtype, 401)):
            if code:
                meaning, groups = dicom[code.value]
                assert (code.system, code.text) == (DCM, meaning)
                assert group in groups


@pytest.mark.parametrize(("outcome", "code"), [("success", "0"), ("refused", "4"), ("failed", "8")])
def test_outcomes(outcome: str, code: str) -> None:
    resource = exported([event_of(Kind.COMMAND, outcome=outcome, reason="why")])[0]
    assert (resource["outcome"], resource["outcomeDesc"]) == (code, "why")


def test_what_left_is_an_entity_with_names_of_its_figures() -> None:
    event = event_of(Kind.RESULT_SENT)
    resource = exported([event])[0]
    entities = {entity["description"]: entity for entity in resource["entity"]}
    assert list(entities) == ["job", "experiment", "data set", "tensors", "policy", "URI"]
    details = {detail["type"]: detail["valueString"] for detail in entities["tensors"]["detail"]}
    assert details["payload.bytes"] == "44700000"
    assert details["payload.sha256"] == "ab" * 32
    assert {detail["type"] for detail in entities["data set"]["detail"]} >= {"privacy.epsilon_after"}
    assert [(agent["name"], agent["role"][0]["coding"][0]["code"]) for agent in resource["agent"]] == [
        ("hospital-a", "110153"),
        ("server", "110152"),
    ]


def test_the_line_travels_with_the_event() -> None:
    event = event_of(Kind.AGGREGATED)
    line = exported([event])[0]["entity"][-1]["detail"][-1]
    assert (line["type"], base64.b64decode(line["valueBase64Binary"])) == ("line", event.line())


def test_who_asked_is_the_requestor() -> None:
    agents = exported([event_of(Kind.SIGNED_IN)])[0]["agent"]
    assert [(agent["name"], agent["requestor"]) for agent in agents] == [(ACTOR["name"], True), ("hospital-a", False)]
    assert agents[0]["who"]["identifier"]["assigner"]["display"] == ACTOR["org"]


def test_an_event_is_the_same_resource_in_every_export() -> None:
    one, other = event_of(Kind.COMMAND), event_of(Kind.COMMAND, seq=1)
    assert fhir.audit_event(one)["id"] == fhir.audit_event(one)["id"] != fhir.audit_event(other)["id"]


def test_hostile_text_keeps_to_its_string() -> None:
    resource = exported([nasty_event()])[0]
    assert resource["outcomeDesc"].startswith('J\u00f6rg "O\'Neil" & <b>')
    texts = json.dumps(resource, ensure_ascii=False)
    assert all(character not in texts for character in NASTY if not character.isprintable())


@given(st.text(min_size=1, max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
@settings(max_examples=100, deadline=None)
def test_any_name_is_valid(text: str) -> None:
    exported([event_of(Kind.SIGNED_IN, site=text, peer=text, job_id=text, actor={"name": text, "role": text})])
