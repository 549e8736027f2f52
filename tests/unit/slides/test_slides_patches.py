"""Levels by µm/px, and coordinates against a slow count over every pixel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from slide_files import tissue_picture, write_pyramid

from fedad_components.imaging.account import Reason, Unusable
from fedad_components.slides.patches import PatchPlan, place_patches, plan_patches, read_patch
from fedad_components.slides.reader import open_slide


def slide_of(*downsamples: float) -> Any:
    return SimpleNamespace(downsamples=downsamples)


@pytest.mark.parametrize(
    ("mpp", "downsamples", "expected"),
    [
        (0.5, (1, 4, 16, 32), PatchPlan(256, 0, 256, 256, 0.5)),
        (0.499, (1,), PatchPlan(256, 0, 256, 256, 0.499)),
        (0.25, (1, 2, 4), PatchPlan(256, 1, 256, 512, 0.5)),
        (0.2431, (1, 2.0005), PatchPlan(256, 1, 256, 256 * 2.0005, 0.2431 * 2.0005)),
        (0.25, (1, 4, 16), PatchPlan(256, 0, 512, 512, 0.5)),
        (0.1, (1, 4, 16), PatchPlan(256, 1, 320, 1280, 0.5)),
        (0.525, (1, 4), PatchPlan(256, 0, 256, 256, 0.525)),
    ],
)
def test_the_level_is_chosen_by_resolution(mpp: float, downsamples: tuple[float, ...], expected: PatchPlan) -> None:
    found = plan_patches(slide_of(*downsamples), mpp)
    assert (found.side, found.level, found.read_side) == (expected.side, expected.level, expected.read_side)
    assert found.footprint == pytest.approx(expected.footprint)
    assert found.mpp == pytest.approx(expected.mpp)


def test_a_slide_is_never_enlarged() -> None:
    with pytest.raises(Unusable, match=r"0\.53 µm/px") as caught:
        plan_patches(slide_of(1, 4), 0.53)
    assert caught.value.reason == Reason.TOO_COARSE


@settings(max_examples=40, deadline=None)
@given(
    cells=arrays.arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))),
    cell=st.integers(3, 9),
    footprint=st.integers(2, 20),
    least=st.sampled_from([0.1, 0.5, 0.75, 1.0]),
)
def test_patches_are_those_that_a_count_of_pixels_finds(
    cells: np.ndarray, cell: int, footprint: int, least: float
) -> None:
    pixels = cells.repeat(cell, 0).repeat(cell, 1)
    height, width = pixels.shape
    found = place_patches((width, height), PatchPlan(footprint, 0, footprint, footprint, 0.5), cells, least)
    expected = [
        (x, y)
        for y in range(0, height - footprint + 1, footprint)
        for x in range(0, width - footprint + 1, footprint)
        if pixels[y : y + footprint, x : x + footprint].sum() >= least * footprint**2
    ]
    assert found.dtype == np.int64
    assert found.shape == (len(expected), 2)
    assert [tuple(corner) for corner in found.tolist()] == expected


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 5000),
    height=st.integers(1, 5000),
    footprint=st.floats(100, 700, allow_nan=False),
    rows=st.integers(1, 40),
)
def test_patches_fill_the_slide_and_stay_inside(width: int, height: int, footprint: float, rows: int) -> None:
    found = place_patches((width, height), PatchPlan(256, 0, 256, footprint, 0.5), np.ones((rows, rows), bool))
    columns, lines = int(width / footprint + 1e-6), int(height / footprint + 1e-6)
    assert len(found) == columns * lines == len(np.unique(found, axis=0))
    if len(found):
        assert found.min() >= 0
        assert found[:, 0].max() + footprint <= width + 1e-3
        assert found[:, 1].max() + footprint <= height + 1e-3
        for axis in (0, 1):
            steps = np.diff(np.unique(found[:, axis]))
            assert (np.abs(steps - footprint) < 1).all()


def test_a_patch_is_resized_without_aliasing(tmp_path: Path) -> None:
    """A one-pixel chequerboard at 0.25 µm/px is grey at 0.5, as Pillow's own reduction of the picture has it."""
    picture = tissue_picture(256, 256, (0, 0, 256, 256))
    picture[:128, :128] = ((np.indices((128, 128)).sum(0) % 2) * 255)[..., None]
    with open_slide(write_pyramid(tmp_path / "a.tif", picture, 0.25, levels=(1,))) as slide:
        plan = plan_patches(slide, 0.25, side=64)
        patch = read_patch(slide, plan, np.array([0, 0]))
        other = read_patch(slide, plan, np.array([128, 128]))
    assert np.abs(patch[4:-4, 4:-4].astype(int) - 127.5).max() <= 1
    expected = np.asarray(Image.fromarray(picture[128:, 128:]).resize((64, 64), Image.Resampling.BICUBIC))
    assert np.array_equal(other, expected)
