"""A small picture of a whole slide, and on it the tissue and the patches, for somebody to look at."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from fedad_components.slides.patches import Coordinates, PatchPlan
from fedad_components.slides.reader import Slide
from fedad_components.slides.tissue import Mask

MAX_SIDE = 1600
OUTLINE, GRID = (213, 94, 0), (0, 114, 178)
"""Okabe and Ito's vermilion and blue."""
BACKGROUND_SHOWN = 0.45
"""How much of the picture is left where there is no tissue; the rest is white."""
SMALLEST_CELL = 5
"""Side in pixels below which patches are tinted rather than outlined."""


class Overview(NamedTuple):
    """The whole slide, small."""

    image: Image.Image
    """RGB."""
    scale: float
    """Pixels of the image for one of level 0."""


def render_overview(slide: Slide, max_side: int = MAX_SIDE) -> Overview:
    """The slide with its longer side at most ``max_side`` pixels.

    Raises:
        Unusable: if the slide is damaged.
    """
    downsample = max(1.0, max(slide.size) / max_side)
    image = Image.fromarray(slide.overview(downsample))
    image.thumbnail((max_side, max_side), Image.Resampling.BOX)  # where the level is not an even fraction
    return Overview(image, image.width / slide.size[0])


def draw_review(overview: Overview, mask: Mask, plan: PatchPlan | None, coordinates: Coordinates) -> bytes:
    """A PNG: what is no tissue is faded, tissue is outlined in orange, each patch in blue.

    Args:
        mask: tissue of the whole slide, ``(h, w)``.
        plan: None: there are no patches.
        coordinates: ``(P, 2)``, in pixels of level 0.
    """
    pixels = np.asarray(overview.image, np.float32)
    tissue = np.asarray(Image.fromarray(mask).resize(overview.image.size, Image.Resampling.NEAREST))
    shown = np.where(tissue[:, :, None], pixels, 255 - BACKGROUND_SHOWN * (255 - pixels))
    picture = Image.fromarray(np.rint(shown).astype(np.uint8))
    if plan is not None:
        _draw_patches(picture, overview.scale, plan.footprint, coordinates)
    edge = tissue & ~ndimage.binary_erosion(tissue, iterations=2, border_value=0)
    picture.paste(OUTLINE, mask=Image.fromarray(edge))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def _draw_patches(picture: Image.Image, scale: float, footprint: float, coordinates: Coordinates) -> None:
    side = footprint * scale
    tint = Image.new("L", picture.size, 0)
    draw = ImageDraw.Draw(tint)
    for x, y in coordinates * scale:
        box = (round(x), round(y), max(round(x), round(x + side) - 1), max(round(y), round(y + side) - 1))
        draw.rectangle(box, fill=28, outline=255 if side >= SMALLEST_CELL else None)
    picture.paste(GRID, mask=tint)
