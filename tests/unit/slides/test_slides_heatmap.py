"""From a slide to its heatmap: by the command, and the errors of what does not fit together."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from slide_files import small_encoder, tissue_picture, write_pyramid
from typer.testing import CliRunner, Result

from fedad_components.cli import app
from fedad_components.fedsd.state import StateError, read_tensors
from fedad_components.files import write_tensors
from fedad_components.mil.attention import HeatmapError, score_bag
from fedad_components.mil.model import GatedAttentionMIL
from fedad_components.mil.state import load_bag_model
from fedad_components.slides.bags import load_bags, prepared_slides
from fedad_components.slides.catalogue import load_catalogue
from fedad_components.slides.prepare import Settings, prepare

CLASSES = {"kind": "classification", "classes": ["normal", "tumour"]}


def save_model(path: Path, in_features: int = 6, **metadata: str) -> Path:
    torch.manual_seed(1)
    state = GatedAttentionMIL(in_features, 2).state_dict()
    described = {"in_features": str(in_features), "outputs": "2", "target": json.dumps(CLASSES)}
    write_tensors(path, state, described | metadata)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two slides with scanner tags and telling names, prepared; a model."""
    folder = tmp_path_factory.mktemp("heatmap")
    (folder / "scans").mkdir()
    for seed, name in enumerate(("Smith John 1.tif", "Jones Mary 2.tif")):
        picture = tissue_picture(640, 512 + 64 * seed, (64, 64, 512, 448), seed=seed)
        write_pyramid(folder / "scans" / name, picture, levels=(1, 4))
    (folder / "slides.csv").write_text(
        "slide,slide_id,patient_id\nscans/Smith John 1.tif,SECRET-1,P1\nscans/Jones Mary 2.tif,SECRET-2,P2\n"
    )
    entries = load_catalogue(folder / "slides.csv")
    settings = Settings("biopsy", min_area=0.0, side=64)
    prepare(entries, folder / "features", small_encoder(), settings, device=torch.device("cpu"), workers=1)
    save_model(folder / "model.safetensors")
    return folder


def run(folder: Path, out: Path, slides: str = "slides.csv", model: str = "model.safetensors", *more: str) -> Result:
    paths = ["--features", str(folder / "features"), "--model", str(folder / model), "--out", str(out)]
    return CliRunner().invoke(app, ["slides", "heatmap", str(folder / slides), *paths, *more])


def test_pictures_scores_and_report_of_a_catalogue(folder: Path, tmp_path: Path) -> None:
    result = run(folder, tmp_path / "maps")
    assert result.exit_code == 0, result.output
    first, second = prepared_slides(folder / "features")
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == sorted(
        [f"{slide}.{kind}.png" for slide in (first, second) for kind in ("heatmap", "patches")]
        + ["report.html", "scores.csv"]
    )
    with (tmp_path / "maps" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["slide", "x", "y", "attention", "percentile"]
    model = GatedAttentionMIL(6, 2).eval()
    model.load_state_dict(load_bag_model(folder / "model.safetensors").module.state_dict())
    for bag in load_bags(folder / "features"):
        own = [row for row in rows if row["slide"] == bag.slide]
        assert [[int(row["x"]), int(row["y"])] for row in own] == bag.coordinates.tolist()
        with torch.no_grad():
            expected = model(torch.from_numpy(bag.features)).attention
        assert [float(row["attention"]) for row in own] == pytest.approx(expected.tolist(), rel=1e-5)
        assert max(float(row["percentile"]) for row in own) == 100.0
    for path in (tmp_path / "maps").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_no_name_and_no_tag_is_in_what_is_written_or_printed(folder: Path, tmp_path: Path) -> None:
    result = run(folder, tmp_path / "maps")
    words = ("Smith", "Jones", "SECRET", "doctor-who", "SCANNER7", "ScanScope", "12/29/09", "2009:12:29", ".tif", "P1")
    written = {path.name: path.read_bytes() for path in (tmp_path / "maps").iterdir()}
    pictures = {name for name in written if name.endswith(".png")}
    assert len(pictures) == 4
    assert all(Image.open(tmp_path / "maps" / name).info == {} for name in pictures)
    for word in words:
        assert word not in result.output
        # Compressed pixels hold any two letters by chance.
        readable = [content for name, content in written.items() if name not in pictures or len(word) > 4]
        if len(word) > 2:
            assert not any(word.encode() in content for content in readable), word
        assert word.encode() not in written["scores.csv"]


def test_one_slide_by_its_file_or_out_of_the_catalogue(folder: Path, tmp_path: Path) -> None:
    first, second = prepared_slides(folder / "features")
    assert run(folder, tmp_path / "a", "slides.csv", "model.safetensors", "--slide", second).exit_code == 0
    assert run(folder, tmp_path / "b", "scans/Jones Mary 2.tif", "model.safetensors", "--slide", second).exit_code == 0
    for name in (f"{second}.heatmap.png", f"{second}.patches.png", "scores.csv", "report.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not (tmp_path / "a" / f"{first}.heatmap.png").exists()


def test_the_sheet_shows_the_slides_own_pixels(folder: Path, tmp_path: Path) -> None:
    (slide, _) = prepared_slides(folder / "features")
    assert run(folder, tmp_path, "slides.csv", "model.safetensors", "--slide", slide, "--top", "1").exit_code == 0
    (bag,) = load_bags(folder / "features", {slide})
    found = score_bag(bag, load_bag_model(folder / "model.safetensors"))
    x, y = bag.coordinates[found.attention.argmax()]
    picture = tissue_picture(640, 512, (64, 64, 512, 448), seed=0)[y : y + 64, x : x + 64]
    sheet = np.asarray(Image.open(tmp_path / f"{slide}.patches.png"))
    assert (sheet[52:116, 16:80] == picture).all()


def test_what_does_not_fit_is_named(folder: Path, tmp_path: Path) -> None:
    first, second = prepared_slides(folder / "features")
    save_model(folder / "wide.safetensors", in_features=7)
    save_model(folder / "other.safetensors", encoder_sha256="a" * 64)
    (folder / "others.csv").write_text("slide,slide_id,patient_id\nscans/Smith John 1.tif,OTHER,P1\n")
    one = "scans/Smith John 1.tif"
    cases = {
        ("slides.csv", "wide.safetensors"): (first, "6 features", "'small'", "expects 7"),
        ("slides.csv", "other.safetensors"): (first, "0" * 64, "a" * 64),
        ("slides.csv", "model.safetensors", "--encoder-sha256", "b" * 64): (first, "b" * 64),
        ("slides.csv", "model.safetensors", "--slide", "f" * 16): ("f" * 16, "bags.json"),
        ("others.csv", "model.safetensors"): ("not in the catalogue", "--key"),
        (one, "model.safetensors"): ("2 slides", "--slide"),
        (one, "model.safetensors", "--slide", second): (second, "640 x 576", "640 x 512"),
        ("slides.csv", "slides.csv"): ("slides.csv", "safetensors"),
    }
    for arguments, words in cases.items():
        result = run(folder, tmp_path / "maps", *arguments)
        assert result.exit_code == 2, (arguments, result.output)
        told = " ".join(result.output.split())
        assert all(word in told for word in words), (words, told)
        assert "Smith" not in told
    assert not (tmp_path / "maps" / "scores.csv").exists()
    assert (
        run(folder, tmp_path / "maps", "slides.csv", "model.safetensors", "--encoder-sha256", "0" * 64).exit_code == 0
    )


def test_a_slide_that_is_gone_is_left_out_with_its_reason(folder: Path, tmp_path: Path) -> None:
    (folder / "gone.csv").write_text(
        "slide,slide_id,patient_id\nscans/gone.tif,SECRET-1,P1\nscans/Jones Mary 2.tif,SECRET-2,P2\n"
    )
    first, second = prepared_slides(folder / "features")
    result = run(folder, tmp_path, "gone.csv")
    assert result.exit_code == 1
    assert f"{first}: missing" in " ".join(result.output.split())
    assert (tmp_path / f"{second}.heatmap.png").is_file()
    assert not (tmp_path / f"{first}.heatmap.png").exists()


def test_features_that_are_not_finite_or_of_no_slide_are_refused(folder: Path) -> None:
    bag = next(load_bags(folder / "features"))
    with pytest.raises(HeatmapError, match="no slide to draw on"):
        score_bag(bag._replace(metadata={}), load_bag_model(folder / "model.safetensors"))
    features = bag.features.copy()
    features[0, 0] = np.nan
    with pytest.raises(HeatmapError, match=rf"slide {bag.slide}: .*finite"):
        score_bag(bag._replace(features=features), load_bag_model(folder / "model.safetensors"))


def test_a_models_file_says_what_it_predicts(folder: Path, tmp_path: Path) -> None:
    model = load_bag_model(folder / "model.safetensors")
    assert model.describe(torch.tensor([0.0, np.log(3.0)])) == "predicted tumour, probability 0.750"
    survival = replace(model, classes=())
    assert survival.describe(torch.zeros(2)) == "predicted risk -0.750, from -2 (low) to 0 (high)"
    for metadata in (
        {"target": "{}"},
        {"target": "[" * 100_000},
        {"target": json.dumps(CLASSES | {"classes": "ab"})},
        {"target": json.dumps(CLASSES | {"classes": ["a", "a"]})},
        {"outputs": "3"},
        {"in_features": "x"},
        {"in_features": "-1"},
        {"in_features": "9" * 30},
        {"in_features": "9" * 5000},
    ):
        state = model.module.state_dict()
        described = {"in_features": "6", "outputs": "2", "target": json.dumps(CLASSES)}
        write_tensors(tmp_path / "bad.safetensors", state, described | metadata)
        with pytest.raises(StateError, match=r"bad\.safetensors: the metadata"):
            load_bag_model(tmp_path / "bad.safetensors")
    save_model(tmp_path / "bad.safetensors", in_features=9)
    state = load_bag_model(tmp_path / "bad.safetensors").module.state_dict()
    described = {"in_features": "6", "outputs": "2", "target": json.dumps(CLASSES)}
    write_tensors(tmp_path / "bad.safetensors", state, described)
    with pytest.raises(StateError, match="6 features"):
        load_bag_model(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    "change", [lambda tensor: tensor.double(), lambda tensor: tensor.half(), lambda tensor: tensor / 0]
)
def test_weights_that_no_job_exports_are_refused(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    save_model(tmp_path / "bad.safetensors")
    tensors, metadata = read_tensors(tmp_path / "bad.safetensors")
    write_tensors(tmp_path / "bad.safetensors", {name: change(tensor) for name, tensor in tensors.items()}, metadata)
    with pytest.raises(StateError, match="expected finite tensors of float32"):
        load_bag_model(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("key", ["encoder", "slide_mpp", "slide_size", "patch_size", "patch_mpp", "footprint"])
@pytest.mark.parametrize("value", [None, "x", {"name": 3}])
def test_features_that_do_not_say_how_they_were_prepared_are_refused(folder: Path, key: str, value: Any) -> None:
    bag, model = next(load_bags(folder / "features")), load_bag_model(folder / "model.safetensors")
    with pytest.raises(HeatmapError, match=rf"no usable {key}.*prepare it again"):
        score_bag(bag._replace(metadata=bag.metadata | {key: value}), model)
    with pytest.raises(HeatmapError, match=f"no usable {key}"):
        score_bag(bag._replace(metadata={name: bag.metadata[name] for name in bag.metadata if name != key}), model)


def test_pictures_are_written_nowhere_else(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "study")
    index = tmp_path / "study" / "features" / "bags.json"
    content = json.loads(index.read_text())
    content["bags"][0]["slide"] = "../../outside"
    index.write_text(json.dumps(content))
    result = run(tmp_path / "study", tmp_path / "maps")
    assert result.exit_code == 2
    assert "bags.0.slide" in result.output
    assert not list(tmp_path.rglob("outside*"))


def test_a_scanners_slide(real_slides: Path, tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text(f"slide,slide_id,patient_id\n{real_slides / 'CMU-1-Small-Region.svs'},S,P\n")
    entries = load_catalogue(tmp_path / "slides.csv")
    prepare(entries, tmp_path / "features", small_encoder(), Settings("biopsy"), device=torch.device("cpu"), workers=1)
    save_model(tmp_path / "model.safetensors")
    result = run(tmp_path, tmp_path / "maps")
    assert result.exit_code == 0, result.output
    picture = Image.open(tmp_path / "maps" / f"{entries[0].slide}.heatmap.png")
    assert min(picture.size) > 1000
    text = re.sub('base64,[^"]*', "", (tmp_path / "maps" / "report.html").read_text(encoding="utf-8"))
    assert not any(word in text for word in ("CMU", ".svs", "Aperio", "12/29/09"))
