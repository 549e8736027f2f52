"""Frozen features h = f(x; theta) of images, for a probe. Imports torch, torchvision and Pillow; no FLARE."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from fedad_components.fedsd.views import normalise


def read_images(files: Sequence[Path], side: int) -> npt.NDArray[np.uint8]:
    """Read pictures as uint8 RGB ``(n, side, side, 3)``; of one that is not square, the centre is kept.

    Raises:
        ValueError: if a file is no picture that Pillow can read; the message names its number, not its name.
    """
    images = np.empty((len(files), side, side, 3), dtype=np.uint8)
    for number, file in enumerate(files):
        try:
            with Image.open(file) as image:
                images[number] = np.asarray(ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BICUBIC))
        except OSError:
            raise ValueError(f"image {number} of {len(files)} cannot be read; expected PNG, JPEG or TIFF") from None
    return images


def extract_features(
    extractor: nn.Module,
    images: npt.NDArray[np.uint8],
    image_size: int,
    batch_size: int = 64,
    device: torch.device | str | None = None,
) -> npt.NDArray[np.float32]:
    """Features of whole images: resized to the extractor's view, no augmentation, evaluation mode, no gradient.

    Args:
        extractor: ``(N, 3, H, W)``, ImageNet-normalised, to ``(N, F)``; its mode and device are restored afterwards.
        images: uint8 ``(n, S, S, 3)``, RGB.
        image_size: side of the extractor's views in pixels.
        batch_size: images in a forward pass; the features do not depend on it.
        device: where to compute; none: where the extractor is.

    Returns:
        float32 ``(n, F)``, in the order of the images.

    Raises:
        ValueError: if there are no images, or they are not uint8 ``(n, S, S, 3)``.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or len(images) == 0:
        raise ValueError(f"expected at least one image as uint8 (n, S, S, 3), got {images.dtype} {images.shape}")
    home = next(extractor.parameters()).device
    device = torch.device(device or home)
    was_training = extractor.training
    extractor.to(device).eval()
    try:
        with torch.inference_mode():
            batches = (images[start : start + batch_size] for start in range(0, len(images), batch_size))
            features = [extractor(whole_view(batch, image_size, device)).float().cpu() for batch in batches]
    finally:
        extractor.to(home).train(was_training)
    return torch.cat(features).numpy()


def whole_view(images: npt.NDArray[np.uint8], image_size: int, device: torch.device) -> Tensor:
    """uint8 ``(N, S, S, 3)`` to normalised ``(N, 3, image_size, image_size)``, resized as the views' crops are."""
    x = torch.from_numpy(np.array(images)).to(device).permute(0, 3, 1, 2)
    return normalise(F.resize(x, [image_size, image_size], antialias=True).float() / 255)
