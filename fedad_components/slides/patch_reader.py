"""Slides as training images: a catalogue's ``reader: slide`` yields patches of tissue, at most so many of a slide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedad_components.imaging.account import Reason, Unusable
from fedad_components.imaging.catalogue import DataSet, SlideOptions
from fedad_components.imaging.readers import FrameReader, chosen
from fedad_components.slides.patches import place_patches, plan_patches, read_patch
from fedad_components.slides.reader import open_slide, resolution
from fedad_components.slides.tissue import PRESETS, find_tissue


class SlidePatchReader(FrameReader):
    """Cuts patches while it reads; nothing but the site's cache of images ever holds them."""

    def read(self, data: Any, **kwargs: Any) -> Path:
        """The path: a slide is opened for as long as its patches are read."""
        return Path(data)

    def verify_suffix(self, filename: Any) -> bool:
        """Whatever OpenSlide opens: the name says nothing."""
        return True

    def get_data(self, img: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """A slide is no single array, as MONAI's readers give it.

        Raises:
            TypeError: always.
        """
        raise TypeError("a whole-slide image has patches and no array: expected a call of frames")

    def frames(self, image: Path, data_set: DataSet) -> Iterator[np.ndarray]:
        """Yield ``uint8 (256, 256, 3)`` patches of tissue, evenly spaced over all of the slide's.

        Raises:
            Unusable: with the reason that goes into the account.
        """
        options = data_set.slide or SlideOptions()
        with open_slide(image) as slide:
            mpp = resolution(slide, fallback=options.mpp).mpp
            tissue = find_tissue(slide, mpp, PRESETS[options.tissue])
            if not tissue.mask.any():
                raise Unusable(Reason.NO_TISSUE, f"none with slide.tissue {options.tissue!r}")
            plan = plan_patches(slide, mpp)
            coordinates = place_patches(slide.size, plan, tissue.mask)
            if not len(coordinates):
                raise Unusable(Reason.TOO_FEW_PATCHES, "no patch is tissue by half or more")
            for index in chosen(len(coordinates), data_set):
                yield read_patch(slide, plan, coordinates[index])
