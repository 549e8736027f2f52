"""Slides against the arrays that they were written from; and files that are none."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image
from slide_files import tissue_picture, write_pyramid

from fedad_components.imaging.account import Reason, Unusable
from fedad_components.slides import reader
from fedad_components.slides.reader import SlidesError, open_slide, resolution

PICTURE = tissue_picture(512, 384, (40, 40, 400, 300))


def reason_of(path: Path) -> Unusable:
    with pytest.raises(Unusable) as caught, open_slide(path) as slide:
        slide.overview(1)
    assert str(path.parent) not in str(caught.value)
    assert path.stem not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("unit", ["CENTIMETER", "INCH"])
def test_levels_regions_and_resolution(tmp_path: Path, unit: str) -> None:
    with open_slide(write_pyramid(tmp_path / "a slide.tif", PICTURE, 0.25, unit=unit)) as slide:
        assert slide.size == (512, 384)
        assert slide.downsamples == pytest.approx((1, 4, 16, 32))
        assert resolution(slide).mpp == pytest.approx(0.25)
        assert resolution(slide).source == "slide"
        assert np.array_equal(slide.read((30, 20), 0, (100, 50)), PICTURE[20:70, 30:130])
        assert np.array_equal(slide.read((64, 128), 1, (20, 30)), PICTURE[128:248:4, 64:144:4])
        outside = slide.read((500, 380), 0, (20, 10))
    assert np.array_equal(outside[:4, :12], PICTURE[380:, 500:])
    assert (outside[4:] == 255).all()
    assert (outside[:, 12:] == 255).all()


def test_a_plain_tiff_is_a_slide_of_one_level(tmp_path: Path) -> None:
    path = tmp_path / "plain.tif"
    tifffile.imwrite(path, PICTURE, photometric="rgb", resolution=(20000, 20000), resolutionunit="CENTIMETER")
    assert openslide.OpenSlide.detect_format(path) is None
    with open_slide(path) as slide:
        assert slide.sizes == ((512, 384),)
        assert resolution(slide).mpp == pytest.approx(0.5)
        assert np.array_equal(slide.read((30, 20), 0, (100, 50)), PICTURE[20:70, 30:130])
        corner = slide.read((-5, 380), 0, (20, 10))
        assert (slide.read((600, 0), 0, (4, 4)) == 255).all()
    assert np.array_equal(corner[:4, 5:], PICTURE[380:, :15])
    assert (corner[:, :5] == 255).all()
    assert (corner[4:] == 255).all()


@pytest.mark.parametrize(
    ("mpp", "unit", "said"),
    [(None, "INCH", "does not tell"), (25400 / 72, "INCH", "352.778"), (25400 / 300, "INCH", "84.6")],
)
def test_no_resolution_is_refused_unless_overridden(tmp_path: Path, mpp: float | None, unit: str, said: str) -> None:
    with open_slide(write_pyramid(tmp_path / "a.tif", PICTURE, mpp, unit=unit)) as slide:
        with pytest.raises(Unusable, match=said) as caught:
            resolution(slide)
        assert caught.value.reason == Reason.NO_RESOLUTION
        assert "--mpp" in caught.value.detail
        assert resolution(slide, 0.25) == (0.25, "catalogue")
        with pytest.raises(SlidesError, match="expected µm/px"):
            resolution(slide, 25)


def test_pixels_that_are_not_square_are_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", PICTURE, resolution=(20000, 40000), resolutionunit="CENTIMETER")
    with open_slide(tmp_path / "a.tif") as slide, pytest.raises(Unusable, match="not square"):
        resolution(slide)


def test_an_overview_is_the_mean_of_blocks(tmp_path: Path) -> None:
    with open_slide(write_pyramid(tmp_path / "a.tif", PICTURE, levels=(1,))) as slide:
        found = slide.overview(8)
    expected = PICTURE.reshape(48, 8, 64, 8, 3).mean((1, 3))
    assert np.abs(found - expected).max() <= 1


def test_strips_do_not_show_in_an_overview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 6.4 pixels, a few lines at a time, as Pillow makes them of the whole picture."""
    monkeypatch.setattr(reader, "STRIP_PIXELS", 20_000)
    with open_slide(write_pyramid(tmp_path / "a.tif", PICTURE, levels=(1,))) as slide:
        found = slide.overview(6.4)
    expected = np.asarray(Image.fromarray(PICTURE).resize((80, 60), Image.Resampling.BOX))
    assert np.array_equal(found, expected)


def test_an_overview_at_a_level_is_that_level(tmp_path: Path) -> None:
    with open_slide(write_pyramid(tmp_path / "a.tif", PICTURE)) as slide:
        assert np.array_equal(slide.overview(16), PICTURE[::16, ::16])


def test_what_is_no_slide_has_its_reason(tmp_path: Path) -> None:
    whole = write_pyramid(tmp_path / "whole.tif", PICTURE).read_bytes()
    (tmp_path / "p1.svs").touch()
    (tmp_path / "p2.svs").mkdir()
    (tmp_path / "p3.svs").write_text("not a slide")
    (tmp_path / "p4.svs").write_bytes(whole[:3000])
    (tmp_path / "p5.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\xff" * 300)
    damaged = {Reason.UNDECODABLE, Reason.NOT_AN_IMAGE}
    assert reason_of(tmp_path / "p0.svs").reason == Reason.MISSING
    assert reason_of(tmp_path / "p1.svs").reason == Reason.EMPTY_FILE
    assert reason_of(tmp_path / "p2.svs").reason == Reason.NOT_A_FILE
    assert reason_of(tmp_path / "p3.svs").reason == Reason.NOT_AN_IMAGE
    assert reason_of(tmp_path / "p4.svs").reason in damaged
    assert reason_of(tmp_path / "p5.dcm").reason in damaged


def test_a_damaged_tile_is_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "tile.tif"
    tifffile.imwrite(path, PICTURE, tile=(64, 64), photometric="rgb", compression="zlib")
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[20]
    content[offset : offset + 40] = b"\x55" * 40
    path.write_bytes(content)
    assert reason_of(path).reason == Reason.UNDECODABLE


def test_the_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openslide", None)
    with pytest.raises(SlidesError, match=r"pip install 'fedad\[wsi\]'"), open_slide(tmp_path / "a.svs"):
        pass
