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
import yaml
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner, Result

from fedad_components.algorithms import algorithm_of
from fedad_components.cli import app
from fedad_components.fedsd.state import read_tensors
from fedad_components.files import write_tensors
from fedad_components.imaging.catalogue import VERSION
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.evaluate_classes import ClassCounts
from fedad_components.mil.evaluate_survival import SurvivalCounts
from fedad_components.mil.evaluation_file import read_evaluation
from fedad_components.mil.federated_metrics import score_pairs
from fedad_components.mil.metrics import bag_scores
from fedad_components.mil.site_bags import SiteBags, write_bags
from fedad_components.mil.state import EXPERIMENT
from fedad_components.mil.survival_metrics import pair_counts
from fedad_components.mil.trainer import BagTrainer
from fedad_components.records import FILE_NAME, append_record
from fedad_components.simulation import Simulation

CLASSES = ("normal", "tumour", "other")
SITES = ("north", "south")
EXACT, JOBS = ("--min-cell", "1"), ("--min-cell", "3")
"""The jobs' own least counts, which nobody but a person may take without the policy of a kit."""


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
                *(
                    "--site",
                    site if name is None else name,
                    "--out",
                    str(self.folder / f"{site}.json"),
                    "--device",
                    "cpu",
                    *options,
                ),
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
    survival.evaluate(site, *EXACT, "--patients", str(survival.folder / f"{site}.csv"))
    return round(float(np.quantile([float(row["risk"]) for row in survival.patients(site)], share)), 5)


def test_counts_of_classes_are_those_of_the_sites_own_test_patients(classes: Study) -> None:
    pooled_true, pooled_predicted = [], []
    for site in SITES:
        secret = classes.folder / f"{site}.csv"
        classes.evaluate(site, *JOBS, "--patients", str(secret))
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
        survival.evaluate(site, *EXACT, "--cut", f"{cut}", "--patients", str(survival.folder / f"{site}.csv"))
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
        survival.evaluate(site, *EXACT)
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
        (("--method", ""), None, "method '': expected 1 to 64 letters"),
        (("--method", "federated\x1b[2J"), None, r"method 'federated\x1b[2J': expected"),
        (("--method", "m" * 65), None, "expected 1 to 64 letters"),
        ((), "", "site '': expected 1 to 128 letters"),
        ((), "s" * 129, "expected 1 to 128 letters"),
        (("--cut", "-1") * 17, None, "found 17: expected at most 16"),
        (("--cut", "nan"), None, "each a number"),
        (("--kit", "nowhere"), None, "expected --kit to be the site's startup kit"),
    ],
)
def test_what_does_not_fit_is_named(classes: Study, options: tuple[str, ...], name: str | None, words: str) -> None:
    told = classes.evaluate("north", *options, name=name, code=2).output
    assert words in " ".join(told.split())


def kit(folder: Path, policy: dict[str, Any], **data_sets: Path) -> Path:
    private = folder / "kit" / "local" / "fedad"
    private.mkdir(parents=True)
    (private / "policy.yaml").write_text(yaml.safe_dump(policy))
    entries = {name: {"kind": "bags", "folder": str(path)} for name, path in data_sets.items()}
    (private / "catalogue.yaml").write_text(yaml.safe_dump({"version": VERSION, "data_sets": entries}))
    return folder / "kit"


def test_the_least_count_is_the_policys_whatever_the_downloaded_configuration_says(
    classes: Study, survival: Study, tmp_path: Path
) -> None:
    """The job's is 1 there; the name of its data set is the server's word too, so that the folder decides."""

    def least(study: Study, *options: str) -> int:
        told = " ".join(study.evaluate("north", *options).output.split())
        found = read_evaluation(study.folder / "north.json").min_cell
        assert f"k = {found}: fewest patients" in told
        return found

    assert least(survival) == 5
    assert least(survival, *EXACT) == 1
    policy = {"privacy": {"min_cell_count": 4}, "data_sets": {"images": {"min_cell_count": 1}, "own": {}}}
    elsewhere = kit(tmp_path, policy, images=survival.folder / "south", own=survival.folder / "north")
    options = ("--kit", str(elsewhere))
    assert least(survival, *options) == 4
    assert least(survival, *options, "--min-cell", "6") == 6
    assert least(classes, *options) == 4, "a folder of no data set has the strictest rules"
    told = survival.evaluate("north", *options, "--min-cell", "3", code=2).output
    assert "expected this site's privacy.min_cell_count, 4, or more" in " ".join(told.split())
    (elsewhere / "local" / "fedad" / "policy.yaml").write_text("min_cell_count: 4\n")
    assert "min_cell_count" in survival.evaluate("north", *options, code=2).output


def test_a_second_file_of_the_same_patients_that_could_be_subtracted_is_warned_of(survival: Study) -> None:
    (survival.folder / "north.json").unlink(missing_ok=True)
    for options, words in (
        (("--cut", "-2.5"), ""),
        (("--cut", "-2.5"), ""),
        (("--cut", "-2.4"), "by another cut:"),
        (("--cut", "-2.5", *EXACT), "by another cut and another least count:"),
    ):
        told = " ".join(survival.evaluate("north", *options).output.split())
        assert ("can be subtracted from one another" in told) == bool(words)
        assert words in told


@pytest.mark.parametrize(
    ("change", "words"),
    [({"seed": 99}, "trained under another configuration"), ({}, "does not say by which configuration")],
)
def test_a_configuration_that_did_not_train_the_model_is_refused(
    classes: Study, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """With another seed, the patients that it was trained on are called test patients."""
    (tmp_path / "results").mkdir()
    config, model = classes.config.to_json(), tmp_path / "results" / "model.safetensors"
    (tmp_path / "results" / "config.json").write_text(json.dumps(config | change))
    (tmp_path / "north").symlink_to(classes.folder / "north")
    tensors, metadata = read_tensors(classes.folder / "results" / "model.safetensors")
    write_tensors(model, tensors, {key: value for key, value in metadata.items() if change or key != EXPERIMENT})
    told = Study(tmp_path, classes.config).evaluate("north", code=2).output
    assert words in " ".join(told.split())


def test_without_the_rounds_nothing_is_compared_and_the_person_is_told(classes: Study, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name in ("model.safetensors", "config.json"):
        (tmp_path / "results" / name).write_bytes((classes.folder / "results" / name).read_bytes())
    (tmp_path / "north").symlink_to(classes.folder / "north")
    told = "no rounds.jsonl that says how many bags the site trained on"
    assert told in " ".join(Study(tmp_path, classes.config).evaluate("north").output.split())
    assert told not in " ".join(classes.evaluate("north").output.split())


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
        ({"site": "south\x1b]0;pwned\x07"}, "'site'"),
        ({"method": "\x1b[2J"}, "'method'"),
        ({"model_sha256": "b" * 64}, "expected the same model.safetensors at every site"),
        ({"target": {"classes": ["a", "b", "c"]}}, "two different targets"),
    ],
)
def test_files_that_cannot_be_added_up_are_refused(classes: Study, change: dict[str, Any], words: str) -> None:
    for site in SITES:
        classes.evaluate(site, *JOBS)
    content = json.loads((classes.folder / "south.json").read_text())
    (classes.folder / "wrong.json").write_text(json.dumps(content | change))
    told = " ".join(classes.report("north", "wrong", code=2).output.split())
    assert "wrong.json" in told
    assert words in told


def test_a_grid_of_times_that_no_figure_can_show_is_refused(survival: Study) -> None:
    survival.evaluate("north", *EXACT)
    content = json.loads((survival.folder / "north.json").read_text())
    content["risk_sets"]["grids"] = [[-1e308, 1e308, 7]]
    (survival.folder / "wrong.json").write_text(json.dumps(content))
    told = " ".join(survival.report("wrong", code=2).output.split())
    assert "expected finite bounds from -1e15 to 1e15" in told


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a", b"\x89PNG\r\n\x1a\n nothing", "a.heatmap.png: cannot be read as a picture"),
        ("../a", b"", "expected a folder that fedad slides heatmap wrote"),
    ],
)
def test_pictures_that_are_none_are_named(
    classes: Study, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    classes.evaluate("north", *JOBS)
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "scores.csv").write_text(f"slide,x,y,attention,percentile\n{name},0,0,1,100\n")
    for kind in ("heatmap", "patches"):
        (tmp_path / "maps" / f"{name}.{kind}.png").write_bytes(content)
    arguments = ["slides", "report", str(classes.folder / "north.json"), "--out", str(tmp_path / "report.html")]
    result = CliRunner().invoke(app, [*arguments, "--heatmaps", str(tmp_path / "maps")])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_a_configuration_that_is_nested_too_deeply_is_refused(classes: Study, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "config.json").write_text('{"a":' * 100_000)
    told = Study(tmp_path, classes.config).evaluate("north", code=2).output
    assert "config.json: nested too deeply" in " ".join(told.split())


def test_a_site_that_comes_twice_is_refused(classes: Study) -> None:
    classes.evaluate("north")
    (classes.folder / "north2.json").write_bytes((classes.folder / "north.json").read_bytes())
    assert "comes twice" in " ".join(classes.report("north", "north2", code=2).output.split())


def test_pairs_of_scores_are_the_area() -> None:
    generator = np.random.default_rng(0)
    scores, positive = np.round(generator.random(80), 1), generator.random(80) < 0.4
    assert score_pairs(scores, positive).c_index == pytest.approx(roc_auc_score(positive, scores))
    assert score_pairs(scores, positive, least=int(positive.sum()) + 1).c_index is None
