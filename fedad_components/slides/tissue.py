"""Where the tissue is: threshold of the saturation on a low level of a slide, cleaned of specks and small holes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage
from skimage.filters import rank, threshold_otsu

from fedad_components.slides.reader import Pixels, Slide

Mask = npt.NDArray[np.bool_]

DOWNSAMPLE = 64
"""Tissue is looked for on the level nearest to this."""
FINEST = 16
"""Finer levels are averaged down to this: the kernels below are of few pixels, and a slide may have one level only."""
_EIGHT_NEIGHBOURS = np.ones((3, 3), bool)


class Preset(NamedTuple):
    """Parameters of the mask. Kernels are in pixels of the level that is looked at, areas in mm² of the slide."""

    saturation: int
    """Tissue is more saturated than this, of 255; Otsu's threshold takes its place where that is asked for."""
    median: int
    closing: int
    min_area: float
    """Smaller pieces are dropped."""
    max_hole: float
    """Smaller holes in a piece are filled."""


PRESETS = {
    "default": Preset(saturation=8, median=7, closing=4, min_area=6.5, max_hole=1.0),
    "biopsy": Preset(saturation=8, median=7, closing=4, min_area=0.05, max_hole=0.05),
    "resection": Preset(saturation=15, median=11, closing=4, min_area=6.5, max_hole=0.25),
}
"""``default`` wants large pieces; ``biopsy`` keeps small ones; ``resection`` ignores a faintly stained background."""


class Tissue(NamedTuple):
    """A mask of the whole slide."""

    mask: Mask
    """``(h, w)``."""
    downsample: float
    """Pixels of level 0 for one of the mask: the mean of x and y."""


def find_tissue(slide: Slide, mpp: float, preset: Preset, otsu: bool = False) -> Tissue:
    """Find the tissue of a slide.

    HSV saturation, median, threshold, closing; then pieces below an area are dropped and small holes filled.

    Args:
        mpp: µm/px of level 0.
        otsu: threshold by Otsu's method in place of the preset's.

    Raises:
        Unusable: if the slide is damaged.
    """
    overview = slide.overview(_nearest(slide))
    height, width = overview.shape[:2]
    downsample = (slide.size[0] / width + slide.size[1] / height) / 2
    pixels_per_mm2 = 1e6 / (mpp * downsample) ** 2
    return Tissue(tissue_mask(overview, preset, pixels_per_mm2, otsu), downsample)


def tissue_mask(overview: Pixels, preset: Preset, pixels_per_mm2: float, otsu: bool = False) -> Mask:
    """The mask ``(h, w)`` of uint8 ``(h, w, 3)``; see :func:`find_tissue`."""
    saturation = _median(np.asarray(Image.fromarray(overview).convert("HSV"))[:, :, 1], preset.median)
    threshold = threshold_otsu(saturation) if otsu and saturation.min() < saturation.max() else preset.saturation
    mask = _close(saturation > threshold, preset.closing)
    pieces = _components_above(mask, preset.min_area * pixels_per_mm2, _EIGHT_NEIGHBOURS)
    holes = ndimage.binary_fill_holes(pieces) & ~pieces
    return pieces | (holes & ~_components_above(holes, preset.max_hole * pixels_per_mm2))


def _nearest(slide: Slide) -> float:
    nearest = min(slide.downsamples, key=lambda found: abs(math.log(found / DOWNSAMPLE)))
    return max(nearest, FINEST)


def _median(image: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Median over squares, the border repeated. By histogram: scipy's takes minutes for a large slide."""
    margin = side // 2
    padded = np.pad(image, margin, mode="edge")
    inner = (slice(margin, -margin), slice(margin, -margin))
    return rank.median(padded, np.ones((side, side), np.uint8))[inner]


def _close(mask: Mask, side: int) -> Mask:
    """Binary closing by a square, on a plane that does not end at the image's border."""
    inner = (slice(side, -side), slice(side, -side))
    return ndimage.binary_closing(np.pad(mask, side), np.ones((side, side), bool))[inner]


def _components_above(mask: Mask, area: float, neighbours: Mask | None = None) -> Mask:
    """Connected pieces of at least ``area`` pixels; four neighbours unless ``neighbours`` says otherwise."""
    labels, _ = ndimage.label(mask, neighbours)
    large = np.bincount(labels.ravel()) >= area
    large[0] = False
    return large[labels]
