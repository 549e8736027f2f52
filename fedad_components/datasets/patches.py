"""Patches in HDF5 files: check them, and write them out as PNG, which the catalogue's readers know. Needs h5py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedad_components.datasets.spec import Patches, PrepareError
from fedad_components.extras import required

CHUNK = 1024
"""Patches in memory at once"""


def read_labels(patches: Patches, source: Path, split: str) -> list[str]:
    """The labels of a split, as texts, after checking the shapes of images and labels.

    Raises:
        PrepareError: if a file is missing or no HDF5, or a shape or type is not the published one.
    """
    with _open(source / patches.labels.format(split=split)) as file:
        values = np.asarray(_data_set(file, "y"))
        if values.size != len(values):
            raise PrepareError(f"{file.filename}: expected one label for each patch, found y of {values.shape}")
    with _open(source / patches.images.format(split=split)) as file:
        images = _data_set(file, "x")
        expected = (len(values), patches.side, patches.side, 3)
        if images.shape != expected or images.dtype != np.uint8:
            raise PrepareError(f"{file.filename}: expected x as uint8 {expected}, found {images.dtype} {images.shape}")
    return [str(int(value)) for value in values.ravel()]


def write_png(patches: Patches, source: Path, split: str, folder: Path, done: Callable[[int], None]) -> None:
    """Write a split's patches as ``folder/000000.png`` and on; those already there are kept: a killed run continues.

    Args:
        done: called with the number of patches since the last call.

    Raises:
        PrepareError: as :func:`read_labels`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = set(os.listdir(folder))
    with _open(source / patches.images.format(split=split)) as file:
        images = _data_set(file, "x")
        for first in range(0, len(images), CHUNK):
            names = [f"{number:06d}.png" for number in range(first, min(first + CHUNK, len(images)))]
            if not there.issuperset(names):
                for name, pixels in zip(names, images[first : first + CHUNK], strict=True):
                    temporary = folder / f".{name}.tmp"
                    Image.fromarray(pixels).save(temporary, format="PNG")
                    os.replace(temporary, folder / name)
            done(len(names))


def _open(path: Path) -> Any:
    h5py = required("h5py", "HDF5 files need h5py", "datasets", PrepareError)
    if not path.is_file():
        packed = " (its .gz is there: unpack it with gunzip)" if path.with_name(f"{path.name}.gz").is_file() else ""
        raise PrepareError(f"{path}: not found{packed}")
    try:
        return h5py.File(path, "r")
    except OSError:
        raise PrepareError(f"{path}: cannot be read: expected an HDF5 file; was it copied whole?") from None


def _data_set(file: Any, name: str) -> Any:
    if name not in file:
        raise PrepareError(f"{file.filename}: expected the data set {name!r}, found {', '.join(file) or 'none'}")
    return file[name]
