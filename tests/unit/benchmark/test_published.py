"""The published results are those of their rows: nothing in the tables of the documentation was typed by hand."""

from __future__ import annotations

import csv
from pathlib import Path

from fedad_components.benchmark.results import FILE_NAME, Results
from fedad_components.benchmark.statistics import compare
from fedad_components.benchmark.tables import markdown
from fedad_components.benchmark.variants import VARIANTS

DOCS = Path(__file__).parents[3] / "docs"
ROWS, PAGE, STORY = DOCS / "wbc" / FILE_NAME, DOCS / "wbc" / "results.md", DOCS / "results.md"
BARS = ("source", "target", "few-shot/10")
BASELINE = "fedavg_ssl+stain_jitter"


def test_the_page_of_tables_is_made_from_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(Results.load(ROWS), BASELINE)


def test_every_row_is_a_method_of_the_benchmark() -> None:
    assert {row.method for row in Results.load(ROWS).rows} <= VARIANTS.keys()


def test_the_private_heads_differences_are_those_of_the_rows() -> None:
    """The story's table of protocols by laboratories."""
    lines = STORY.read_text(encoding="utf-8").split("## The private head against FedAvg-SSL")[1].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    targets = table[0][1:]
    families = compare(Results.load(ROWS).rows, BASELINE, "balanced_accuracy")
    tests = {(found.target, found.protocol): test for found in families for test in found.tests
             if test.method == "private_head+stain_jitter"}  # fmt: skip
    protocols = [row[0].strip("`") for row in table[2 : 2 + len({protocol for _, protocol in tests})]]
    assert {(target, protocol) for target in targets for protocol in protocols} == tests.keys()
    for protocol, row in zip(protocols, table[2:], strict=False):
        for target, cell in zip(targets, row[1:], strict=True):
            test = tests[target, protocol]
            assert (test.n, cell) == (5, f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]")


def test_the_bars_are_drawn_from_the_rows() -> None:
    with (ROWS.parent / "13_method_bars.csv").open(encoding="utf-8") as file:
        drawn = {(row["method"], int(row["seed"]), row["target"], row["protocol"]): row for row in csv.DictReader(file)}
    rows = [row for row in Results.load(ROWS).rows if row.target == "chulalongkorn" and row.protocol in BARS]
    assert {tuple(row.key): f"{row.metrics['balanced_accuracy']}" for row in rows} == {
        key: row["balanced_accuracy"] for key, row in drawn.items()
    }


def test_each_line_of_a_table_that_is_quoted_is_in_that_page() -> None:
    page = set(PAGE.read_text(encoding="utf-8").splitlines())
    quoted = [
        line
        for line in STORY.read_text(encoding="utf-8").splitlines()
        if line.startswith(tuple(f"| {name} |" for name in VARIANTS))
    ]
    assert len(quoted) > 20
    assert [line for line in quoted if line not in page] == []
