"""The configuration's page is generated; a change of a default or a description must reach it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from fedad_components import config_docs
from fedad_components.config import FedADConfig
from fedad_components.mil.config import HistoFLConfig

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def leaves(prefix: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [prefix]
    return [leaf for key, inner in value.items() for leaf in leaves(key, inner)]


def test_page_is_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_docs.render_markdown(), (
        "docs/configuration.md is out of date: run `fedad config docs > docs/configuration.md`"
    )


def test_every_key_has_a_row() -> None:
    page = config_docs.render_markdown()
    for key in (*leaves("", FedADConfig().to_json()), *leaves("", HistoFLConfig().to_json())):
        assert f"| `{key}` | " in page


def test_rows_have_the_cells_of_their_tables_head() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", config_docs.render_markdown(), re.MULTILINE)
    for table in tables:
        cells = {row.replace(r"\|", "").count("|") for row in table.splitlines()}
        assert cells == ({5} if table.startswith("| key | default |") else {4})


def test_bounds_and_choices_are_shown() -> None:
    class Section(BaseModel):
        number: Annotated[float, Field(gt=0.5, le=2)] = Field(1.0, description="between")
        count: int = Field(3, ge=1, lt=9, description="how many")
        optional: int | None = Field(None, description="a|b")

    assert config_docs._table(Section)[2:] == [
        "| `number` | `1.0` | number > 0.5, <= 2 | between |",
        "| `count` | `3` | integer >= 1, < 9 | how many |",
        "| `optional` | `null` | integer or `null` | a\\|b |",
    ]


def test_unknown_type_is_an_error() -> None:
    class Section(BaseModel):
        path: bytes = Field(b"", description="a type that the page cannot describe yet")

    with pytest.raises(TypeError, match="bytes"):
        config_docs._table(Section)
