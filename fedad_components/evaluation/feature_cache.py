"""Features on disk, found again by the content of weights and images. Imports torch; no FLARE.

Features of patients' images are personal data: the folder is private, and belongs where the images' cache is.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedad_components.files import make_private_dir, write_atomic

FORMAT = 1
"""Raised when features of the same weights and images change, e.g. by another resizing."""

Compute = Callable[[], npt.NDArray[np.float32]]


def content_key(extractor: nn.Module, images: npt.NDArray[np.uint8], image_size: int, variant: str = "") -> str:
    """SHA-256 of everything that the features depend on.

    The extractor's structure as PyTorch prints it, its tensors with name, type and shape, the images' pixels and shape,
    the view's side, and ``variant`` for what is done to the extractor before.
    """
    digest = hashlib.sha256(f"{FORMAT}\n{image_size}\n{variant}\n{extractor}\n".encode())
    for name, tensor in sorted(extractor.state_dict().items()):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
        digest.update(content.reshape(-1).view(torch.uint8).numpy().data)
    digest.update(f"images {images.dtype} {images.shape}\n".encode())
    for image in images:
        digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


class FeatureCache:
    """A folder of ``<key>.npy``, float32 ``(n, F)`` each; deleting files costs time only."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def get(self, key: str, compute: Compute) -> npt.NDArray[np.float32]:
        """The features of ``key``, computed and written if they are not there, or not readable."""
        path = self.folder / f"{key}.npy"
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            features = compute()
        content = io.BytesIO()
        np.save(content, features, allow_pickle=False)
        make_private_dir(self.folder)
        write_atomic(path, content.getvalue())
        return features
