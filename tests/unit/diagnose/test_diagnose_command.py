"""`fedad diagnose` from files: an extractor, a catalogue and a site's private state."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.config import FedADConfig
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.site_vectors import read_head, site_vectors
from fedad_components.fedsd.model import build_extractor, build_head, build_projection, split
from fedad_components.fedsd.state import StateError, save_extractor, wire_state
from fedad_components.fedsd.style import style_statistics
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.files import write_tensors

CONFIG = FedADConfig.parse({"seed": 3, "model": {"image_size": 32}})
N = 12


def pictures(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (N, 37, 37, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diagnose")
    extractor = build_extractor(CONFIG.model, CONFIG.seed)
    extractor.bn1.running_mean.fill_(0.5)  # as if it had been trained
    save_extractor(folder / "extractor.safetensors", wire_state(extractor), CONFIG)
    save_extractor(folder / "local.safetensors", wire_state(extractor, norm="local"), local_config())
    (folder / "images").mkdir()
    for index, image in enumerate(pictures(0)):
        Image.fromarray(image).save(folder / "images" / f"{index}.png")
    rows = [f"{index}.png,{'even' if index % 2 == 0 else 'odd'},Doe{index}" for index in range(N)]
    (folder / "labels.csv").write_text("\n".join(["file,label,patient", *rows]))
    (folder / "catalogue.yaml").write_text(
        "version: 1\ndata_sets:\n  images:\n    folder: images\n"
        "    table: {file: labels.csv, label: label, patient: patient}\n"
    )
    trainer = LocalTrainer(CONFIG, pictures(0), "a", device="cpu")
    write_tensors(folder / "round-000000.safetensors", trainer.site_state(), {"round": "0", "identity": "x"})
    return folder


def local_config() -> FedADConfig:
    return FedADConfig.parse({"seed": 3, "model": {"image_size": 32, "norm": "local"}})


def run(folder: Path, *options: str, extractor: str = "extractor.safetensors"):
    return CliRunner().invoke(app, ["diagnose", str(folder / extractor), "--set", "seed=3", *options])


def site(folder: Path, name: str) -> list[str]:
    """Both sites have the same images: decoding them a second time would only cost time."""
    return ["--site", f"{name}={folder / 'catalogue.yaml'}:images"]


def test_two_sites_one_with_its_head(folder: Path) -> None:
    head = ["--head", f"a={folder / 'round-000000.safetensors'}"]
    figure = folder / "bars.svg"
    result = run(folder, *site(folder, "a"), *site(folder, "b"), *head, "--figure", str(figure), "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["heads"] == ["a", "random"]
    assert [(item["site"], item["head"], item["images"]) for item in content["sites"]] == [
        ("a", "a", N),
        ("b", "random", N),
    ]
    assert content["site"]["chance"] == content["label"]["chance"] == 0.5
    assert any("b: no head was given" in note for note in content["notes"])
    assert "Doe" not in result.output
    assert ".png" not in result.output
    assert "<svg" in figure.read_text()


def test_the_table_states_chance_and_nulls(folder: Path) -> None:
    result = run(folder, *site(folder, "a"), *site(folder, "b"), "--no-mine")
    assert result.exit_code == 0, result.output
    for text in ("0.50 ±", "null 0", "two images", "floor", "one random, untrained head", "shuffled"):
        assert text in result.stdout


def test_local_statistics_are_measured_where_no_state_gives_them(folder: Path) -> None:
    result = run(folder, *site(folder, "a"), "--no-mine", "--json", extractor="local.safetensors")
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout)
    plain = run(folder, *site(folder, "a"), "--no-mine", "--json")
    assert measured["sites"][0]["pairwise_z_g"] != json.loads(plain.stdout)["sites"][0]["pairwise_z_g"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--site", "a"], "--site 'a': expected NAME=CATALOGUE:ID"),
        (["--site", "a=x.yaml"], "expected NAME=CATALOGUE:ID, such as a=catalogue.yaml:images"),
        (["--site", "a=x.yaml:i", "--site", "a=y.yaml:i"], "--site a: given twice"),
        (["--site", "a=x.yaml:i", "--head", "b=file"], "--head b: no such site: expected one of a"),
        (["--site", "a=absent.yaml:i"], "absent.yaml: cannot be read"),
        (["--site", "a=x.yaml:i", "--head", "a=absent.safetensors"], "absent.safetensors: cannot be read"),
    ],
)
def test_wrong_options_are_named(folder: Path, options: list[str], message: str) -> None:
    result = run(folder, *options)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_vectors_are_those_of_each_image_alone() -> None:
    extractor, head = build_extractor(CONFIG.model, 3).eval(), build_head(3, "a").eval()
    projection, images = build_projection(3), pictures(0)
    got = site_vectors("a", images, extractor, {"a": head}, projection, CONFIG.views, 32, seed=1, batch_size=5)
    h = torch.from_numpy(extract_features(extractor, images, 32, batch_size=1))
    with torch.no_grad():
        z_s, z_d = split(head(h))
        np.testing.assert_allclose(got.halves["a"].z_s, z_s, atol=1e-4)
        np.testing.assert_allclose(got.halves["a"].z_d, z_d, atol=1e-4)
        np.testing.assert_allclose(got.z_g, projection(h), atol=1e-4)
        np.testing.assert_allclose(got.style, style_statistics(torch.from_numpy(images)), atol=1e-4)
    assert got.views.shape == (2, N, 128)
    assert not np.allclose(got.views[0], got.views[1])
    assert got.thumbnails.shape == (N, 768)
    again = site_vectors("a", images, extractor, {"a": head}, projection, CONFIG.views, 32, seed=1, batch_size=5)
    np.testing.assert_array_equal(got.views, again.views)
    np.testing.assert_allclose(got.thumbnails.mean(), images.mean() / 255, atol=5e-3)


def test_a_head_is_read_back_and_local_statistics_with_it(folder: Path, tmp_path: Path) -> None:
    head, statistics = read_head(folder / "round-000000.safetensors", CONFIG)
    expected = build_head(CONFIG.seed, "a").state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in head.state_dict().items())
    assert statistics == {}
    trainer = LocalTrainer(local_config(), pictures(0), "a", device="cpu")
    trainer.has_statistics = True
    write_tensors(tmp_path / "state", trainer.site_state(), {})
    _, statistics = read_head(tmp_path / "state", CONFIG)
    assert "bn1.running_mean" in statistics
    write_tensors(tmp_path / "other", {"head.0.weight": torch.zeros(2)}, {})
    with pytest.raises(StateError, match=r"other: a site's private state: .* missing"):
        read_head(tmp_path / "other", CONFIG)
