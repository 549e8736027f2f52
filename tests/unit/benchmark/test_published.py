"""The published results are those of their rows: nothing in the tables of the documentation was typed by hand."""

from __future__ import annotations

from pathlib import Path

from fedad_components.benchmark.results import FILE_NAME, Results
from fedad_components.benchmark.tables import markdown
from fedad_components.benchmark.variants import VARIANTS

DOCS = Path(__file__).parents[3] / "docs"
ROWS, PAGE, STORY = DOCS / "wbc" / FILE_NAME, DOCS / "wbc" / "results.md", DOCS / "results.md"
BASELINE = "fedavg_ssl+stain_jitter"


def test_the_page_of_tables_is_made_from_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(Results.load(ROWS), BASELINE)


def test_every_row_is_a_method_of_the_benchmark() -> None:
    assert {row.method for row in Results.load(ROWS).rows} <= VARIANTS.keys()


def test_each_line_of_a_table_that_is_quoted_is_in_that_page() -> None:
    page = set(PAGE.read_text(encoding="utf-8").splitlines())
    quoted = [
        line
        for line in STORY.read_text(encoding="utf-8").splitlines()
        if line.startswith(tuple(f"| {name} |" for name in VARIANTS))
    ]
    assert len(quoted) > 20
    assert [line for line in quoted if line not in page] == []
