"""Two scanners' slides and a DICOM one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openslide
import pydicom
import pytest
import torch
from slide_files import small_encoder

from fedad_components.imaging.account import Reason
from fedad_components.slides.account import SlideAccount
from fedad_components.slides.bags import load_bags
from fedad_components.slides.catalogue import load_catalogue
from fedad_components.slides.features import patch_batches
from fedad_components.slides.patches import place_patches, plan_patches
from fedad_components.slides.prepare import Settings, prepare
from fedad_components.slides.reader import open_slide, resolution

APERIO, SILENT, DICOM = "CMU-1-Small-Region.svs", "tcga-cr-7395-01a-01-ts1.svs", "highdicom_sm_image.dcm"


def run(real_slides: Path, folder: Path, name: str, line_mpp: str = "", **keys: object) -> SlideAccount:
    (folder / "slides.csv").write_text(f"slide,slide_id,patient_id,mpp\n{real_slides / name},S,P,{line_mpp}\n")
    entries = load_catalogue(folder / "slides.csv")
    return prepare(entries, folder / "out", small_encoder(), Settings(**keys), device=torch.device("cpu"), workers=2)  # type: ignore[arg-type]


def test_the_strict_preset_leaves_nothing_and_the_biopsys_dozens(
    real_slides: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("label or macro was asked for")

    monkeypatch.setattr(openslide.lowlevel, "read_associated_image", refuse)
    assert run(real_slides, tmp_path, APERIO).records[0].reason == Reason.NO_TISSUE
    (record,) = run(real_slides, tmp_path, APERIO, preset="biopsy").used
    assert 24 <= record.patches <= 60
    assert (record.mpp, record.mpp_source) == (0.499, "slide")
    with openslide.OpenSlide(real_slides / APERIO) as slide:
        tags = {value for name, value in slide.properties.items() if name.startswith("aperio.") and len(value) > 6}
        assert {"CPAPERIOCS", "12/29/09"} <= tags
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    for tag in (*tags, "CMU-1", ".svs"):
        assert not any(tag.encode() in content for content in written), tag


def test_a_slide_without_resolution_needs_an_override(real_slides: Path, tmp_path: Path) -> None:
    (record,) = run(real_slides, tmp_path, SILENT, preset="biopsy").records
    assert record.reason == Reason.NO_RESOLUTION
    assert "--mpp" in record.detail
    (by_option,) = run(real_slides, tmp_path, SILENT, preset="biopsy", mpp=0.25).used
    (by_line,) = run(real_slides, tmp_path, SILENT, line_mpp="0.25", preset="biopsy").used
    assert by_option.patches == by_line.patches > 10
    (bag,) = load_bags(tmp_path / "out")
    assert bag.metadata["footprint"] == pytest.approx(512, rel=1e-3)


def test_dicom_pixels_are_pydicoms(real_slides: Path, tmp_path: Path) -> None:
    """50 by 50 pixels of noise in tiles of 10: smaller than a patch, so patches are made smaller; none is tissue."""
    data = pydicom.dcmread(real_slides / DICOM)
    with open_slide(real_slides / DICOM) as slide:
        assert slide.size == (data.TotalPixelMatrixColumns, data.TotalPixelMatrixRows) == (50, 50)
        assert resolution(slide).mpp == pytest.approx(0.499)
        plan = plan_patches(slide, 0.499, side=16)
        corners = place_patches(slide.size, plan, np.ones((1, 1), bool))
        (patches,) = patch_batches(slide, plan, corners, batch_size=9, workers=2)
    tiles = data.pixel_array.reshape(5, 5, 10, 10, 3)
    whole = tiles.transpose(0, 2, 1, 3, 4).reshape(50, 50, 3)
    assert len(corners) == 9
    assert np.array_equal(patches, np.stack([whole[y : y + 16, x : x + 16] for x, y in corners]))
    assert run(real_slides, tmp_path, DICOM, preset="biopsy", min_area=0.0).records[0].reason == Reason.NO_TISSUE
