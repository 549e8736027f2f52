"""A site's bags on disk: what was prepared is what is trained on, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
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
from fedad_components.slides.bags import INDEX, load_bags
from fedad_components.slides.reader import SlidesError
from fedad_components.slides.store import StoredFeatures, write_features

CLASSES = HistoFLConfig.parse({"model": {"in_features": 5}, "target": {"classes": ["no", "yes"]}})
ENCODER = {"name": "resnet50", "weights_sha256": "a" * 64, "random_weights": False}
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
        ({"slide": "../../bb"}, r"'bags\.0\.slide'"),
        ({"slide": "b\x1b[2J"}, r"'bags\.0\.slide'"),
        ({"file": "../000000.safetensors"}, r"'bags\.0\.file'"),
        ({"file": "a/../../000000.safetensors"}, r"'bags\.0\.file'"),
        ({"file": "/etc/passwd"}, r"'bags\.0\.file'"),
        ({"file": "f" * 300}, r"'bags\.0\.file'.*at most 200"),
        ({"file": 3}, r"'bags\.0\.file'.*string"),
        ({"sha256": "a"}, r"'bags\.0\.sha256'"),
        ({"patient": ["p"]}, r"'bags\.0\.patient'"),
        ({"patient": {}}, r"'bags\.0\.patient'"),
        ({"label": ["no"]}, r"'bags\.0\.label'"),
        ({"time": True}, r"'bags\.0\.time'"),
        ({"time": 10**400}, r"'bags\.0\.time'"),
        ({"time": float("nan")}, r"bags\.json"),
        ({"event": 1}, r"'bags\.0\.event'"),
        ({"name": "Smith"}, r"'bags\.0\.name'"),
        *(({key: None}, rf"'bags\.0\.{key}'") for key in ("slide", "file", "sha256")),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    data_set = prepared(tmp_path, [bag("a", "p", 1), bag("bb", "q", 0)])
    content = json.loads((tmp_path / INDEX).read_text())
    content["bags"][0].update(change)
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(CatalogueError, match=problem):
        open_bags(data_set, CLASSES)


@pytest.mark.parametrize("key", ["slide", "patient", "label", "time", "event", "file", "sha256"])
def test_an_index_that_lacks_a_key_is_refused(tmp_path: Path, key: str) -> None:
    data_set = prepared(tmp_path, [bag("a", "p", 1)])
    content = json.loads((tmp_path / INDEX).read_text())
    del content["bags"][0][key]
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(CatalogueError, match=rf"'bags\.0\.{key}': Field required"):
        open_bags(data_set, CLASSES)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, '{"format": 1, "bags": [' + "[" * 5000 + "]" * 5000 + "]}", "\xff", "3", ""],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_bytes(text.encode("latin-1"))
    with pytest.raises(CatalogueError, match=r"bags\.json: .*expected a folder that 'fedad slides prepare' wrote"):
        open_bags(DataSet(id="slides", kind="bags", folder=tmp_path), CLASSES)


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    """Nor by a link; a folder that is a link itself is taken for what it leads to."""
    prepared(tmp_path / "bags", [bag("a", "p", 1)])
    (tmp_path / "link").symlink_to(tmp_path / "bags")
    assert len(open_bags(DataSet(id="slides", kind="bags", folder=tmp_path / "link"), CLASSES).rows) == 1
    (file,) = (tmp_path / "bags").glob("*.safetensors")
    (tmp_path / "elsewhere.safetensors").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(CatalogueError, match="link that leads out of the folder"):
        open_bags(DataSet(id="slides", kind="bags", folder=tmp_path / "bags"), CLASSES)


@pytest.mark.parametrize("kind", [np.float64, np.int8, np.bool_])
def test_features_of_another_type_are_refused(tmp_path: Path, kind: type) -> None:
    prepared(tmp_path, [bag("a", "p", 1)])
    (file,) = tmp_path.glob("*.safetensors")
    write_features(file, StoredFeatures(np.ones((3, 5), kind), np.zeros((3, 2), np.int64), {}))
    content = json.loads((tmp_path / INDEX).read_text())
    content["bags"][0]["sha256"] = sha256_of(file)
    (tmp_path / INDEX).write_text(json.dumps(content))
    with pytest.raises(SlidesError, match="expected float32 or float16"):
        next(load_bags(tmp_path))
    bags = open_bags(DataSet(id="slides", kind="bags", folder=tmp_path), CLASSES)
    with pytest.raises(FeaturesError, match="cannot be read"):
        bags.bag(bags.rows[0])


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


@pytest.mark.parametrize("encoder", [None, ENCODER | {"weights_sha256": "b" * 64}])
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
    (tmp_path / INDEX).write_text(json.dumps(content | {"encoder": ENCODER}))
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
