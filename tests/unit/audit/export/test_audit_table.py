"""The table: one row an event for any reader of CSV, and nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import json

import pytest
from audit_events import event_of, every_kind, nasty_event

from fedad_components.audit.event import Event, Kind
from fedad_components.audit.export import table
from fedad_components.audit.export.fields import COLUMNS


def rows(events: list[Event]) -> list[dict[str, str]]:
    content = b"".join(table.export(events)).decode("utf-8")
    return list(csv.DictReader(io.StringIO(content, newline=""), strict=True))


def test_a_row_an_event_with_every_field_of_it() -> None:
    events = every_kind()
    for event, row in zip(events, rows(events), strict=True):
        said = json.loads(event.line())
        assert row["event"] == said["event"]
        for name, value in said.items():
            parts = value if name in ("actor", "payload", "policy", "privacy", "checkpoint") else {"": value}
            for inner, content in parts.items():
                cell = row[f"{name}.{inner}" if inner else name]
                assert cell, f"{name}.{inner} is missing"
                if isinstance(content, (dict, list, int, float)):
                    assert json.loads(cell) == content


def test_the_columns_are_the_schemas_leaves() -> None:
    assert len(COLUMNS) == len(set(COLUMNS))
    assert {"payload.bytes", "privacy.epsilon_after", "actor.name", "checkpoint.root", "reason"} <= set(COLUMNS)
    assert not {"payload", "privacy", "actor", "checkpoint", "policy"} & set(COLUMNS)


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_formula_becomes_text_also_where_semicolons_part_cells(first: str) -> None:
    formula = f'{first}HYPERLINK("http://x","y")'
    row = rows([event_of(Kind.COMMAND, reason=formula, actor={"name": formula})])[0]
    assert row["reason"] == row["actor.name"] == f"'{formula}"
    assert rows([event_of(Kind.COMMAND, reason=f"a;{formula};")])[0]["reason"] == f"a;'{formula};"


@pytest.mark.parametrize("first", ["\t", "\r", "\n", "\x0b", "\x00"])
def test_no_cell_begins_with_a_control_character(first: str) -> None:
    assert rows([event_of(Kind.COMMAND, reason=f"{first}=1+1")])[0]["reason"].startswith("\\")


def test_numbers_stay_numbers() -> None:
    assert rows([event_of(Kind.AGGREGATED, instability=-0.25)])[0]["instability"] == "-0.25"


def test_lines_end_as_rfc_4180_has_it_and_no_text_adds_one() -> None:
    content = b"".join(table.export([nasty_event(), nasty_event()]))
    assert content.count(b"\r\n") == content.count(b"\n") == content.count(b"\r") == 3
