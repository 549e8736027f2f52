"""From a catalogue to bags: features against a slow loop, the account, resuming, and that nothing of the file leaks."""

from __future__ import annotations

import errno
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openslide
import pytest
import torch
from PIL import Image
from slide_files import small_encoder, tissue_picture, write_pyramid
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.files import sha256_of
from fedad_components.imaging.account import Reason
from fedad_components.slides.account import SlideAccount
from fedad_components.slides.bags import load_bags, read_index
from fedad_components.slides.catalogue import SlideEntry, load_catalogue
from fedad_components.slides.encoder import Encoder
from fedad_components.slides.prepare import Settings, prepare
from fedad_components.slides.reader import SlidesError
from fedad_components.slides.store import read_features

CPU = torch.device("cpu")
PICTURE = tissue_picture(1024, 768, (128, 128, 640, 512))
"""6 by 8 patches of 64 pixels are tissue."""
SETTINGS = Settings("biopsy", min_area=0.01, side=64, min_tissue=0.25)
"""A quarter: the median takes the piece's corners off."""


def catalogue(folder: Path, lines: Sequence[str]) -> list[SlideEntry]:
    path = folder / "slides.csv"
    path.write_text("slide,slide_id,patient_id,label,time,event,mpp\n" + "\n".join(lines), encoding="utf-8")
    return load_catalogue(path)


def run(entries: list[SlideEntry], out: Path, encoder: Encoder | None = None, **keys: Any) -> SlideAccount:
    options = {"settings": SETTINGS, "device": CPU, "batch_size": 7, "workers": 3} | keys
    return prepare(entries, out, encoder or small_encoder(), **options)


@pytest.fixture
def two(tmp_path: Path) -> list[SlideEntry]:
    write_pyramid(tmp_path / "Smith John.tif", PICTURE)
    write_pyramid(tmp_path / "b.tif", tissue_picture(512, 512, (0, 0, 512, 512), seed=1))
    return catalogue(tmp_path, ["Smith John.tif,SLIDE-1,Smith,tumour,4.5,0,", "b.tif,SLIDE-2,Jones,normal,3,1,"])


def test_features_are_those_of_a_slow_loop(two: list[SlideEntry], tmp_path: Path) -> None:
    account = run(two, tmp_path / "out")
    first, second = load_bags(tmp_path / "out")
    listed = read_index(tmp_path / "out").encoder
    assert listed is not None
    assert listed.model_dump() == account.encoder == small_encoder().to_json()
    expected = [(x, y) for y in range(128, 512, 64) for x in range(128, 640, 64)]
    assert first.coordinates.tolist() == [list(corner) for corner in expected]
    assert len(second.coordinates) == 64
    encoder = small_encoder()
    for (x, y), features in zip(expected, first.features, strict=True):
        patch = torch.from_numpy(PICTURE[y : y + 64, x : x + 64].copy())[None]
        assert np.allclose(encoder(patch)[0].numpy(), features, atol=1e-5)
    assert first.features.dtype == np.float32
    assert (first.slide, first.patient, first.label, first.time, first.event) == (
        two[0].slide,
        two[0].patient,
        "tumour",
        4.5,
        False,
    )
    assert (first.metadata["footprint"], first.metadata["slide_size"], first.metadata["patches"]) == (
        64,
        [1024, 768],
        48,
    )
    assert [record.patches for record in account.used] == [48, 64]


def test_hdf5_holds_the_same(two: list[SlideEntry], tmp_path: Path) -> None:
    run(two, tmp_path / "a")
    run(two, tmp_path / "b", form="h5")
    for one, other in zip(load_bags(tmp_path / "a"), load_bags(tmp_path / "b"), strict=True):
        assert np.array_equal(one.features, other.features)
        assert np.array_equal(one.coordinates, other.coordinates)
        assert one.metadata == other.metadata
    assert {path.suffix for path in (tmp_path / "b" / "slides").iterdir()} == {".h5", ""}


def test_the_option_is_for_slides_that_do_not_tell_their_resolution(tmp_path: Path) -> None:
    for name, mpp in (("told", 0.5), ("silent", None), ("corrected", 0.5)):
        write_pyramid(tmp_path / f"{name}.tif", PICTURE, mpp=mpp)
    entries = catalogue(tmp_path, ["told.tif,a,P0,,,,", "silent.tif,b,P1,,,,", "corrected.tif,c,P2,,,,0.49"])
    used = run(entries, tmp_path / "out", settings=replace(SETTINGS, mpp=0.51, min_area=0.0)).used
    assert [(record.mpp, record.mpp_source) for record in used] == [
        (0.5, "slide"),
        (0.51, "option"),
        (0.49, "catalogue"),
    ]


def test_every_slide_is_accounted_for(tmp_path: Path) -> None:
    write_pyramid(tmp_path / "good.tif", PICTURE)
    write_pyramid(tmp_path / "silent.tif", PICTURE, mpp=None)
    write_pyramid(tmp_path / "told.tif", PICTURE, mpp=None, levels=(1,))
    write_pyramid(tmp_path / "white.tif", tissue_picture(512, 512))
    write_pyramid(tmp_path / "coarse.tif", PICTURE, mpp=1.0)
    write_pyramid(tmp_path / "tile.tif", tissue_picture(64, 64, (0, 0, 64, 64)), levels=(1,))
    write_pyramid(tmp_path / "small.tif", tissue_picture(60, 60, (0, 0, 60, 60)), levels=(1,))
    whole = (tmp_path / "good.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(whole[: len(whole) // 2])
    names = ("good", "silent", "told", "white", "coarse", "tile", "small", "cut", "gone")
    lines = [f"{name}.tif,{name},P{i % 2},,,,{0.5 if name == 'told' else ''}" for i, name in enumerate(names)]
    account = run(catalogue(tmp_path, lines), tmp_path / "out", settings=replace(SETTINGS, min_area=0.0))
    outcomes = {name: record.reason for name, record in zip(names, account.records, strict=True)}
    assert outcomes.pop("cut") in (Reason.UNDECODABLE, Reason.NOT_AN_IMAGE)
    assert outcomes == {
        "good": None,
        "silent": Reason.NO_RESOLUTION,
        "told": None,
        "white": Reason.NO_TISSUE,
        "coarse": Reason.TOO_COARSE,
        "tile": None,
        "small": Reason.TOO_FEW_PATCHES,
        "gone": Reason.MISSING,
    }
    assert [record.patches for record in account.used] == [48, 48, 1]
    written = json.loads((tmp_path / "out" / "account.json").read_text())
    assert written == account.to_json()
    assert written["slides"] == len(written["records"]) == 9
    assert written["used"] + sum(written["rejected"].values()) == 9
    assert [record["line"] for record in written["records"]] == list(range(2, 11))
    assert [bag.slide for bag in load_bags(tmp_path / "out")] == [record.slide for record in account.used]
    with Image.open(tmp_path / "out" / "thumbnails" / f"{account.records[3].slide}.png") as thumbnail:
        assert thumbnail.size == (512, 512)


class Counting:
    """An encoder's module that counts its batches, and stops a run at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.encoder, self.batches, self.stop_at = small_encoder(), 0, stop_at
        self.encoder.module.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.batches += 1
        if self.batches == self.stop_at:
            raise KeyboardInterrupt


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_an_interrupted_run_continues_where_it_stopped(two: list[SlideEntry], tmp_path: Path) -> None:
    """7 batches of the first slide and 10 of the second: it stops in the second, and does not repeat the first."""
    with pytest.raises(KeyboardInterrupt):
        run(two, tmp_path / "out", Counting(stop_at=9).encoder)
    assert not (tmp_path / "out" / "bags.json").exists()
    rest = Counting()
    account = run(two, tmp_path / "out", rest.encoder)
    assert rest.batches == 10
    assert [record.resumed for record in account.records] == [True, False]
    run(two, tmp_path / "whole")
    resumed, whole = contents(tmp_path / "out"), contents(tmp_path / "whole")
    assert resumed.keys() == whole.keys()
    assert {name for name in whole if resumed[name] != whole[name]} == {"account.json"}


def test_what_features_depend_on_computes_them_again(two: list[SlideEntry], tmp_path: Path) -> None:
    def batches(entries: list[SlideEntry] = two, **keys: Any) -> int:
        counting = Counting()
        counting.encoder = replace(counting.encoder, **keys.pop("encoder", {}))
        run(entries, tmp_path / "out", counting.encoder, **keys)
        return counting.batches

    assert batches() == 17
    assert batches() == 0
    assert batches(batch_size=64, workers=1) == 0
    assert batches(settings=replace(SETTINGS, min_tissue=0.4)) > 0
    assert batches() == 17
    assert batches(encoder={"digest": "1" * 64}) == 17
    assert batches(encoder={"digest": "1" * 64}, entries=[replace(two[0], mpp=0.26), two[1]]) > 0
    content = (tmp_path / "b.tif").read_bytes()
    write_pyramid(tmp_path / "b.tif", tissue_picture(512, 512, (0, 0, 512, 512), seed=2))
    assert (tmp_path / "b.tif").read_bytes() != content
    assert batches(encoder={"digest": "1" * 64}) == 17
    next((tmp_path / "out" / "slides").glob(f"{two[0].slide}*")).write_bytes(b"damaged")
    assert batches(encoder={"digest": "1" * 64}) == 7


def test_label_and_macro_are_never_asked_for(
    two: list[SlideEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an associated image was asked for")

    monkeypatch.setattr(openslide.OpenSlide, "associated_images", property(refuse))
    monkeypatch.setattr(openslide.lowlevel, "read_associated_image", refuse)
    monkeypatch.setattr(openslide.lowlevel, "get_associated_image_names", refuse)
    assert len(run(two, tmp_path / "out").used) == 2


@pytest.mark.parametrize("form", ["safetensors", "h5"])
def test_nothing_of_file_or_scanner_is_written_or_printed(two: list[SlideEntry], tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    write_pyramid(tmp_path / "Mustermann.tif", tissue_picture(512, 512))
    arguments = ["slides", "prepare", str(tmp_path / "slides.csv"), "--out", str(out), "--random-weights"]
    arguments += ["--preset", "biopsy", "--patch-size", "256", "--format", form, "--encoder", "torchvision:resnet18"]
    lines = (tmp_path / "slides.csv").read_text().splitlines()
    (tmp_path / "slides.csv").write_text("\n".join([*lines, "Mustermann.tif,SLIDE-3,Mustermann,,,,"]))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    everything = contents(out) | {"output": result.output.encode()}
    names = [str(path.relative_to(out)) for path in out.rglob("*")]
    for secret in (
        "Smith",
        "Jones",
        "Mustermann",
        "SLIDE-1",
        "SLIDE-2",
        "SCANNER7",
        "doctor-who",
        "12/29/09",
        "2009:12:29",
        ".tif",
    ):
        assert [name for name, content in everything.items() if secret.encode() in content] == [], secret
        assert [name for name in names if secret in name] == [], secret
    assert all(path.stat().st_mode & 0o077 == 0 for path in [out, *out.rglob("*")])


def test_the_command_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write_pyramid(tmp_path / "a.tif", tissue_picture(512, 512))
    catalogue(tmp_path, ["a.tif,S,P,,,,", "gone.tif,T,P,,,,"])
    call = ["slides", "prepare", str(tmp_path / "slides.csv"), "--out", str(tmp_path / "out")]
    call += ["--encoder", "torchvision:resnet18"]
    none = CliRunner().invoke(app, [*call, "--random-weights"])
    assert none.exit_code == 1
    assert "no tissue" in none.output
    assert "missing" in none.output
    assert "no slide can be used" in none.output
    as_json = CliRunner().invoke(app, [*call, "--random-weights", "--json"])
    assert json.loads(as_json.stdout)["rejected"] == {"missing": 1, "no tissue": 1}
    for more, said in (
        ([], "--weights"),
        (["--random-weights", "--mpp", "40"], "--mpp = 40: expected µm/px"),
        (["--random-weights", "--device", "cuda"], "no usable CUDA" if not torch.cuda.is_available() else ""),
    ):
        refused = CliRunner().invoke(app, [*call, *more])
        assert refused.exit_code == 2 or not said
        assert said in refused.output
    monkeypatch.setitem(sys.modules, "openslide", None)
    assert "pip install 'fedad[wsi]'" in CliRunner().invoke(app, [*call, "--random-weights"]).output


def test_a_disk_error_costs_one_slide(two: list[SlideEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> str:
        if path == two[0].path:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return sha256_of(path)

    monkeypatch.setattr(importlib.import_module("fedad_components.slides.prepare"), "sha256_of", failing)
    account = run(two, tmp_path / "out")
    assert [record.reason for record in account.records] == [Reason.UNREADABLE, None]
    assert "Input/output error" in account.records[0].detail
    assert "Smith" not in json.dumps(account.to_json())


def test_hdf5_without_h5py_is_refused_at_once(
    two: list[SlideEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SlidesError, match=r"pip install 'fedad\[wsi\]'"):
        run(two, tmp_path / "out", form="h5")
    assert not (tmp_path / "out").exists()


def test_a_prepared_folder_is_verified(two: list[SlideEntry], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(SlidesError, match=r"bags\.json"):
        next(load_bags(out))
    run(two, out)
    file = out / "slides" / f"{two[1].slide}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    read_features(file)
    bags = load_bags(out)
    next(bags)
    with pytest.raises(SlidesError, match="changed since it was written"):
        next(bags)


@pytest.mark.parametrize(
    "wrong", [{"preset": "x"}, {"min_tissue": 0}, {"tolerance": 1}, {"side": 0}, {"min_area": -1}, {"target_mpp": 0}]
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(SlidesError, match="expected"):
        Settings(**wrong)
