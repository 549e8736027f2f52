"""A site's bags on disk: what was prepared is what is trained on, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedad_components.algorithms import algorithm_of, initial_state
from fedad_components.files import sha256_of
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.imaging.ingest import ingest
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.site_bags import FeaturesError, open_bags, write_bags
from fedad_components.mil.state import load_bag_model
from fedad_components.slides.bags import INDEX

CLASSES = HistoFLConfig.parse({"model": {"in_features": 5}, "target": {"classes": ["no", "yes"]}})
SURVIVAL = HistoFLConfig.parse({"model": {"in_features": 5}, "target": {"kind": "survival"}})


def bag(slide: str, patient: str, target: int | Outcome, patches: int = 3) -> Bag:
    return Bag(slide, patient, torch.randn(patches, 5, generator=torch.Generator().manual_seed(len(slide))), target)


def prepared(folder: Path, bags: list[Bag]) -> DataSet:
    write_bags(folder, bags, ("no", "yes"))
    return DataSet(id="slides", kind="bags", folder=folder)


def test_bags_come_back_as_they_were_written(tmp_path: Path) -> None:
    given = [bag("a", "p", 1), bag("bb", "p", 1, 4), bag("ccc", "q", 0)]
    bags = open_bags(prepared(tmp_path, given), CLASSES)
    for row, expected in zip(bags.rows, given, strict=True):
        found = bags.bag(row)
        assert (found.id, found.patient, found.target) == (expected.id, expected.patient, expected.target)
        assert torch.equal(found.features, expected.features)
    assert bags.labels == {"p": 1, "q": 0}


def test_survival_has_one_bag_a_patient(tmp_path: Path) -> None:
    outcome = Outcome(7.0, True)
    given = [bag("a", "p", outcome), bag("bb", "q", Outcome(9.0, False)), bag("ccc", "p", outcome, 4)]
    bags = open_bags(prepared(tmp_path, given), SURVIVAL)
    assert [(row.id, row.target) for row in bags.rows] == [("p", outcome), ("q", Outcome(9.0, False))]
    assert torch.equal(bags.bag(bags.rows[0]).features, torch.cat([given[0].features, given[2].features]))


def test_a_patient_with_two_outcomes_is_refused(tmp_path: Path) -> None:
    given = [bag("a", "p", Outcome(7.0, True)), bag("bb", "p", Outcome(8.0, True))]
    with pytest.raises(CatalogueError, match="different outcomes"):
        open_bags(prepared(tmp_path, given), SURVIVAL)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"label": "maybe"}, "bag 0: the label is none of target.classes"),
        ({"slide": "bb"}, "a slide twice"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    data_set = prepared(tmp_path, [bag("a", "p", 1), bag("bb", "q", 0)])
    content = json.loads((tmp_path / INDEX).read_text())
    content["bags"][0].update(change)
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(CatalogueError, match=problem):
        open_bags(data_set, CLASSES)


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    bags = open_bags(prepared(tmp_path, [bag("a", "p", 1)]), CLASSES)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(FeaturesError, match="changed"):
        bags.bag(bags.rows[0])


def test_features_of_another_encoder_are_refused(tmp_path: Path) -> None:
    other = HistoFLConfig.parse({"target": {"classes": ["no", "yes"]}})
    bags = open_bags(prepared(tmp_path, [bag("a", "p", 1)]), other)
    with pytest.raises(FeaturesError, match=r"model\.in_features = 1024"):
        bags.bag(bags.rows[0])


def test_bags_are_no_images_and_images_no_bags(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="holds images"):
        open_bags(DataSet(id="slides", folder=tmp_path), CLASSES)
    with pytest.raises(CatalogueError, match="holds bags"):
        ingest(DataSet(id="slides", kind="bags", folder=tmp_path), tmp_path / "cache", 32)
    with pytest.raises(ValueError, match="folder, and units, alone"):
        DataSet(id="slides", kind="bags", folder=tmp_path, pattern=("*.png",))


@pytest.mark.parametrize("encoder", [None, {"weights_sha256": "b" * 64}])
def test_features_of_another_encoder_than_the_jobs_are_refused(
    tmp_path: Path, encoder: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the same length, they would be averaged."""
    wanted = HistoFLConfig.parse(
        {"model": {"in_features": 5, "encoder_sha256": "a" * 64}, "target": {"classes": ["no", "yes"]}}
    )
    data_set = prepared(tmp_path, [bag("a", "p", 1)])
    content = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(content | {"encoder": encoder}))
    with pytest.raises(CatalogueError, match=r"a{64} \(model\.encoder_sha256\): prepare the slides with that one"):
        open_bags(data_set, wanted)
    with caplog.at_level("WARNING", "fedad.worker"):
        assert len(open_bags(data_set, CLASSES).rows) == 1
    assert "b" * 64 in caplog.text or "unknown" in caplog.text
    (tmp_path / INDEX).write_text(json.dumps(content | {"encoder": {"weights_sha256": "a" * 64}}))
    assert len(open_bags(data_set, wanted).rows) == 1


def test_a_file_that_is_none_of_features_is_refused_without_its_name(tmp_path: Path) -> None:
    prepared(tmp_path, [bag("a", "p", 1)])
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(b"nothing")
    content = json.loads((tmp_path / INDEX).read_text())
    content["bags"][0]["sha256"] = sha256_of(file)
    (tmp_path / INDEX).write_text(json.dumps(content))
    bags = open_bags(DataSet(id="slides", kind="bags", folder=tmp_path), CLASSES)
    with pytest.raises(FeaturesError, match="cannot be read") as error:
        bags.bag(bags.rows[0])
    assert file.name not in str(error.value)


@pytest.mark.parametrize("digest", [None, "a" * 64])
def test_the_exported_model_says_whose_features_it_needs(tmp_path: Path, digest: str | None) -> None:
    config = HistoFLConfig.parse({"model": {"in_features": 5, "encoder_sha256": digest}})
    algorithm_of(config).save_model(tmp_path / "model.safetensors", initial_state(config), config, {})
    assert load_bag_model(tmp_path / "model.safetensors").encoder_sha256 == digest
