"""Template of a site's own image reader: tiles that another program exported as NumPy arrays (``.npy``).

Copy it into the kit's ``local/custom/``, change what your files need, and name it in ``local/fedad/catalogue.yaml``::

    data_sets:
      images:
        folder: /data/exported-tiles
        pattern: "*.npy"
        reader: npy_reader:NpyReader
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.data.image_reader import ImageReader


class NpyReader(ImageReader):
    """Reads ``(H, W)`` grey or ``(H, W, 3)`` RGB arrays, uint8; any other type is scaled to its own range by FedAD.

    A reader is created without arguments and needs three methods. FedAD turns what ``get_data`` returns into square
    8-bit images, and counts a file whose reading raises as undecodable: raise, never guess.
    """

    def verify_suffix(self, filename: Sequence[str | Path] | str | Path) -> bool:
        """Whether this reader takes the file."""
        return str(filename).endswith(".npy")

    def read(self, data: Sequence[str | Path] | str | Path, **kwargs: Any) -> np.ndarray:
        """Open one file. ``allow_pickle=False``: a pickled array could run code on this machine."""
        array = np.load(str(data), allow_pickle=False)
        if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
            raise ValueError(f"array of shape {array.shape}: expected (H, W) or (H, W, 3)")
        return array

    def get_data(self, img: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """MONAI's order of axes: x first, then y, then channels; the meta says where the channels are."""
        channel = 2 if img.ndim == 3 else float("nan")
        return np.swapaxes(img, 0, 1), {"original_channel_dim": channel}
