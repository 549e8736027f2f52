"""The encoder of ``fedad demo --job histofl``: FedAD's network with weights that nobody has trained.

It is enough for colour and texture, which is all that the demo's planted nuclei are; a study takes an encoder that was
trained on tissue. Every hospital gets the same file, and the job names its digest. Imports no FLARE.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock
from torchvision.transforms.v2 import functional as F

from fedad_components.config import FedADConfig
from fedad_components.demo.data import packaged_picture
from fedad_components.demo.tiles import textured, tiles
from fedad_components.fedsd.model import build_extractor
from fedad_components.fedsd.state import save_extractor, wire_state
from fedad_components.fedsd.views import IMAGENET_MEAN, IMAGENET_STD

FEATURES = 256
"""Of half the width, for machines without a GPU."""
IMAGE_SIZE = 64
"""Pixels that a patch is resized to."""
TILE = 128


def write_encoder(path: Path, seed: int) -> None:
    """Write seeded weights as a job of FedAD exports them.

    Residual branches begin at zero (Goyal et al. 2017, section 5.1), since a deep network of random weights loses the
    colour. BatchNorm's statistics are those of the real slide's tiles, so that features vary from patch to patch.
    """
    config = FedADConfig.parse(
        {"seed": seed, "model": {"image_size": IMAGE_SIZE, "base_channels": 32, "stem": "imagenet"}}
    )
    network = build_extractor(config.model, config.seed)
    for module in network.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics of the one batch below, and nothing of their first values
    slide = packaged_picture("fedad_components", "demo/assets/CMU-1-Small-Region.svs")
    cut = torch.from_numpy(np.stack(textured(list(tiles(slide, TILE, TILE)), least=20)))
    views = F.resize(cut.permute(0, 3, 1, 2), [IMAGE_SIZE, IMAGE_SIZE], antialias=True)
    with torch.inference_mode():
        network.train()(F.normalize(views.float() / 255, IMAGENET_MEAN, IMAGENET_STD))
    save_extractor(path, wire_state(network), config)
