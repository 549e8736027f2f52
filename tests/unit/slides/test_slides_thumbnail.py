"""The picture for review: sizes, and that tissue, patches and background are where they are on the slide."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from slide_files import tissue_picture, write_pyramid

from fedad_components.slides.patches import PatchPlan
from fedad_components.slides.reader import open_slide
from fedad_components.slides.thumbnail import GRID, OUTLINE, draw_review, render_overview

PICTURE = tissue_picture(512, 256, (128, 64, 384, 192))


@pytest.mark.parametrize(("levels", "max_side"), [((1, 4), 128), ((1,), 128), ((1, 4), 1600), ((1, 4), 100)])
def test_the_overview_is_the_whole_slide(tmp_path: Path, levels: tuple[int, ...], max_side: int) -> None:
    with open_slide(write_pyramid(tmp_path / "a.tif", PICTURE, levels=levels)) as slide:
        image, scale = render_overview(slide, max_side)
    assert image.width == min(512, max_side)
    assert image.height == pytest.approx(image.width / 2, abs=1)
    assert scale == pytest.approx(image.width / 512)
    saturated = np.asarray(image.convert("HSV"))[:, :, 1] > 40
    rows, columns = np.nonzero(saturated)
    assert columns.min() / scale == pytest.approx(128, abs=1 / scale)
    assert (rows.max() + 1) / scale == pytest.approx(192, abs=1 / scale)


def test_tissue_patches_and_background_are_shown(tmp_path: Path) -> None:
    with open_slide(write_pyramid(tmp_path / "a.tif", PICTURE, levels=(1,))) as slide:
        overview = render_overview(slide, 256)
    mask = np.zeros((16, 32), bool)
    mask[4:12, 8:24] = True
    drawn = draw_review(overview, mask, PatchPlan(64, 0, 64, 64, 0.5), np.array([[192, 64], [192, 128]]))
    with Image.open(io.BytesIO(drawn)) as png:
        assert png.info == {}
        picture = np.asarray(png).astype(int)
    plain = np.asarray(overview.image).astype(int)
    assert picture.shape == (128, 256, 3)
    assert (picture[32, 64:96] == OUTLINE).all()
    assert (picture[64, 100:124] == GRID).all()
    assert np.array_equal(picture[40:60, 70:90], plain[40:60, 70:90])
    assert (np.abs(picture[:20] - (255 - 0.45 * (255 - plain[:20]))) <= 1).all()
