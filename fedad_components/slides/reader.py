"""Open a whole-slide image: its levels, its resolution, regions of its pixels. OpenSlide, or Pillow for a plain TIFF.

The label, macro and thumbnail images that travel inside a slide are never asked for; of its properties, only those of
its resolution are. Scanner, user, date and file name so never enter the program.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedad_components.extras import required
from fedad_components.imaging.account import Reason, Unusable

Pixels = npt.NDArray[np.uint8]

MICROSCOPES = (0.05, 10.0)
"""µm/px that a microscope can have. The 72 or 300 dots per inch that image programs write are 353 and 85 µm/px."""
SQUARE = 0.05
"""Width and height of a pixel may differ by this share."""
STRIP_PIXELS = 2**24
"""Pixels in memory at once while an overview is made: 64 MiB."""
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_UNIT = 282, 283, 296
_MICRONS = {2: 25_400.0, 3: 10_000.0}
"""TIFF's ResolutionUnit → µm: inch, centimetre"""


class SlidesError(ValueError):
    """Slides that cannot be prepared at all; the message says what was expected, and names no patient."""


class Resolution(NamedTuple):
    """µm/px of level 0, and who said so: ``slide``, ``catalogue`` or ``option``."""

    mpp: float
    source: str


class Slide(ABC):
    """An open slide. Regions may be read from several threads at once."""

    sizes: tuple[tuple[int, int], ...]
    """Width and height in pixels of each level, the finest first."""
    own_mpp: tuple[float, float] | None
    """µm/px of level 0 along x and y, as the file says; None: it does not."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of level 0."""
        return self.sizes[0]

    @property
    def downsamples(self) -> tuple[float, ...]:
        """Pixels of level 0 for one of each level: the mean of x and y."""
        width, height = self.size
        return tuple((width / w + height / h) / 2 for w, h in self.sizes)

    def read(self, corner: tuple[int, int], level: int, size: tuple[int, int]) -> Pixels:
        """A region as uint8 ``(height, width, 3)``; white where the slide has no pixels.

        Args:
            corner: x and y of its top left, in pixels of level 0.
            level: index into :attr:`sizes`.
            size: width and height, in pixels of that level.

        Raises:
            Unusable: if a tile is damaged.
        """
        with _damage("its pixels cannot be decoded"):
            return self._read(corner, level, size)

    @abstractmethod
    def _read(self, corner: tuple[int, int], level: int, size: tuple[int, int]) -> Pixels: ...

    @abstractmethod
    def close(self) -> None:
        """Give back the file."""

    def overview(self, downsample: float) -> Pixels:
        """The whole slide at 1 / ``downsample`` of level 0, uint8 ``(h, w, 3)``; at least one pixel a side.

        Averaged (Pillow's box filter) from the nearest finer level, strip by strip, so that a slide with a single
        level needs no more memory.
        """
        level = max((i for i, found in enumerate(self.downsamples) if found <= downsample * 1.01), default=0)
        width, height = self.sizes[level]
        factor = downsample / self.downsamples[level]
        factor = factor if factor > 1.01 else 1.0  # that level as it is
        out_w, out_h = max(1, round(width / factor)), max(1, round(height / factor))
        rows = max(1, int(STRIP_PIXELS / (width * height / out_h)))
        strips = []
        for first in range(0, out_h, rows):
            last = min(first + rows, out_h)
            top, bottom = first * height / out_h, last * height / out_h
            start, stop = math.floor(top), min(height, math.ceil(bottom))
            region = self.read((0, round(start * self.size[1] / height)), level, (width, stop - start))
            box = (0, top - start, width, bottom - start)
            strip = Image.fromarray(region).resize((out_w, last - first), Image.Resampling.BOX, box=box)
            strips.append(np.asarray(strip))
        return np.concatenate(strips)


class _Pyramid(Slide):
    """What OpenSlide opens: SVS, DICOM, tiled TIFF and other scanners' formats."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.sizes = tuple(handle.level_dimensions)
        found = [_number(handle.properties.get(f"openslide.mpp-{axis}")) for axis in "xy"]
        self.own_mpp = (found[0], found[1]) if found[0] and found[1] else None

    def _read(self, corner: tuple[int, int], level: int, size: tuple[int, int]) -> Pixels:
        region = self._handle.read_region(corner, level, size)
        white = Image.new("RGB", region.size, (255, 255, 255))
        white.paste(region, mask=region.getchannel("A"))
        return np.asarray(white)

    def close(self) -> None:
        self._handle.close()


class _Plain(Slide):
    """The first image of a TIFF that is no pyramid, in memory as a whole."""

    def __init__(self, path: Path) -> None:
        with Image.open(path, formats=("TIFF",)) as image:
            tags = image.tag_v2
            micron = _MICRONS.get(tags.get(_TIFF_UNIT, 2))
            dots = [_number(tags.get(tag)) for tag in (_TIFF_WIDTH, _TIFF_HEIGHT)]
            self.own_mpp = (micron / dots[0], micron / dots[1]) if micron and dots[0] and dots[1] else None
            if image.mode not in ("RGB", "RGBA", "YCbCr", "CMYK", "P", "L"):
                raise Unusable(Reason.UNDECODABLE, f"pixels of mode {image.mode}: expected colours of 8 bits")
            self._pixels = np.asarray(image.convert("RGB"))
        height, width = self._pixels.shape[:2]
        self.sizes = ((width, height),)

    def _read(self, corner: tuple[int, int], level: int, size: tuple[int, int]) -> Pixels:
        (x, y), (width, height) = corner, size
        region = np.full((height, width, 3), 255, np.uint8)
        left, top = max(x, 0), max(y, 0)
        found = self._pixels[top : max(y + height, 0), left : max(x + width, 0)]
        region[top - y : top - y + found.shape[0], left - x : left - x + found.shape[1]] = found
        return region

    def close(self) -> None:
        del self._pixels


@contextmanager
def open_slide(path: str | Path) -> Iterator[Slide]:
    """Open a slide for the length of a ``with`` block.

    Raises:
        Unusable: with the reason why this file cannot be used, and no word of its content.
        SlidesError: if the extra ``wsi`` is not installed.
    """
    path = Path(path)
    openslide = require_openslide()
    _check_file(path)
    with _damage("it cannot be opened as a slide"):
        if openslide.OpenSlide.detect_format(path) is not None:
            slide: Slide = _Pyramid(openslide.OpenSlide(path))
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's, of large images; larger ones still are its error
                slide = _Plain(path)
    try:
        yield slide
    finally:
        slide.close()


def require_openslide() -> Any:
    """The module ``openslide``.

    Raises:
        SlidesError: if it is not installed; the message has the line that installs it.
    """
    return required("openslide", "whole-slide images need OpenSlide", "wsi", SlidesError)


def resolution(slide: Slide, given: float | None = None, fallback: float | None = None) -> Resolution:
    """µm/px of level 0.

    Args:
        given: of this very slide; it counts more than what the file says.
        fallback: of slides in general; it counts where the file says nothing, or what no microscope has.

    Raises:
        Unusable: if nothing tells it, or pixels are not square.
    """
    fix = "give its µm/px in the catalogue's column 'mpp'"
    if given is not None:
        return Resolution(check_mpp(given, "mpp"), "catalogue")
    low, high = MICROSCOPES
    own = slide.own_mpp
    if own is None or not all(low <= value <= high for value in own):
        if fallback is not None:
            return Resolution(check_mpp(fallback, "mpp"), "option")
        found = "does not tell it" if own is None else f"says {own[0]:g} µm/px, which no microscope has"
        raise Unusable(Reason.NO_RESOLUTION, f"the file {found}: {fix}, or --mpp for all slides that tell none")
    x, y = own
    if abs(x - y) > SQUARE * max(x, y):
        raise Unusable(Reason.NO_RESOLUTION, f"pixels of {x:g} by {y:g} µm are not square: {fix}")
    return Resolution((x + y) / 2, "slide")


def check_mpp(value: float, where: str) -> float:
    """``value`` if a microscope can have it.

    Raises:
        SlidesError: if not.
    """
    low, high = MICROSCOPES
    if not low <= value <= high:
        raise SlidesError(
            f"{where} = {value:g}: expected µm/px from {low} to {high:g}, such as 0.25 at 40x, 0.5 at 20x"
        )
    return value


def _check_file(path: Path) -> None:
    try:
        if not path.exists():
            raise Unusable(Reason.MISSING, "no such file: see its path, which starts at the catalogue's folder")
        if not path.is_file():
            raise Unusable(Reason.NOT_A_FILE, "expected a file; of a DICOM slide, one of its files")
        with open(path, "rb") as stream:
            if not stream.read(1):
                raise Unusable(Reason.EMPTY_FILE, "zero bytes: copy it again")
    except OSError as error:
        raise Unusable(Reason.UNREADABLE, f"{error.strerror}: see its permissions") from None


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Any decoder's error as Unusable; its own words may hold a path or a tag, and are left out."""
    try:
        yield
    except (Unusable, MemoryError):
        raise
    except Image.UnidentifiedImageError:
        raise Unusable(Reason.NOT_AN_IMAGE, "neither OpenSlide nor Pillow knows its format") from None
    except Image.DecompressionBombError:
        limit = f"{2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
        raise Unusable(Reason.UNDECODABLE, f"a TIFF without tiles of more than {limit}: convert it to tiles") from None
    except Exception as error:
        raise Unusable(Reason.UNDECODABLE, f"{what} ({type(error).__name__}): copy it again") from None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None
