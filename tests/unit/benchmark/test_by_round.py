"""Scores after each round, at each laboratory: those of the weights that the round left."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage import data

from fedad_components.benchmark.by_round import ByRound
from fedad_components.benchmark.figures import draw_all
from fedad_components.benchmark.logged import RunsError, read_runs
from fedad_components.benchmark.wbc import Laboratories
from fedad_components.config import FedADConfig
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.folds import folds
from fedad_components.evaluation.images import LabelledFeatures, LabelledImages
from fedad_components.evaluation.protocols import neighbours_within
from fedad_components.fedsd.state import load_extractor, save_extractor
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.records import append_record
from fedad_components.simulation import Simulation

CONFIG = FedADConfig.parse(
    {
        "seed": 5,
        "method": "fedavg_ssl",  # its head is part of theta, and no part of the extractor
        "model": {"image_size": 32, "base_channels": 32},
        "training": {"epochs": 1, "batch_size": 8},
        "federation": {"rounds": 2, "min_sites": 2},
    }
)
PICTURES = {"north": data.immunohistochemistry(), "south": data.retina()[300:1100, 300:1100], "east": data.astronaut()}


def laboratory(name: str) -> LabelledImages:
    """16 tiles, half from the picture's left and half from its right."""
    generator, picture = np.random.default_rng(0), PICTURES[name]
    corners = generator.integers(0, 150, (16, 2)) + np.repeat([[0, 0], [0, 300]], 8, axis=0)
    tiles = np.stack([picture[row : row + 36, column : column + 36] for row, column in corners])
    return LabelledImages(name, tiles, ["left"] * 8 + ["right"] * 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG.to_json()))
    laboratories = Laboratories((laboratory("north"), laboratory("south")), laboratory("east"), {})
    trainers = {site.name: LocalTrainer(CONFIG, site.images, site.name) for site in laboratories.sources}
    simulation = Simulation(CONFIG, trainers)
    probe = ByRound(folder, CONFIG, laboratories, torch.device("cpu"))
    for _ in range(CONFIG.federation.rounds):
        record = simulation.run_round()
        append_record(folder / "rounds.jsonl", record)
        probe(record.round, simulation.theta)
    save_extractor(folder / "extractor.safetensors", simulation.theta, CONFIG)
    return folder


def test_the_last_round_is_the_exported_extractor(run: Path) -> None:
    (logged,) = read_runs([run])
    assert [(point.round, point.laboratory, point.unseen) for point in logged.by_round] == [
        (t, name, name == "east") for t in range(2) for name in ("north", "south", "east")
    ]
    extractor = load_extractor(run / "extractor.safetensors")
    for point in logged.by_round[3:]:
        images = laboratory(point.laboratory)
        features = images.features(extract_features(extractor, images.images, 32))
        assert point.scores == neighbours_within(features, CONFIG.seed)


def test_each_image_is_judged_by_its_neighbours_in_the_other_folds() -> None:
    generator = np.random.default_rng(1)
    labels = [str(number) for number in generator.integers(0, 3, 90)]
    x = generator.normal(size=(90, 4)) + np.array([[2.0 * (name == "1"), 2.0 * (name == "2"), 1, 0] for name in labels])
    features = LabelledFeatures("somewhere", x, labels, np.arange(90) // 3)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    right = 0
    for train, test in folds(features, 5, 0, "cross-validation"):
        for row in test:
            similarity = unit[train] @ unit[row]
            votes = {"0": 0.0, "1": 0.0, "2": 0.0}
            for place in np.argsort(-similarity)[:20]:
                votes[labels[train[place]]] += np.exp(similarity[place] / 0.07)
            right += max(votes, key=lambda name: votes[name]) == labels[row]
    assert neighbours_within(features, 0).accuracy == pytest.approx(right / 90)
    assert 45 < right < 90


def test_figure_12_shows_those_scores(run: Path, tmp_path: Path) -> None:
    runs = read_runs([run])
    assert "12_site_accuracy" in draw_all(runs, [], tmp_path, "accuracy").files
    with (tmp_path / "12_site_accuracy.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [point.scores.accuracy for point in runs[0].by_round]
    assert [row["site"] for row in rows[:3]] == ["north", "south", "east (unseen)"]


def test_a_damaged_line_is_named_and_half_a_line_is_not_read(run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "rounds.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    whole = (run / "by_round.jsonl").read_text()
    (tmp_path / "by_round.jsonl").write_text(whole + whole[:20])
    assert len(read_runs([tmp_path])[0].by_round) == 6
    (tmp_path / "by_round.jsonl").write_text(whole + '{"round": 2}\n')
    with pytest.raises(RunsError, match=r"by_round.jsonl, line 7: expected the scores of a laboratory"):
        read_runs([tmp_path])
