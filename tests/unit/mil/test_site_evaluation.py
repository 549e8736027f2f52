"""From a trained model to the sites' counts and their report: by the commands, against the pooled patients."""

from __future__ import annotations

import csv
import json
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner, Result

from fedad_components.algorithms import algorithm_of
from fedad_components.cli import app
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.evaluate_classes import ClassCounts
from fedad_components.mil.evaluate_survival import SurvivalCounts
from fedad_components.mil.evaluation_file import read_evaluation
from fedad_components.mil.federated_metrics import score_pairs
from fedad_components.mil.metrics import bag_scores
from fedad_components.mil.site_bags import SiteBags, write_bags
from fedad_components.mil.survival_metrics import pair_counts
from fedad_components.mil.trainer import BagTrainer
from fedad_components.records import FILE_NAME, append_record
from fedad_components.simulation import Simulation

CLASSES = ("normal", "tumour", "other")
SITES = ("north", "south")


@dataclass
class Study:
    """A job's results, and the features of its two sites."""

    folder: Path
    config: HistoFLConfig

    def evaluate(self, site: str, *options: str, code: int = 0, name: str | None = None) -> Result:
        result = CliRunner().invoke(
            app,
            [
                *("slides", "evaluate", str(self.folder / "results"), "--features", str(self.folder / site)),
                *("--site", name or site, "--out", str(self.folder / f"{site}.json"), "--device", "cpu", *options),
            ],
        )
        assert result.exit_code == code, result.output
        return result

    def report(self, *names: str, code: int = 0) -> Result:
        files = [str(self.folder / f"{name}.json") for name in names]
        result = CliRunner().invoke(app, ["slides", "report", *files, "--out", str(self.folder / "report.html")])
        assert result.exit_code == code, result.output
        return result

    def patients(self, site: str) -> list[dict[str, str]]:
        with open(self.folder / f"{site}.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


def bags_of(site: str, survival: bool) -> list[Bag]:
    generator = np.random.default_rng(len(site) + ord(site[0]))
    bags = []
    for number in range(90):
        features = torch.from_numpy(generator.normal(size=(3 + number % 3, 8))).float()
        features[:, number % 3] += 1.0
        outcome = Outcome(float(np.ceil(generator.exponential(40) * (1 + number % 3))), bool(generator.random() < 0.7))
        target: int | Outcome = outcome if survival else number % 3
        bags.append(Bag(f"SECRET-{site}-{number}", f"SECRET-{site}-P{number}", features, target))
    return bags


def study(folder: Path, **sections: Any) -> Study:
    """One round of training in one process, its results as a job's persistor writes them."""
    settings = {"model": {"in_features": 8}, "training": {"device": "cpu", "learning_rate": 1e-3}, **sections}
    config = HistoFLConfig.parse(settings)
    bags = {site: bags_of(site, config.survival) for site in SITES}
    for site, found in bags.items():
        write_bags(folder / site, found, CLASSES)
    simulation = Simulation(config, {site: BagTrainer(config, SiteBags.of(bags[site]), site) for site in SITES})
    for _ in range(2):
        append_record(folder / "results" / FILE_NAME, simulation.run_round())
    algorithm_of(config).save_model(folder / "results" / "model.safetensors", simulation.theta, config, {})
    (folder / "results" / "config.json").write_text(json.dumps(config.to_json()))
    return Study(folder, config)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("classes")
    (folder / "results").mkdir()
    return study(folder, target={"classes": CLASSES}, counts={"min_cell": 3})


@pytest.fixture(scope="module")
def survival(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("survival")
    (folder / "results").mkdir()
    target = {"kind": "survival", "bins": 3, "edges": [25.0, 60.0], "horizon": 512.0}
    return study(folder, target=target, counts={"min_cell": 1})


def cut_of(survival: Study, site: str, share: float) -> float:
    """Below it is that share of the site's test patients."""
    survival.evaluate(site, "--patients", str(survival.folder / f"{site}.csv"))
    return round(float(np.quantile([float(row["risk"]) for row in survival.patients(site)], share)), 5)


def test_counts_of_classes_are_those_of_the_sites_own_test_patients(classes: Study) -> None:
    pooled_true, pooled_predicted = [], []
    for site in SITES:
        secret = classes.folder / f"{site}.csv"
        classes.evaluate(site, "--patients", str(secret))
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        rows = classes.patients(site)
        trainer = BagTrainer(classes.config, SiteBags.of(bags_of(site, survival=False)), site)
        assert {row["patient"] for row in rows} == trainer.split.test
        true = [row["class"] for row in rows]
        probability = np.array([[float(row[f"probability of {name}"]) for name in CLASSES] for row in rows])
        run = read_evaluation(classes.folder / f"{site}.json").run()
        assert isinstance(run, ClassCounts)
        expected = bag_scores(true, probability[:, [0, 2, 1]], sorted(CLASSES))  # normal, other, tumour
        assert run.scores() == {
            "AUC within sites": pytest.approx(expected.auc),
            "balanced accuracy": pytest.approx(expected.balanced_accuracy),
            "error": pytest.approx(expected.error),
            "κ": pytest.approx(expected.kappa),
        }
        pooled_true += true
        pooled_predicted += [row["predicted"] for row in rows]
    told = "".join((classes.folder / f"{site}.json").read_text() for site in SITES)
    assert "SECRET" not in told
    classes.report(*SITES)
    page = (classes.folder / "report.html").read_text()
    error = np.mean(np.array(pooled_true) != np.array(pooled_predicted))
    assert f"<td>{error:.3f}</td>" in next(line for line in page.splitlines() if 'class="all"' in line)
    assert page.count("<img") == 2
    assert "SECRET" not in page


def test_counts_of_survival_are_those_of_the_sites_own_test_patients(survival: Study) -> None:
    cut = cut_of(survival, "north", share=0.5)
    for site in SITES:
        survival.evaluate(site, "--cut", f"{cut}", "--patients", str(survival.folder / f"{site}.csv"))
        rows = survival.patients(site)
        times, events = [float(row["time"]) for row in rows], [int(row["event"]) for row in rows]
        risks = [float(row["risk"]) for row in rows]
        run = read_evaluation(survival.folder / f"{site}.json").run()
        assert isinstance(run, SurvivalCounts)
        assert run.patients == len(rows)
        assert run.scores()["c-index"] == pytest.approx(pair_counts(times, events, risks).c_index, abs=0.02)
        assert [int(row["risk group"]) for row in rows] == [int(value > cut) for value in risks]
        at_risk = [sum(t >= 4 and (r > cut) == group for t, r in zip(times, risks, strict=True)) for group in (0, 1)]
        assert run.groups().at_risk([4]).ravel().tolist() == at_risk
    survival.report(*SITES)
    assert (survival.folder / "report.html").read_text().count("<img") == 1


def test_a_least_count_tells_pairs_and_no_curve_of_few(survival: Study) -> None:
    cut = cut_of(survival, "north", share=0.8)
    survival.evaluate("north", "--min-cell", "6", "--patients", str(survival.folder / "north.csv"), "--cut", f"{cut}")
    rows = survival.patients("north")
    evaluation = read_evaluation(survival.folder / "north.json")
    run = evaluation.run()
    assert isinstance(run, SurvivalCounts)
    numbers = [(float(row["time"]), int(row["event"]), float(row["risk"])) for row in rows]
    exact = pair_counts(*map(np.array, zip(*numbers, strict=True)))
    assert run.scores() == {"c-index within sites": pytest.approx(exact.c_index)}
    assert 0 < min(Counter((event, value > cut) for _, event, value in numbers).values()) < 6  # so no table leaves
    assert run.patients == 0
    page = survival.report("north").output
    assert "c-index within sites" in " ".join(page.split())
    assert "told nothing of its curves" in (survival.folder / "report.html").read_text()


def test_the_default_cut_is_of_training_patients_and_differs_between_sites(survival: Study) -> None:
    cuts = {}
    for site in SITES:
        survival.evaluate(site)
        (cuts[site],) = read_evaluation(survival.folder / f"{site}.json").cuts
        assert (cuts[site] * 128 / 3) == pytest.approx(round(cuts[site] * 128 / 3))
    if cuts["north"] == cuts["south"]:
        pytest.fail("two sites of different patients have one median: choose others")
    told = " ".join(survival.report(*SITES, code=2).output.split())
    assert f"such as --cut {np.mean(list(cuts.values())):.3f}".rstrip("0") in told


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ((), "west", "not in the job's rounds: expected one of north, south"),
        (("--min-cell", "1"), None, "expected the job's counts.min_cell, 3, or more"),
        (("--cut", "0.5"), None, "classification"),
    ],
)
def test_what_does_not_fit_is_named(classes: Study, options: tuple[str, ...], name: str | None, words: str) -> None:
    told = classes.evaluate("north", *options, name=name, code=2).output
    assert words in " ".join(told.split())


def test_features_that_are_not_those_of_the_training_are_refused(classes: Study, tmp_path: Path) -> None:
    """With a patient more, another split: some of its test patients were trained on."""
    more = bags_of("north", survival=False) + [
        Bag(f"more-{number}", f"more-{number}", torch.ones(2, 8), number % 3) for number in range(9)
    ]
    write_bags(tmp_path / "north", more, CLASSES)
    (tmp_path / "results").symlink_to(classes.folder / "results")
    told = Study(tmp_path, classes.config).evaluate("north", code=2).output
    assert "test patients may have been trained on" in " ".join(told.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"confusion": {"kind": "Confusion", "grids": [], "counts": [[1, -2, 0]] * 3}}, "expected 0 to 2^53"),
        ({"scores": []}, "another number of classes than 3"),
        ({"min_cell": 1}, "3 tables of pairs for 3 classes"),
        ({"patients": ["Smith"]}, "patients"),
        ({"model_sha256": "b" * 64}, "expected the same model.safetensors at every site"),
        ({"target": {"classes": ["a", "b", "c"]}}, "two different targets"),
    ],
)
def test_files_that_cannot_be_added_up_are_refused(classes: Study, change: dict[str, Any], words: str) -> None:
    for site in SITES:
        classes.evaluate(site)
    content = json.loads((classes.folder / "south.json").read_text())
    (classes.folder / "wrong.json").write_text(json.dumps(content | change))
    told = " ".join(classes.report("north", "wrong", code=2).output.split())
    assert "wrong.json" in told
    assert words in told


def test_a_site_that_comes_twice_is_refused(classes: Study) -> None:
    classes.evaluate("north")
    (classes.folder / "north2.json").write_bytes((classes.folder / "north.json").read_bytes())
    assert "comes twice" in " ".join(classes.report("north", "north2", code=2).output.split())


def test_pairs_of_scores_are_the_area() -> None:
    generator = np.random.default_rng(0)
    scores, positive = np.round(generator.random(80), 1), generator.random(80) < 0.4
    assert score_pairs(scores, positive).c_index == pytest.approx(roc_auc_score(positive, scores))
    assert score_pairs(scores, positive, least=int(positive.sum()) + 1).c_index is None
