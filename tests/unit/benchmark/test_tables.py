from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

from fedad_components.benchmark.results import Facts, Results, Row
from fedad_components.benchmark.statistics import StatisticsError
from fedad_components.benchmark.tables import html, markdown, write_tables
from fedad_components.benchmark.variants import JITTERED
from fedad_components.cli.benchmark import app


def results(method: str = "fedad") -> Results:
    rows = [
        Row(
            method=name, seed=seed, target="bccd", protocol=protocol, transductive=protocol == "source/AdaBN",
            metrics={"f1": score + 0.1 * seed, **({"auc": 0.9} if name == method else {})}, steps=1200, images=300,
            seconds=61.5, bytes=44_728_832, nt_xent=None if name == "random" else loss, nt_xent_chance=4.0,
        )
        for protocol in ("source", "source/AdaBN")
        for name, score, loss in ((method, 0.5, 2.0), ("base", 0.3, 3.9), ("random", 0.2, 0.0))
        for seed in range(2 if name == "random" else 3)
    ]  # fmt: skip
    facts = Facts(preset="quick", command="fedad benchmark wbc", versions={"torch": "2.9"}, date="2026-01-31")
    return Results(facts=facts, rows=rows)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(text: str) -> list[list[list[str]]]:
    """Tables of a Markdown page, each a list of rows."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[cells(line) for line in block.splitlines()] for block in blocks]


def test_markdown_is_well_formed_and_right() -> None:
    text = markdown(results(), "base", "f1")
    found = tables(text)
    assert len(found) == 6  # one score by protocol; scores and tests twice; costs
    assert all(len({len(row) for row in table}) == 1 for table in found)
    overview, scores, tests, *_, costs = found
    assert overview[0] == ["method", "seeds", "source", "source/AdaBN (transductive)", "NT-Xent (chance)¹"]
    assert overview[2] == ["fedad", "3", "**0.600 ± 0.100**", "**0.600 ± 0.100**", "2.00 (4.00)"]
    assert overview[4] == ["random", "2", "0.250 ± 0.071", "0.250 ± 0.071", "–"]
    assert scores[0] == ["method", "seeds", "macro F1", "AUC", "NT-Xent (chance)¹"]
    assert scores[2] == ["fedad", "3", "**0.600 ± 0.100**", "**0.900 ± 0.000**", "2.00 (4.00)"]
    assert scores[3] == ["base", "3", "0.400 ± 0.100", "–", "3.90 (4.00) ⚠ 3 of 3"]
    assert scores[4] == ["random", "2", "0.250 ± 0.071", "–", "–"]
    assert [row[:3] for row in tests[2:]] == [["fedad", "3", "+0.200"], ["random", "2", "-0.100"]]
    assert costs[2] == ["fedad", "bccd", "3", "1,200", "300", "1 min 02 s", "44.7 MB"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "bccd, macro F1 by protocol",
        "bccd, source",
        "bccd, source/AdaBN (transductive)",
        "Cost of one training³",
    ]
    assert all(mark in text.split("## Cost")[1] for mark in ("¹", "²", "³"))
    assert [part[:2] for part in text.rstrip().split("\n\n")[-4:]] == ["¹ ", "² ", "³ ", "Tr"]  # a paragraph each


def test_a_name_is_text_and_nothing_else() -> None:
    text = markdown(results("<script>x</script>\n# title | cell"), "base", "f1")
    assert "<script>" not in text
    assert all(len({len(row) for row in table}) == 1 for table in tables(text))
    assert "\n# title" not in text


def test_what_stain_jitter_adds_is_paired_by_seed() -> None:
    found, rows = results(), []
    gains = {"fedad": {0: 0.05, 2: 0.15, 9: 0.4}, "base": {0: 0.1}}  # seed 9 is not among those without
    for row in found.rows:
        for seed, gain in gains.get(row.method, {}).items():
            if row.seed == (0 if seed == 9 else seed):
                metrics = {"f1": row.metrics["f1"] + gain}
                rows.append(row.model_copy(update={"method": row.method + JITTERED, "seed": seed, "metrics": metrics}))
    both = Results(facts=found.facts, rows=[*found.rows, *rows])
    table = tables(markdown(both, "base", "f1"))[1]
    assert table[0] == ["method", "pairs", "source", "source/AdaBN (transductive)"]
    half = stats.t.ppf(0.975, 1) * 0.1 / math.sqrt(2) / math.sqrt(2)
    cell = f"+0.100 [{0.1 - half:+.3f}, {0.1 + half:+.3f}]"
    assert table[2:] == [["fedad", "2", cell, cell]]
    page = html(both, "base", "f1")
    assert "What stain jitter adds" in page
    assert f"<td>{cell}</td>" in page


def test_one_seed_is_never_the_best_beside_several() -> None:
    found = results()
    lucky = found.rows[0].model_copy(update={"method": "lucky", "seed": 7, "metrics": {"f1": 0.99}})
    beside = Results(facts=found.facts, rows=[*found.rows, lucky])
    assert [row[2] for row in tables(markdown(beside, "base", "f1"))[0][2:]] == [
        "**0.600 ± 0.100**",
        "0.400 ± 0.100",
        "0.250 ± 0.071",
        "0.990",
    ]
    alone = [row for row in beside.rows if row.seed in (0, 7)]  # one seed of each: nothing else to go by
    assert [row[2] for row in tables(markdown(Results(facts=found.facts, rows=alone), "base", "f1"))[0][2:]] == [
        "0.500",
        "0.300",
        "0.200",
        "**0.990**",
    ]


def test_a_bar_in_a_label_does_not_end_its_cell() -> None:
    assert tables(markdown(results("a|b"), "base", "f1"))[0][2][0] == "a\\|b"


class Page(HTMLParser):
    """Checks that every element is closed; collects references and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img")
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_holds_the_same_and_refers_to_nothing(tmp_path: Path) -> None:
    paths = write_tables(results(), tmp_path, "base", "f1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.html", "results.md"]
    page = Page(paths[1].read_text(encoding="utf-8"))
    for table in tables(paths[0].read_text(encoding="utf-8")):
        for row in (table[0], *table[2:]):
            assert all(cell.strip("*") in page.text for cell in row if cell not in ("remark",))
    assert not re.search(r"https?:|url\(|@import", html(results(), "base", "f1"))


def test_text_from_elsewhere_is_escaped() -> None:
    text = html(results("<script>alert(1)</script>"), "base", "f1")
    assert "&lt;script&gt;" in text
    Page(text)


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(StatisticsError, match="'moon'"):
        markdown(results(), "moon", "f1")


def test_the_command_tests_against_the_row_that_it_is_told(tmp_path: Path) -> None:
    results().write(tmp_path / "results.json")
    shown = CliRunner().invoke(app, ["table", str(tmp_path), "--baseline", "base", "--metric", "f1"])
    assert shown.exit_code == 0, shown.output
    assert "0.600 ± 0.100" in shown.output
    assert "Against base, macro F1" in (tmp_path / "results.md").read_text(encoding="utf-8")
    refused = CliRunner().invoke(app, ["table", str(tmp_path), "--baseline", "moon", "--metric", "f1"])
    assert refused.exit_code == 1
    assert "'moon'" in refused.output


def test_the_command_needs_a_benchmark(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["table", str(tmp_path)])
    assert refused.exit_code == 1
    assert "results.json" in refused.output
