"""Windows, ranges and the square, against loops and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedad_components.imaging.intensity import fit_square, ranged, to_rgb, to_uint8, value_range, windowed


def slow_window(x: float, center: float, width: float, function: str) -> float:
    """PS3.3 C.11.2.1.2.1 and C.11.2.1.3, with y in [0, 1], case by case."""
    if function == "SIGMOID":
        return (1 + math.tanh(2 * (x - center) / width)) / 2  # = 1 / (1 + exp(-4 (x - c) / w)), without overflow
    if function == "LINEAR_EXACT":
        if x <= center - width / 2:
            return 0.0
        return 1.0 if x > center + width / 2 else (x - center) / width + 0.5
    if x <= center - 0.5 - (width - 1) / 2:
        return 0.0
    return 1.0 if x > center - 0.5 + (width - 1) / 2 else (x - (center - 0.5)) / (width - 1) + 0.5


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize(("center", "width"), [(40, 400), (0, 1), (-600, 1500), (0.5, 2), (2048, 4096)])
def test_window_is_the_standards(function: str, center: float, width: float) -> None:
    values = np.array([[-3000, -1024, -601, -1, 0, 1, 2], [39, 40, 41, 240, 241, 2047, 4095]], np.int16)
    expected = [[slow_window(float(x), center, width, function) for x in row] for row in values]
    np.testing.assert_allclose(windowed(values, center, width, function), expected, atol=2e-6)


@given(st.lists(st.integers(-2000, 4000), min_size=2, max_size=30), st.floats(1, 4000), st.floats(-1000, 3000))
def test_window_is_monotonic_and_bounded(values: list[int], width: float, center: float) -> None:
    shown = windowed(np.sort(np.array(values, np.int32)), center, width)
    assert np.all(np.diff(shown) >= 0)
    assert shown.min() >= 0
    assert shown.max() <= 1


def test_range_ignores_padding_and_outliers() -> None:
    frame = np.arange(1000, dtype=np.int16).reshape(20, 50)
    low, high = value_range([np.concatenate([np.full((20, 50), -2000, np.int16), frame])], padding=-2000)
    assert (low, high) == pytest.approx((0.005 * 999, 0.995 * 999))


def test_range_falls_back_to_extremes_and_survives_nan() -> None:
    sparse = np.zeros((100, 100), np.float32)
    sparse[3, 4] = 7
    assert value_range([sparse]) == (0.0, 7.0)
    assert value_range([np.full((2, 2), np.nan)]) == (0.0, 0.0)
    assert ranged(np.array([np.nan, 1.0, 3.0]), 1.0, 3.0).tolist() == [0.0, 0.0, 1.0]


def test_uint8_rounds_to_nearest() -> None:
    assert to_uint8(np.array([0, 0.4 / 255, 0.6 / 255, 1], np.float64)).tolist() == [0, 0, 1, 255]


def test_grey_is_repeated() -> None:
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(to_rgb(grey), np.stack([grey] * 3, axis=2))
    assert np.array_equal(to_rgb(grey[:, :, None]), to_rgb(grey))


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50), (1, 9)])
def test_fits(shape: tuple[int, int]) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for fit in ("crop", "pad", "stretch"):
        assert fit_square(frame, 32, fit).shape == (32, 32, 3)
    edge = min(shape)
    top, left = (shape[0] - edge) // 2, (shape[1] - edge) // 2
    square = Image.fromarray(frame[top : top + edge, left : left + edge].copy())
    assert np.array_equal(fit_square(frame, 32, "crop"), np.asarray(square.resize((32, 32), Image.Resampling.BICUBIC)))


def test_pad_keeps_the_whole_image_centred() -> None:
    padded = fit_square(np.full((10, 40, 3), 200, np.uint8), 40, "pad")
    assert np.all(padded[15:25] == 200)
    assert not padded[:15].any()
    assert not padded[25:].any()


def test_no_resampling_at_the_right_size() -> None:
    frame = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    assert all(np.array_equal(fit_square(frame, 32, fit), frame) for fit in ("crop", "pad", "stretch"))
