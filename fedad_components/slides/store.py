"""A slide's features on disk: safetensors or HDF5 with the same arrays and metadata; written atomically."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedad_components.extras import required
from fedad_components.files import write_atomic
from fedad_components.slides.reader import SlidesError

FORMATS = ("safetensors", "h5")
FEATURES, COORDINATES, METADATA = "features", "coordinates", "fedad"


class StoredFeatures(NamedTuple):
    """What a file holds."""

    features: npt.NDArray[np.float32]
    """``(P, F)``."""
    coordinates: npt.NDArray[np.int64]
    """``(P, 2)``: x and y of each patch's top left corner, in pixels of level 0."""
    metadata: dict[str, Any]
    """Encoder, µm/px, sizes and counts; no file name, nothing of the scanner's."""


def write_features(path: Path, stored: StoredFeatures) -> None:
    """Write a file in the format that its suffix names."""
    arrays = {FEATURES: stored.features, COORDINATES: stored.coordinates}
    text = json.dumps(stored.metadata, sort_keys=True)
    if path.suffix == ".h5":
        content = io.BytesIO()
        with require_h5py().File(content, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array)
            file.attrs[METADATA] = text
        write_atomic(path, content.getvalue())
    else:
        from safetensors.numpy import save

        write_atomic(path, save(arrays, metadata={METADATA: text}))


def read_features(path: Path) -> StoredFeatures:
    """Read a file of :func:`write_features`.

    Raises:
        SlidesError: if it cannot be read, or holds something else.
    """
    try:
        if path.suffix == ".h5":
            with require_h5py().File(path, "r") as file:
                features, coordinates = file[FEATURES][()], file[COORDINATES][()]
                text = file.attrs[METADATA]
        else:
            from safetensors import safe_open

            with safe_open(path, framework="numpy") as file:
                features, coordinates = file.get_tensor(FEATURES), file.get_tensor(COORDINATES)
                text = (file.metadata() or {})[METADATA]
        stored = StoredFeatures(features, coordinates, json.loads(text))
    except SlidesError:
        raise
    except Exception as error:
        raise SlidesError(
            f"{path}: {type(error).__name__}: expected a file of 'fedad slides prepare': delete it and prepare again"
        ) from None
    if features.dtype not in (np.float32, np.float16) or coordinates.dtype != np.int64:
        raise SlidesError(
            f"{path}: features of {features.dtype}, coordinates of {coordinates.dtype}: expected float32 or float16, "
            f"and int64: prepare again"
        )
    if coordinates.shape != (len(features), 2) or not isinstance(stored.metadata, dict):
        raise SlidesError(
            f"{path}: coordinates {coordinates.shape} of features {features.shape}: expected a place (x, y) of each "
            f"patch, and a JSON object of metadata: prepare again"
        )
    return stored


def require_h5py() -> Any:
    """The module ``h5py``.

    Raises:
        SlidesError: if it is not installed; the message has the line that installs it.
    """
    return required("h5py", "HDF5 files need h5py", "wsi", SlidesError)
