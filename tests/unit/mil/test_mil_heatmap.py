from __future__ import annotations

import csv
import io

import matplotlib
import numpy as np
import pytest
from PIL import Image
from scipy import stats

from fedad_components.mil.heatmap import (
    Scored,
    heatmap_png,
    mean_by_pixel,
    overlay,
    patches_png,
    percentile_ranks,
    score_lines,
    top_rows,
)


def scored(attention: np.ndarray, coordinates: np.ndarray, footprint: float = 10.0) -> Scored:
    return Scored("0f2d94c1a7b35e68", coordinates, footprint, 0.5, attention, "predicted $tumour$")


def opened(png: bytes) -> tuple[np.ndarray, Image.Image]:
    image = Image.open(io.BytesIO(png))
    return np.asarray(image), image


def test_percentile_ranks_are_the_share_at_or_below_with_ties_at_their_mean() -> None:
    values = np.random.default_rng(0).integers(0, 12, 40) / 40
    slow = [np.mean([1 + (values < v).sum(), (values <= v).sum()]) / len(values) * 100 for v in values]
    assert percentile_ranks(values) == pytest.approx(slow)
    assert percentile_ranks(values) == pytest.approx(stats.rankdata(values, "average") / 40 * 100)
    assert percentile_ranks([0.2]) == [100.0]


def test_overlapping_patches_are_averaged() -> None:
    generator = np.random.default_rng(1)
    coordinates, values = generator.integers(-5, 100, (30, 2)), generator.random(30)
    footprint, scale, (width, height) = 17.3, 0.31, (29, 33)
    total, number = np.zeros((height, width)), np.zeros((height, width))
    for (x, y), value in zip(coordinates, values, strict=True):
        for row in range(height):
            for column in range(width):
                inside_x = round(x * scale) <= column < round((x + footprint) * scale)
                if inside_x and round(y * scale) <= row < round((y + footprint) * scale):
                    total[row, column] += value
                    number[row, column] += 1
    assert number.max() > 2
    assert (number == 0).any()
    expected = np.where(number, total / np.maximum(number, 1), np.nan)
    found = mean_by_pixel(values, coordinates, footprint, scale, (width, height))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_patch_smaller_than_a_pixel_is_seen() -> None:
    found = mean_by_pixel(np.array([7.0]), np.array([[30, 50]]), 3.0, 0.1, (10, 10))
    assert found[5, 3] == pytest.approx(7.0)
    assert np.isnan(found).sum() == 99


def test_a_known_gradient_lies_at_its_exact_pixels() -> None:
    """Ten touching patches of 10 by 10, the attention rising to the right: percentiles 10, 20 ... 100."""
    corners = np.array([[10 * column + 20, 30] for column in range(10)])
    one = scored(np.arange(1, 11) / 55, corners)
    picture = np.full((60, 140, 3), (200, 100, 50), np.uint8)
    values = mean_by_pixel(one.percentiles, one.coordinates, 10.0, 1.0, (140, 60))
    mixed = overlay(picture, values)
    viridis = matplotlib.colormaps["viridis"]
    for column in range(10):
        expected = 0.6 * np.array([200, 100, 50]) + 0.4 * 255 * np.array(viridis((column + 1) / 10)[:3])
        block = mixed[30:40, 20 + 10 * column : 30 + 10 * column]
        assert np.abs(block - expected).max() <= 0.5 + 1e-9
    covered = np.zeros((60, 140), bool)
    covered[30:40, 20:120] = True
    assert (mixed[~covered] == picture[~covered]).all()
    assert (np.isnan(values) == ~covered).all()
    found, _ = opened(heatmap_png(picture, 1.0, one))
    places = [
        (top, left)
        for top in range(found.shape[0] - 59)
        for left in range(found.shape[1] - 139)
        if (found[top, left] == mixed[0, 0]).all() and (found[top : top + 60, left : left + 140] == mixed).all()
    ]
    assert len(places) == 1, "the overlay is in the PNG, pixel for pixel"


def test_pictures_hold_no_metadata_and_are_the_same_each_time() -> None:
    one = scored(np.array([0.2, 0.8]), np.array([[0, 0], [10, 0]]))
    pictures = [heatmap_png(np.zeros((20, 20, 3), np.uint8), 1.0, one) for _ in range(2)]
    assert pictures[0] == pictures[1]
    sheet = patches_png([np.zeros((8, 8, 3), np.uint8)] * 2, np.array([1, 0]), one)
    for content in (pictures[0], sheet):
        assert opened(content)[1].info == {}
        assert not any(chunk in content for chunk in (b"tEXt", b"iTXt", b"zTXt", b"eXIf", b"tIME", b"atplotlib"))


def test_the_sheet_shows_the_patches_in_their_order() -> None:
    attention = np.array([0.1, 0.4, 0.1, 0.4])
    rows = top_rows(attention, 3)
    assert rows.tolist() == [1, 3, 0]
    assert top_rows(attention, 9).tolist() == [1, 3, 0, 2]
    patches = [np.full((40, 40, 3), 60 * number + 30, np.uint8) for number in range(3)]
    found, _ = opened(patches_png(patches, rows, scored(attention, np.zeros((4, 2), np.int64)), columns=2))
    corners = [np.argwhere((found == patch[0, 0]).all(axis=2)).min(axis=0).tolist() for patch in patches]
    assert corners[0][0] == corners[1][0] < corners[2][0]
    assert corners[0][1] == corners[2][1] < corners[1][1]
    assert all((found[y : y + 40, x : x + 40] == patch).all() for (y, x), patch in zip(corners, patches, strict=True))


def test_scores_are_read_back() -> None:
    one = scored(np.array([0.125, 0.5, 0.375]), np.array([[0, 512], [1024, 512], [7, 9]]))
    rows = list(csv.reader("".join(score_lines(one)).splitlines()))
    assert rows[0] == ["0f2d94c1a7b35e68", "0", "512", "0.125", "33.3333"]
    assert [float(row[4]) for row in rows] == pytest.approx([100 / 3, 100, 200 / 3], abs=1e-4)
