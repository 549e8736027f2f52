"""Stored values to 8-bit display values, and images to the cache's square. Only numpy and Pillow.

A frame is ``(H, W)`` grey or ``(H, W, 3)`` colour; what leaves this module is ``uint8 (H, W, 3)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image

PERCENTILES = (0.5, 99.5)
"""Range of values shown when neither file nor catalogue gives a window; robust against hot pixels and burnt-in text."""


def windowed(values: np.ndarray, center: float, width: float, function: str = "LINEAR") -> np.ndarray:
    """Apply a VOI window: ``values (...)`` in the image's unit → ``float32 (...)`` in [0, 1].

    ``function`` is DICOM's VOI LUT Function (PS3.3 C.11.2.1.2 and C.11.2.1.3). LINEAR maps center − 0.5 ± (width −
    1)/2, which for a width of 1 is a step; any other name is read as LINEAR, as the standard's default.
    """
    x = values.astype(np.float32)
    if function == "SIGMOID":
        return 1.0 / (1.0 + np.exp(np.clip(-4.0 * (x - center) / width, -80.0, 80.0)))
    if function == "LINEAR_EXACT":
        return np.clip((x - center) / width + 0.5, 0.0, 1.0)
    if width <= 1.0:
        return (x > center - 0.5).astype(np.float32)
    return np.clip((x - (center - 0.5)) / (width - 1.0) + 0.5, 0.0, 1.0)


def value_range(frames: Sequence[np.ndarray], padding: float | None = None) -> tuple[float, float]:
    """Low and high value to show of frames ``(...)`` that belong together, without a window of their own.

    The percentiles are those of all frames, so that slices of one volume keep their relation; ``padding`` is left out.
    Falls back to the extremes where the percentiles coincide (a small bright structure on an empty background).
    """
    values = np.concatenate([frame.reshape(-1) for frame in frames])
    values = values[np.isfinite(values)]
    if padding is not None and np.any(values != padding):
        values = values[values != padding]
    if values.size == 0:
        return 0.0, 0.0
    low, high = (float(value) for value in np.percentile(values, PERCENTILES))
    return (low, high) if high > low else (float(values.min()), float(values.max()))


def ranged(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Linear from [low, high] to ``float32`` in [0, 1]; all zero where the range is empty, NaN counts as low."""
    if high <= low:
        return np.zeros(values.shape, np.float32)
    return np.clip((np.nan_to_num(values.astype(np.float32), nan=low) - low) / (high - low), 0.0, 1.0)


def to_uint8(unit: np.ndarray) -> np.ndarray:
    """Values in [0, 1] to 0..255, rounded to the nearest."""
    return np.rint(unit * 255.0).astype(np.uint8)


def to_rgb(frame: np.ndarray) -> np.ndarray:
    """``uint8 (H, W)``, ``(H, W, 1)`` or ``(H, W, 3)`` → contiguous ``uint8 (H, W, 3)``; grey is repeated."""
    if frame.ndim == 3 and frame.shape[2] == 1:
        frame = frame[:, :, 0]
    if frame.ndim == 2:
        frame = np.repeat(frame[:, :, None], 3, axis=2)
    return np.ascontiguousarray(frame)


def fit_square(frame: np.ndarray, side: int, fit: Literal["crop", "pad", "stretch"]) -> np.ndarray:
    """Resize ``uint8 (H, W, 3)`` to ``(side, side, 3)``, bicubic with anti-aliasing.

    crop: the centred square; pad: the whole image, centred on black; stretch: the whole image, aspect ratio lost.
    """
    height, width = frame.shape[:2]
    if (height, width) == (side, side):
        return frame
    image = Image.fromarray(frame)
    if fit == "stretch":
        return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC))
    if fit == "crop":
        edge = min(height, width)
        left, top = (width - edge) // 2, (height - edge) // 2
        square = image.crop((left, top, left + edge, top + edge))
        return np.asarray(square.resize((side, side), Image.Resampling.BICUBIC))
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    canvas = Image.new("RGB", (side, side))
    canvas.paste(image.resize(size, Image.Resampling.BICUBIC), ((side - size[0]) // 2, (side - size[1]) // 2))
    return np.asarray(canvas)
