"""docs/audit.md names every event, field and finding, and the schema beside it is the code's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from audit_events import every_kind, nasty_event
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from fedad_components.audit.event import SCHEMA_VERSION, Event, Kind, Outcome, schema
from fedad_components.audit.findings import Finding, FindingKind, Verification
from fedad_components.cli import app

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "audit.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> set[str]:
    """What stands as code in the first column of the tables of a section."""
    section = re.split(r"^##+ ", PAGE.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    return {
        word for cell in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for word in re.findall("`([^`]+)`", cell)
    }


def test_every_event_has_its_line() -> None:
    assert first_cells("Events") == {kind.value for kind in Kind}


def test_every_field_has_its_line() -> None:
    assert first_cells("Fields") == set(Event.model_fields)


def test_every_finding_has_its_line() -> None:
    assert first_cells("What a finding means") == {kind.value for kind in FindingKind}


def test_every_part_of_a_field_is_named() -> None:
    parts = {name for part in schema()["$defs"].values() for name in part.get("properties", {})}
    assert {name for name in parts if f"`{name}`" not in PAGE} == set()
    assert {outcome.value for outcome in Outcome if f"`{outcome.value}`" not in PAGE} == set()
    answer = {*Verification.model_fields, *Finding.model_fields}
    assert {name for name in answer if f"`{name}`" not in PAGE} == set()


HIPAA = ["164.312(b)", "164.312(c)", "164.312(d)", "164.316(b)"]
OTHERS = ["Art. 30", "Art. 35", "11.10(e)", "8.15", "8.17", "SP 800-92", "ITI-20"]


@pytest.mark.parametrize("requirement", [*HIPAA, *OTHERS])
def test_every_requirement_has_its_gap(requirement: str) -> None:
    table = PAGE.partition("## 7. ")[2]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    assert any(requirement in row[0] and len(row) == 3 and len(row[2]) > 20 for row in rows)


def test_nothing_is_promised() -> None:
    assert not re.search(r"complian(t|ce with)|anonym|certified|guarantees", PAGE, re.IGNORECASE)


def test_the_schema_file_is_what_the_command_prints() -> None:
    text = (DOCS / "audit-event.schema.json").read_text(encoding="utf-8")
    result = CliRunner().invoke(app, ["audit", "schema"])
    assert result.exit_code == 0
    assert result.stdout == text, "fedad audit schema > docs/audit-event.schema.json"
    assert f"audit-event-{SCHEMA_VERSION}.json" in json.loads(text)["$id"]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def test_the_schema_admits_every_event(validator: Draft202012Validator) -> None:
    for event in (*every_kind(), nasty_event()):
        assert list(validator.iter_errors(json.loads(event.line()))) == []


@pytest.mark.parametrize(
    "change",
    [{"patient": "Doe^Jane"}, {"event": "looked"}, {"seq": -1}, {"prev": "ab"}, {"time": "2030-01-31"}, {"v": 2}],
)
def test_the_schema_admits_nothing_else(validator: Draft202012Validator, change: dict[str, Any]) -> None:
    line = json.loads(every_kind()[0].line())
    assert list(validator.iter_errors(line)) == []
    assert list(validator.iter_errors({**line, **change})) != []
