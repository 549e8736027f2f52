"""Extractor f(x; theta), private head g(h; phi) and the teacher's fixed projection p. Imports torch, torchvision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet18
from torchvision.models.resnet import BasicBlock, ResNet

from fedad_components.fedsd.seeds import stream, stream_seed

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig, ModelConfig

FEATURES = 512
"""Length of h = f(x; theta), and of the heads' hidden layers."""
LATENT = 128
"""Length of z_s, of z_d and of z_g."""
SMALL_STEM_BELOW = 96
"""Views with a shorter side, in pixels, get the 3x3 stem where ``model.stem`` is auto."""
LOCAL_PART = "appearance."
"""Begins the names, inside a head, of what stays at the site when the head is aggregated."""
FULL_WIDTH = 64
"""ResNet-18's ``model.base_channels``."""


def has_small_stem(config: ModelConfig) -> bool:
    """Whether views are so small that the 7x7 stem and its max-pool would leave no map to learn on."""
    return config.stem == "small" or (config.stem == "auto" and config.image_size < SMALL_STEM_BELOW)


def feature_count(config: ModelConfig) -> int:
    """Length of h: 512, or 256 at half the width."""
    return FEATURES // FULL_WIDTH * config.base_channels


class ScaleShift(nn.Module):
    """BatchNorm whose statistics are the constants 0 and 1: ``weight * x + bias`` for each channel of ``(N, C, H, W)``.

    No image depends on another, nothing is estimated, and there is no buffer. It runs as BatchNorm in evaluation mode,
    which is the fastest of PyTorch's kernels for this, forwards and backwards.
    """

    eps = 0.0

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    @property
    def running_mean(self) -> Tensor:
        """``(C,)`` zeros."""
        return torch.zeros_like(self.bias)

    @property
    def running_var(self) -> Tensor:
        """``(C,)`` ones."""
        return torch.ones_like(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


NORM_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "local": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(32, channels),
    "folded": ScaleShift,
}
"""``model.norm`` to the layer for a number of channels."""


class SlimResNet(ResNet):
    """torchvision's ResNet with ``base_channels`` in the stem and the first stage, in place of 64, and so on."""

    def __init__(self, base_channels: int, norm_layer: Callable[[int], nn.Module]) -> None:
        self.base_channels = base_channels
        super().__init__(BasicBlock, [2, 2, 2, 2], norm_layer=norm_layer)

    def _make_layer(self, block: Any, planes: int, *args: Any, **kwargs: Any) -> nn.Sequential:
        if planes == FULL_WIDTH:  # the first stage: the stem before it was made with 64
            self.inplanes = self.base_channels
            self.conv1 = nn.Conv2d(3, self.inplanes, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = self._norm_layer(self.inplanes)
        return super()._make_layer(block, planes * self.base_channels // FULL_WIDTH, *args, **kwargs)


def build_extractor(config: ModelConfig, seed: int = 0) -> ResNet:
    """torchvision's ResNet-18 without its last layer: ``(N, 3, H, W)`` normalised images to h ``(N, 512)``.

    With ``base_channels: 32``, h is ``(N, 256)``. Weights are random, from the experiment's seed and therefore the same
    at every site.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "extractor"))
        norm_layer, channels = NORM_LAYERS[config.norm], config.base_channels
        full_width = channels == FULL_WIDTH
        extractor = resnet18(norm_layer=norm_layer) if full_width else SlimResNet(channels, norm_layer)
        if has_small_stem(config):
            extractor.conv1 = nn.Conv2d(3, channels, kernel_size=3, stride=1, padding=1, bias=False)
            nn.init.kaiming_normal_(extractor.conv1.weight, mode="fan_out", nonlinearity="relu")
            extractor.maxpool = nn.Identity()
    extractor.fc = nn.Identity()
    return extractor


class PredictedProjection(nn.Module):
    """BYOL's projector and predictor (Grill et al. 2020): h ``(N, 512)`` to q and y side by side, ``(N, 256)``.

    y ``(N, 128)`` is the projection, q ``(N, 128)`` the prediction of the other view's: they take the places of z_s and
    z_d. Nothing but trained weights of a head is on the wire.
    """

    def __init__(self, features: int = FEATURES, norm: str = "none") -> None:
        super().__init__()
        self.projector = two_layers(features, LATENT, norm)
        self.predictor = two_layers(LATENT, LATENT, norm)

    def forward(self, h: Tensor) -> Tensor:
        y = self.projector(h)
        return torch.cat([self.predictor(y), y], dim=-1)


class ShapeAndAppearance(nn.Module):
    """FedDis's head: h ``(N, 512)`` to shape z_s and appearance z_d, side by side ``(N, 256)``.

    Each has two layers of its own, so that those of appearance can stay at the site.
    """

    def __init__(self, features: int = FEATURES, norm: str = "none") -> None:
        super().__init__()
        self.shape = two_layers(features, LATENT, norm)
        self.appearance = two_layers(features, LATENT, norm)

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([self.shape(h), self.appearance(h)], dim=-1)


def two_layers(inputs: int, outputs: int, norm: str = "none") -> nn.Sequential:
    """Linear, ReLU, Linear, with 512 in between; ``norm`` batch: BatchNorm before the ReLU.

    It normalises by the batch in evaluation mode too: a head only trains, and running statistics would be one more
    thing that says something about a site's images.
    """
    inner = [nn.BatchNorm1d(FEATURES, track_running_stats=False)] if norm == "batch" else []
    return nn.Sequential(nn.Linear(inputs, FEATURES), *inner, nn.ReLU(inplace=True), nn.Linear(FEATURES, outputs))


def build_head(seed: int, site: str, method: str = "fedad", features: int = FEATURES, norm: str = "none") -> nn.Module:
    """g(h; phi): ``(N, features)`` to ``(N, 256)``, to be split by :func:`split`.

    Random weights from the site's stream. FedEMA and FedDis have a head of their own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "head", site))
        own = {"fedema": PredictedProjection, "feddis": ShapeAndAppearance}.get(method)
        return own(features, norm) if own else two_layers(features, 2 * LATENT, norm)


def head_of(config: FedADConfig, site: str) -> nn.Module:
    """The head with which a site starts an experiment; :data:`~fedad_components.fedsd.seeds.PUBLIC`: everybody's."""
    return build_head(config.seed, site, config.method, feature_count(config.model), config.loss.head_norm)


def split(z: Tensor) -> tuple[Tensor, Tensor]:
    """The semantic and domain halves z_s, z_d, ``(..., 128)`` each, of a head's output ``(..., 256)``."""
    z_s, z_d = z.split(LATENT, dim=-1)
    return z_s, z_d


def orthonormal(rows: int, columns: int, seed: int, purpose: str) -> Tensor:
    """Matrix ``(rows, columns)``, float32, whose shorter side is orthonormal, from a public seed.

    QR of a Gaussian matrix; the signs of R's diagonal are fixed, so that every LAPACK returns the same matrix.
    """
    longer, shorter = max(rows, columns), min(rows, columns)
    gaussian = torch.randn(longer, shorter, dtype=torch.float64, generator=stream(seed, purpose))
    q, r = torch.linalg.qr(gaussian)
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return (q if rows == longer else q.T).float().contiguous()


def build_projection(seed: int, features: int = FEATURES) -> nn.Linear:
    """p: teacher features ``(N, features)`` to z_g ``(N, 128)``; orthonormal rows, no bias, never trained."""
    projection = nn.Linear(features, LATENT, bias=False).requires_grad_(False)
    projection.weight.copy_(orthonormal(LATENT, features, seed, "projection"))
    return projection


@torch.no_grad()
def estimate_statistics(extractor: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace BatchNorm's running statistics by the average over ``batches`` of ``(N, 3, H, W)`` normalised images.

    Needed with ``norm: local``, whose weights travel without statistics: a site that joins late, or a new data set, has
    to measure its own.
    """
    layers = [layer for layer in extractor.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    was_training = extractor.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # PyTorch's spelling of a plain average over all batches
    extractor.train()
    for batch in batches:
        extractor(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    extractor.train(was_training)
