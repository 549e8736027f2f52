"""Square patches of a fixed size in µm, by the slide's own resolution: from which level, and where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedad_components.imaging.account import Reason, Unusable
from fedad_components.slides.reader import Pixels, Slide
from fedad_components.slides.tissue import Mask

Coordinates = npt.NDArray[np.int64]

PATCH_SIZE = 256
TARGET_MPP = 0.5
TOLERANCE = 0.05
"""A level whose µm/px is this near to the target is read as it is."""
MIN_TISSUE = 0.5


@dataclass(frozen=True)
class PatchPlan:
    """How patches are read from one slide."""

    side: int
    """Pixels of a patch."""
    level: int
    read_side: int
    """Pixels that are read of ``level`` for a patch, and resized to ``side`` if they are more."""
    footprint: float
    """Side of a patch in pixels of level 0."""
    mpp: float
    """µm/px of a patch."""


def plan_patches(
    slide: Slide, mpp: float, side: int = PATCH_SIZE, target: float = TARGET_MPP, tolerance: float = TOLERANCE
) -> PatchPlan:
    """Choose the level by µm/px: the nearest to ``target`` within ``tolerance``, else the next finer one, resized.

    Args:
        mpp: µm/px of level 0.
        side: pixels of a patch.
        target: µm/px of a patch.

    Raises:
        Unusable: if the finest level is coarser than ``target``: enlarging it would invent detail.
    """
    levels = [mpp * downsample for downsample in slide.downsamples]
    nearest = min(range(len(levels)), key=lambda level: abs(levels[level] - target))
    if abs(levels[nearest] - target) <= tolerance * target + 1e-9:
        return PatchPlan(side, nearest, side, side * slide.downsamples[nearest], levels[nearest])
    finer = [level for level, found in enumerate(levels) if found < target]
    if not finer:
        raise Unusable(Reason.TOO_COARSE, f"{mpp:g} µm/px at its finest: expected at most {target * (1 + tolerance):g}")
    level = finer[-1]
    read_side = max(side, round(side * target / levels[level]))
    return PatchPlan(side, level, read_side, read_side * slide.downsamples[level], levels[level] * read_side / side)


def place_patches(size: tuple[int, int], plan: PatchPlan, mask: Mask, min_tissue: float = MIN_TISSUE) -> Coordinates:
    """Corners of the patches that are tissue: int64 ``(P, 2)``, x and y in pixels of level 0, row by row.

    Patches touch and do not overlap; they start at the slide's top left corner and lie inside the slide.

    Args:
        size: width and height of level 0.
        mask: tissue of the whole slide, ``(h, w)``.
        min_tissue: smallest share of a patch that is tissue, in (0, 1].
    """
    columns, rows = (int(extent / plan.footprint + 1e-6) for extent in size)
    x, y = (np.floor(np.arange(count) * plan.footprint + 1e-6).astype(np.int64) for count in (columns, rows))
    # Exact shares: the integral of the mask, a sum over whole pixels that is linear in between.
    integral = np.pad(mask.astype(np.float64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    scale_x, scale_y = mask.shape[1] / size[0], mask.shape[0] / size[1]
    left, right = (_clipped((x + shift) * scale_x, mask.shape[1]) for shift in (0, plan.footprint))
    top, bottom = (_clipped((y + shift) * scale_y, mask.shape[0]) for shift in (0, plan.footprint))
    tissue = _at(integral, bottom, right) - _at(integral, top, right)
    tissue -= _at(integral, bottom, left) - _at(integral, top, left)
    share = tissue / (plan.footprint**2 * scale_x * scale_y)
    row, column = np.nonzero(share >= min_tissue - 1e-9)
    return np.stack([x[column], y[row]], axis=1)


def read_patch(slide: Slide, plan: PatchPlan, corner: npt.NDArray[np.int64]) -> Pixels:
    """One patch, uint8 ``(side, side, 3)``.

    Raises:
        Unusable: if the slide is damaged there.
    """
    pixels = slide.read((int(corner[0]), int(corner[1])), plan.level, (plan.read_side, plan.read_side))
    if plan.read_side == plan.side:
        return pixels
    # Pillow's filters widen with the factor: no aliasing.
    return np.asarray(Image.fromarray(pixels).resize((plan.side, plan.side), Image.Resampling.BICUBIC))


def _clipped(position: npt.NDArray[np.float64], end: int) -> npt.NDArray[np.float64]:
    return np.clip(position, 0, end)


def _at(integral: npt.NDArray[np.float64], y: npt.NDArray[np.float64], x: npt.NDArray[np.float64]) -> np.ndarray:
    """``(len(y), len(x))``: the integral at fractional positions, bilinear."""
    below, right = (np.minimum(position.astype(np.int64), end - 2) for position, end in zip((y, x), integral.shape))  # noqa: B905
    v, u = (y - below)[:, None], (x - right)[None, :]
    rows = integral[below] * (1 - v) + integral[below + 1] * v
    return rows[:, right] * (1 - u) + rows[:, right + 1] * u
