"""A stranger's file of counts has to keep its own least count, and its tables to be of the same patients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.evaluate import EvaluationError
from fedad_components.mil.evaluate_classes import ClassCounts, Classified
from fedad_components.mil.evaluate_survival import SurvivalCounts, Survived
from fedad_components.mil.evaluation_file import SiteEvaluation, read_evaluation

CLASSES = HistoFLConfig.parse({"target": {"classes": ["a", "b", "c"]}, "counts": {"score_depth": 2}})
SURVIVAL = HistoFLConfig.parse(
    {"target": {"kind": "survival", "bins": 3, "horizon": 512.0}, "counts": {"time_depth": 2}}
)


def classified() -> Classified:
    """7, 6 and 2 patients."""
    true = np.repeat([0, 1, 2], [7, 6, 2])
    return Classified("federated", "north", 0, true, np.random.default_rng(0).dirichlet([1, 1, 1], len(true)))


def survived() -> Survived:
    generator = np.random.default_rng(0)
    times, risks = generator.exponential(300, 60), -3 * generator.random(60)
    return Survived("federated", "north", 0, times, np.arange(60) % 2 == 0, risks, (-1.5,))


def read(folder: Path, evaluation: SiteEvaluation, path: tuple[Any, ...] = (), value: Any = None) -> Any:
    """The file read back, with one value changed."""
    content = evaluation.model_dump(mode="json")
    if path:
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    (folder / "north.json").write_text(json.dumps(content))
    return read_evaluation(folder / "north.json").run()


@pytest.mark.parametrize("least", [1, 3, 5, 7])
def test_what_a_site_writes_agrees_with_itself(tmp_path: Path, least: int) -> None:
    classes = read(tmp_path, SiteEvaluation.of(classified(), CLASSES, least, "a" * 64))
    assert isinstance(classes, ClassCounts)
    assert classes.patients == sum(size for size in (7, 6, 2) if size >= least)
    assert isinstance(read(tmp_path, SiteEvaluation.of(survived(), SURVIVAL, least, "a" * 64)), SurvivalCounts)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("site",), "all sites", "is no site's name"),
        (("min_cell",), 7, "confusion: a count below the file's own min_cell 7"),
        (("confusion", "counts", 2), [0, 0, 2], "confusion: a count below the file's own min_cell 5"),
        (("confusion", "counts", 0), [5, 0, 0], "scores of class 0: expected 6 patients that are not, and 5"),
        (("confusion", "counts", 0, 0), 2**53, "expected 10000000 or fewer"),
        (("scores", 0, "counts", 0, 0), 1, "scores of class 0: a count below the file's own min_cell 5"),
        (("scores", 1, "counts", 0, 0), 500, "scores of class 1: expected 7 patients that are not, and 6"),
        (("scores", 2, "grids", 0, 1), 7.0, "expected [(0.0, 1.0)]"),
        (("pairs", 0, "counts", 0), 2**53, "pairs of class 0: expected 42"),
        (("cuts",), [-1.0], "risk groups of classes"),
    ],
)
def test_tables_of_classes_are_held_against_each_other(
    tmp_path: Path, path: tuple[Any, ...], value: Any, words: str
) -> None:
    with pytest.raises(EvaluationError) as caught:
        read(tmp_path, SiteEvaluation.of(classified(), CLASSES, 5, "a" * 64), path, value)
    assert words in str(caught.value)
    assert "north.json" in str(caught.value)


@pytest.mark.parametrize(
    ("least", "path", "value", "words"),
    [
        (1, ("cuts",), [float("nan")], "finite number"),
        (1, ("risk_sets", "counts", 0, 1, 0), 500, "expected as many"),
        (1, ("risk_sets", "counts", 0, 1, 0), 2**53, "expected 10000000 or fewer"),
        (1, ("risk_sets", "grids", 0, 1), 7.0, "expected [(0.0, 512.0)]"),
        (1, ("pairs", 0, "grids", 0, 0), -7.0, "expected [(-3.0, 0.0), (0.0, 512.0)]"),
        (1, ("scores",), [{}], "tables of classes"),
        (5, ("risk_sets", "counts", 0, 1, 0), 1, "risk_sets: a count below the file's own min_cell 5"),
        (5, ("pairs", 0, "counts", 0), 2**40, "60 make 1770"),
        (20, ("pairs", 0, "counts", 0), 2**53, "10000000 make 49999995000000"),
    ],
)
def test_tables_of_survival_are_held_against_each_other(
    tmp_path: Path, least: int, path: tuple[Any, ...], value: Any, words: str
) -> None:
    with pytest.raises(EvaluationError) as caught:
        read(tmp_path, SiteEvaluation.of(survived(), SURVIVAL, least, "a" * 64), path, value)
    assert words in str(caught.value)
