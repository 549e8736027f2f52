"""FedSD on another backbone: torchvision's ViT or ResNet-50, or any module from images to a vector.

    python examples/another_backbone.py                    # a small vision transformer
    python examples/another_backbone.py --backbone resnet50

The loss, head, teacher and views know nothing of the backbone but that it gives 512 numbers for an image; one linear
layer sees to that. A job in FLARE is bound to ResNet-18, whose tensors both ends check by name and shape.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from skimage import data
from torch import nn
from torchvision.models import resnet50
from torchvision.models.vision_transformer import VisionTransformer

from fedad_components.aggregation import StreamingMean
from fedad_components.config import FedADConfig
from fedad_components.fedsd.model import FEATURES, build_head, build_projection
from fedad_components.fedsd.teacher import Teacher
from fedad_components.fedsd.trainer import Student
from fedad_components.fedsd.views import Views

SIDE = 96


def backbone(name: str) -> nn.Module:
    """``(N, 3, 96, 96)`` to ``(N, 512)``."""
    if name == "resnet50":
        network = resnet50(weights=None)
        network.fc = nn.Linear(network.fc.in_features, FEATURES)
        return network
    # ViT-S is hidden_dim=384, num_layers=12, num_heads=6, mlp_dim=1536; this one is trained in seconds.
    return VisionTransformer(
        image_size=SIDE, patch_size=16, num_layers=4, num_heads=4, hidden_dim=192, mlp_dim=768, num_classes=FEATURES
    )


def tiles(picture: np.ndarray, count: int = 24, side: int = 110) -> torch.Tensor:
    """``(count, side, side, 3)`` uint8, cut at random places."""
    corners = np.random.default_rng(0).integers(0, np.array(picture.shape[:2]) - side, (count, 2))
    return torch.from_numpy(np.stack([picture[row : row + side, column : column + side] for row, column in corners]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=("vit", "resnet50"), default="vit")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    config, device = FedADConfig.parse({"model": {"image_size": SIDE}}), torch.device("cpu")
    sites = {"pathology": tiles(data.immunohistochemistry()), "ophthalmology": tiles(data.retina()[200:1200, 200:1200])}
    heads = {site: build_head(config.seed, site) for site in sites}
    views, generator = Views(config.views, SIDE), torch.Generator().manual_seed(config.seed)
    torch.manual_seed(config.seed)
    theta = backbone(arguments.backbone).state_dict()
    for number in range(arguments.rounds):
        mean = StreamingMean()
        for site, images in sites.items():
            extractor = backbone(arguments.backbone)
            extractor.load_state_dict(theta)
            teacher = Teacher(extractor, build_projection(config.seed), config.training, device)
            student = Student(extractor, heads[site], teacher, config, device)
            for batch in images[torch.randperm(len(images), generator=generator)].split(8):
                loss, _ = student.step(views(batch, generator), lambda_t=0.5)
            print(f"round {number}, {site}: loss {loss.total:.3f}, NT-Xent {loss.contrastive:.3f}")
            mean.add({key: tensor for key, tensor in extractor.state_dict().items() if tensor.is_floating_point()}, 1)
        theta = {**theta, **mean.result()}


if __name__ == "__main__":
    main()
