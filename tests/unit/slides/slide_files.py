"""What the slides' tests share: pictures with tissue, pyramids as scanners write them, a small encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tifffile
import torch
from torch import nn

from fedad_components.slides.encoder import Encoder
from fedad_components.slides.reader import Pixels

SCANNER_TAGS = "Scanned |ScanScope ID = SCANNER7|User = doctor-who|Date = 12/29/09|Filename = Smith John"


def tissue_picture(width: int, height: int, *pieces: tuple[int, int, int, int], seed: int = 0) -> Pixels:
    """White, with pink pieces ``(left, top, right, bottom)`` of noise, uint8 ``(height, width, 3)``."""
    picture = np.full((height, width, 3), 245, np.uint8)
    pink = np.random.default_rng(seed).integers((150, 40, 110), (220, 110, 180), (height, width, 3), dtype=np.uint8)
    for left, top, right, bottom in pieces:
        picture[top:bottom, left:right] = pink[top:bottom, left:right]
    return picture


def write_pyramid(
    path: Path,
    picture: Pixels,
    mpp: float | None = 0.5,
    levels: Sequence[int] = (1, 4, 16, 32),
    unit: str = "CENTIMETER",
) -> Path:
    """A tiled pyramid; level d holds every d-th pixel. Without ``mpp``, it tells no resolution."""
    dots = None if mpp is None else {"CENTIMETER": 1e4, "INCH": 25400}[unit] / mpp
    with tifffile.TiffWriter(path) as file:
        for number, step in enumerate(levels):
            file.write(
                np.ascontiguousarray(picture[::step, ::step]),
                tile=(64, 64),
                photometric="rgb",
                subfiletype=int(number > 0),
                resolution=None if dots is None else (dots / step, dots / step),
                resolutionunit=None if dots is None else unit,
                description=SCANNER_TAGS if number == 0 else None,
                software="SCANNER7",
                datetime="2009:12:29 09:59:15",
                metadata=None,
            )
    return path


def small_encoder(features: int = 6) -> Encoder:
    """``(N, 3, S, S)`` to ``(N, features)``; a convolution and a mean."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, features, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    return Encoder("small", module.requires_grad_(False), "0" * 64, random=True)
