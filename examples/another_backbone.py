"""FedSD on another backbone: torchvision's ViT or ResNet-50, timm's ViT-S, or any module from images to a vector.

    python examples/another_backbone.py                                    # a small vision transformer, seconds
    python examples/another_backbone.py --backbone vit_s --side 224        # ViT-S/16 in torchvision's terms
    python examples/another_backbone.py --backbone resnet50
    python examples/another_backbone.py --backbone timm --side 224         # timm's vit_small_patch16_224

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
from fedad_components.fedsd.trainer import Batch, Student
from fedad_components.fedsd.views import Views

VIT = {
    "vit": {"num_layers": 4, "num_heads": 4, "hidden_dim": 192, "mlp_dim": 768},  # trained in seconds
    "vit_s": {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536},  # ViT-S/16 (Touvron et al. 2021)
}
BACKBONES = (*VIT, "resnet50", "timm")


def backbone(name: str, side: int) -> nn.Module:
    """``(N, 3, side, side)`` to ``(N, 512)``; random weights."""
    if name == "resnet50":
        network = resnet50(weights=None)
        network.fc = nn.Linear(network.fc.in_features, FEATURES)
        return network
    if name == "timm":
        try:
            import timm
        except ImportError:
            raise SystemExit("--backbone timm needs timm: pip install 'fedad[backbones]'") from None
        return timm.create_model("vit_small_patch16_224", pretrained=False, img_size=side, num_classes=FEATURES)
    return VisionTransformer(image_size=side, patch_size=16, num_classes=FEATURES, **VIT[name])


def tiles(picture: np.ndarray, count: int, side: int) -> torch.Tensor:
    """``(count, side, side, 3)`` uint8, cut at random places."""
    corners = np.random.default_rng(0).integers(0, np.array(picture.shape[:2]) - side, (count, 2))
    return torch.from_numpy(np.stack([picture[row : row + side, column : column + side] for row, column in corners]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=BACKBONES, default="vit")
    parser.add_argument("--side", type=int, default=96, help="side of the views in pixels, a multiple of 16 for a ViT")
    parser.add_argument("--images", type=int, default=24, help="of each site; 8 make a step")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    name, side = arguments.backbone, arguments.side
    config, device = FedADConfig.parse({"model": {"image_size": side}}), torch.device("cpu")
    pictures = {"pathology": data.immunohistochemistry(), "ophthalmology": data.retina()[200:1200, 200:1200]}
    sites = {site: tiles(picture, arguments.images, side * 8 // 7) for site, picture in pictures.items()}
    heads = {site: build_head(config.seed, site) for site in sites}
    views, generator = Views(config.views, side), torch.Generator().manual_seed(config.seed)
    torch.manual_seed(config.seed)
    theta = backbone(name, side).state_dict()
    for number in range(arguments.rounds):
        mean = StreamingMean()
        for site, images in sites.items():
            extractor = backbone(name, side)
            extractor.load_state_dict(theta)
            teacher = Teacher(extractor, build_projection(config.seed), config.training, device)
            student = Student(extractor, heads[site], teacher, config, device)
            for batch in images[torch.randperm(len(images), generator=generator)].split(8):
                loss, _ = student.step(Batch(views(batch, generator)), lambda_t=0.5)
            print(f"round {number}, {site}: loss {loss.total:.3f}, NT-Xent {loss.contrastive:.3f}")
            mean.add({key: tensor for key, tensor in extractor.state_dict().items() if tensor.is_floating_point()}, 1)
        theta = {**theta, **mean.result()}


if __name__ == "__main__":
    main()
