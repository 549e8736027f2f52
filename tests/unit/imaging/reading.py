"""What the readers' tests share: the frames, or the reason of refusal, of one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedad_components.imaging.account import Reason
from fedad_components.imaging.catalogue import DataSet
from fedad_components.imaging.readers import Unusable, read_frames


def entry(**keys: object) -> DataSet:
    """A data set of any folder, with these keys of the catalogue."""
    return DataSet.model_validate({"id": "x", "folder": "/"} | keys)


def frames(path: Path, **keys: object) -> list[np.ndarray]:
    """The file's frames, each checked to be ``uint8 (H, W, 3)``."""
    found = list(read_frames(path, entry(**keys)))
    assert all(frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 for frame in found)
    return found


def reason(path: Path, **keys: object) -> Reason:
    """Why the file is refused."""
    with pytest.raises(Unusable) as caught:
        frames(path, **keys)
    return caught.value.reason
