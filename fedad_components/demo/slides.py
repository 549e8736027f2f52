"""The slides of ``fedad demo --job histofl``: cut from one real slide, with nuclei of a kind that we plant there.

No hospital, patient or diagnosis is behind them: every slide is a part of ``assets/CMU-1-Small-Region.svs``, mirrored
and stained a little differently. On a slide that is called ``planted``, the nuclei inside some ellipses are brown, not
blue. On each slide, planted or not, one ellipse is darker as a whole, so that darkness tells nothing. Imports no FLARE.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tifffile
from scipy.ndimage import uniform_filter
from skimage.color import hed2rgb, rgb2hed

from fedad_components.demo.data import packaged_picture
from fedad_components.files import write_atomic
from fedad_components.mil.counts import Floats
from fedad_components.slides.catalogue import KEY_FILE
from fedad_components.slides.reader import Pixels

HOSPITALS = ("north", "south", "west")
CLASSES = ("plain", "planted")
SLIDES = 20
"""Of a hospital, half of them planted: two patients of each class to validate on, and two to test."""
MPP = 0.499
"""µm/px of the real slide."""
SIZE = (1152, 896)
"""Width and height of a slide in pixels."""
TISSUE = (420, 120, 1960, 2960)
"""left, top, right, bottom of where slides are cut in the real one: what lies outside is bare glass."""
LEVELS = (1, 4)
TILE = 128
NUCLEUS = 0.06
"""Optical density of haematoxylin above which a pixel is taken for a nucleus's; as scikit-image scales it."""
RADII = (140, 220)
"""Pixels of an ellipse's half axes, least and most."""
MOST_ELLIPSES = 3
DENSE = 0.7
"""Quantile of the smoothed haematoxylin from which on a place may be an ellipse's middle."""
DARKER = 1.35
"""Factor on the optical densities in the ellipse that every slide has."""

Mask = npt.NDArray[np.bool_]


class Picture(NamedTuple):
    """A slide's pixels, uint8 ``(h, w, 3)``, and where nuclei were recoloured, ``(h, w)``."""

    pixels: Pixels
    planted: Mask


def write_hospital(folder: Path, number: int, seed: int) -> Path:
    """Write a hospital's slides and their catalogue, ``slides.csv``; where nuclei are planted goes into ``planted/``.

    Args:
        folder: new or empty.
        number: of the hospital, from 0; its stain and its cuts follow from it and the seed.

    Returns:
        The catalogue's path, as ``fedad slides prepare`` reads it.
    """
    (folder / "scans").mkdir(parents=True)
    (folder / "planted").mkdir()
    # The split follows the pseudonyms, and these the key. Nobody is behind these patients: it need not be secret.
    write_atomic(folder / KEY_FILE, hashlib.sha256(f"{seed} {HOSPITALS[number]}".encode()).digest())
    catalogue = folder / "slides.csv"
    with open(catalogue, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("slide", "slide_id", "patient_id", "label"))
        for index, picture in enumerate(_pictures(number, seed)):
            name = f"{HOSPITALS[number]}-{index:02d}"
            write_pyramid(folder / "scans" / f"{name}.tiff", picture.pixels)
            np.save(folder / "planted" / f"{name}.npy", np.packbits(picture.planted), allow_pickle=False)
            lines.writerow((f"scans/{name}.tiff", name, f"patient of {name}", CLASSES[index % 2]))
    return catalogue


def planted_share(mask_file: Path, corners: npt.NDArray[np.int64], side: float) -> Floats:
    """Share of each patch that lies in a planted ellipse, ``(P,)``.

    Args:
        mask_file: below ``planted/``, as :func:`write_hospital` wrote it.
        corners: x and y of the patches' top left, ``(P, 2)``.
        side: of a patch, in pixels.
    """
    width, height = SIZE
    mask = np.unpackbits(np.load(mask_file, allow_pickle=False), count=width * height).reshape(height, width)
    length = round(side)
    return np.array([mask[y : y + length, x : x + length].mean() for x, y in corners.tolist()])


def write_pyramid(path: Path, pixels: Pixels, levels: tuple[int, ...] = LEVELS, mpp: float = MPP) -> None:
    """A tiled TIFF as OpenSlide reads it; level d holds every d-th pixel of the finest."""
    dots = 10_000 / mpp
    with tifffile.TiffWriter(path) as file:
        for number, step in enumerate(levels):
            file.write(
                np.ascontiguousarray(pixels[::step, ::step]),
                tile=(TILE, TILE),
                photometric="rgb",
                compression="zlib",
                subfiletype=int(number > 0),
                resolution=(dots / step, dots / step),
                resolutionunit="CENTIMETER",
                software=False,
                metadata=None,
            )


def _pictures(number: int, seed: int) -> Iterator[Picture]:
    generator = np.random.default_rng([seed, number])
    left, top, right, bottom = TISSUE
    region = packaged_picture("fedad_components", "demo/assets/CMU-1-Small-Region.svs")[top:bottom, left:right]
    stains = rgb2hed(region)
    stain = generator.uniform(0.85, 1.15, size=3)  # a hospital's own, and below a slide's
    width, height = SIZE
    for index in range(SLIDES):
        x, y = (
            int(generator.integers(0, extent - length + 1))
            for extent, length in ((stains.shape[1], width), (stains.shape[0], height))
        )
        cut = stains[y : y + height, x : x + width][:: generator.choice((1, -1)), :: generator.choice((1, -1))]
        cut = cut * stain * generator.uniform(0.95, 1.05, size=3)
        cut[_ellipses(cut, 1, generator)] *= DARKER
        planted = np.zeros(cut.shape[:2], dtype=bool)
        if index % 2:
            planted = _ellipses(cut, int(generator.integers(1, MOST_ELLIPSES + 1)), generator)
            _recolour(cut, planted)
        yield Picture((hed2rgb(cut) * 255).round().astype(np.uint8), planted)


def _recolour(stains: Floats, where: Mask) -> None:
    """Haematoxylin of the nuclei there becomes DAB, in place: ``(h, w, 3)`` of haematoxylin, eosin, DAB."""
    nuclei = where & (stains[..., 0] > NUCLEUS)
    stains[nuclei, 2] += stains[nuclei, 0]
    stains[nuclei, 0] = 0


def _ellipses(stains: Floats, count: int, generator: np.random.Generator) -> Mask:
    """Ellipses around places that are dense with nuclei: ``(h, w)``."""
    height, width = stains.shape[:2]
    rows, columns = np.mgrid[:height, :width]
    dense = uniform_filter(stains[..., 0], RADII[0])
    nuclei = np.argwhere(dense >= np.quantile(dense, DENSE))
    found = np.zeros((height, width), dtype=bool)
    for y, x in nuclei[generator.choice(len(nuclei), size=count)]:
        a, b = generator.uniform(*RADII, size=2)
        found |= ((columns - x) / a) ** 2 + ((rows - y) / b) ** 2 <= 1
    return found
