from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedad_components.benchmark.results import METRICS, Facts, Results, ResultsError, Row, append_rows
from fedad_components.evaluation import scores

FACTS = Facts(preset="quick", command="fedad benchmark wbc", versions={"torch": "2"}, date="2026-01-31")
ROW: dict[str, Any] = {
    "method": "fedad", "seed": 0, "target": "bccd", "protocol": "source", "transductive": False, "metrics": {"f1": 0.5},
    "steps": 10, "images": 100, "seconds": 1.5, "bytes": 1000, "nt_xent": 3.0, "nt_xent_chance": math.log(127),
}  # fmt: skip


def test_scores_are_those_of_the_evaluation() -> None:
    assert set(METRICS) == set(scores.METRICS)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    results = Results(facts=FACTS, rows=[Row(**ROW), Row(**{**ROW, "seed": 1, "nt_xent": None})])
    results.write(tmp_path / "results.json")
    append_rows(tmp_path / "results.json", [Row(**{**ROW, "seed": 2})])
    found = Results.load(tmp_path / "results.json")
    assert found.rows[:2] == results.rows
    assert [row.seed for row in found.rows] == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_row_twice_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(facts=FACTS, rows=[Row(**ROW)]).write(path)
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="method 'fedad', seed 0, target 'bccd', protocol 'source'"):
        append_rows(path, [Row(**{**ROW, "seed": 9}), Row(**{**ROW, "metrics": {"f1": 0.6}})])
    assert path.read_bytes() == before
    content = json.loads(before)
    path.write_text(json.dumps({**content, "rows": content["rows"] * 2}))
    with pytest.raises(ResultsError, match="there is a row already"):
        Results.load(path)


def _append(path: Path, seed: int) -> None:
    append_rows(path, [Row(**{**ROW, "seed": seed})])


def test_processes_do_not_lose_each_others_rows(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(facts=FACTS).write(path)
    processes = [multiprocessing.get_context("fork").Process(target=_append, args=(path, seed)) for seed in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(row.seed for row in Results.load(path).rows) == list(range(8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"f2": 0.5}}, "unknown score"),
        ({"metrics": {}}, "at least one of"),
        ({"metrics": {"f1": 1.2}}, "less than or equal to 1"),
        ({"metrics": {"f1": math.nan}}, "f1"),
        ({"seconds": math.inf}, "finite"),
        ({"nt_xent_chance": None}, "ln"),
        ({"colour": "red"}, "Extra inputs"),
        ({"steps": -1}, "greater than or equal to 0"),
    ],
)
def test_wrong_rows_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Row(**{**ROW, **change})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"facts": 1}', '{"rows": [{"method": 3}]}'])
def test_a_file_that_holds_no_results_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ResultsError, match=r"results\.json"):
        Results.load(tmp_path / "results.json")
    with pytest.raises(ResultsError, match="cannot be read"):
        Results.load(tmp_path / "none.json")


def test_untrained_is_within_a_tenth_of_chance() -> None:
    chance = math.log(127)
    assert Row(**{**ROW, "nt_xent": 0.91 * chance}).untrained
    assert Row(**{**ROW, "nt_xent": 1.2 * chance}).untrained
    assert not Row(**{**ROW, "nt_xent": 0.89 * chance}).untrained
    assert not Row(**{**ROW, "nt_xent": None}).untrained
