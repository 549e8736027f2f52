"""Tissue on drawn pictures, and the mask's steps against slower ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import ndimage
from slide_files import tissue_picture, write_pyramid

from fedad_components.slides import tissue
from fedad_components.slides.reader import open_slide
from fedad_components.slides.tissue import PRESETS, Preset, find_tissue, tissue_mask

PLAIN = Preset(saturation=8, median=3, closing=2, min_area=100, max_hole=40)


def test_small_pieces_go_and_small_holes_are_filled() -> None:
    """With one pixel a mm²: pieces of 900 and 64, in the first one holes of 36 and of 144."""
    picture = tissue_picture(80, 60, (5, 5, 35, 35), (50, 20, 58, 28))
    picture[8:14, 8:14] = picture[18:30, 18:30] = 245
    mask = tissue_mask(picture, PLAIN, pixels_per_mm2=1)
    assert mask[11, 11]
    assert not mask[24, 24]
    assert mask[6:34, 16].all()
    assert not mask[:, 45:].any()
    # Two or fewer pixels of each corner are the median's.
    assert abs(int(mask.sum()) - (900 - 144)) <= 16


def test_areas_are_of_the_slide_and_not_of_pixels() -> None:
    picture = tissue_picture(80, 60, (5, 5, 35, 35))
    assert tissue_mask(picture, PLAIN, pixels_per_mm2=8).any()
    assert not tissue_mask(picture, PLAIN, pixels_per_mm2=10).any()


@pytest.mark.parametrize("value", [255, 245, 128, 0])
@pytest.mark.parametrize("otsu", [False, True])
def test_grey_is_no_tissue(value: int, otsu: bool) -> None:
    assert not tissue_mask(np.full((20, 30, 3), value, np.uint8), PRESETS["biopsy"]._replace(min_area=0), 1, otsu).any()


def test_otsu_parts_a_tinted_background_from_tissue() -> None:
    picture = tissue_picture(80, 60, (20, 20, 60, 50))
    picture[(picture == 245).all(-1)] = (245, 225, 235)
    assert tissue_mask(picture, PLAIN, 1).all()
    found = tissue_mask(picture, PLAIN, 1, otsu=True)
    assert found[22:48, 22:58].all()
    assert not found[:18].any()


@settings(max_examples=25, deadline=None)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12))), st.sampled_from([3, 7]))
def test_the_median_is_scipys(image: np.ndarray, side: int) -> None:
    assert np.array_equal(tissue._median(image, side), ndimage.median_filter(image, side, mode="nearest"))


@settings(max_examples=25, deadline=None)
@given(arrays.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12))), st.sampled_from([2, 3, 4]))
def test_closing_is_a_union_of_squares_on_the_background(mask: np.ndarray, side: int) -> None:
    """A pixel stays open where some square of the side holds it and nothing of the mask."""
    plane = np.pad(mask, 2 * side)
    opened = np.zeros_like(plane)
    for row in range(plane.shape[0] - side + 1):
        for column in range(plane.shape[1] - side + 1):
            square = (slice(row, row + side), slice(column, column + side))
            if not plane[square].any():
                opened[square] = True
    inner = (slice(2 * side, -2 * side), slice(2 * side, -2 * side))
    assert np.array_equal(tissue._close(mask, side), ~opened[inner])


@pytest.mark.parametrize(
    ("levels", "expected"), [((1, 4, 16, 32), 32), ((1, 4, 16, 64), 64), ((1, 2), 16), ((1, 4, 128), 128), ((1,), 16)]
)
def test_the_level_nearest_to_64_is_looked_at(tmp_path: Path, levels: tuple[int, ...], expected: int) -> None:
    picture = tissue_picture(2048, 1024, (300, 200, 1500, 900))
    with open_slide(write_pyramid(tmp_path / "a.tif", picture, levels=levels)) as slide:
        found = find_tissue(slide, 0.5, PRESETS["biopsy"])
    assert found.downsample == pytest.approx(expected)
    assert found.mask.shape == (1024 // expected, 2048 // expected)
    if expected <= 64:  # coarser, the median's corners are most of the piece
        inside = found.mask[-(-200 // expected) : 900 // expected, -(-300 // expected) : 1500 // expected]
        assert inside.mean() > 0.85
        assert found.mask.mean() == pytest.approx(1200 * 700 / (2048 * 1024), rel=0.2)
