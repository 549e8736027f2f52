"""FedDis (Bercea, Wiestler, Rueckert and Albarqouni 2022, "Federated disentangled representation learning for
unsupervised brain anomaly detection") on NT-Xent: shape is shared, appearance stays.

The paper trains two encoders and a decoder. Kept are its two losses on the codes and what is aggregated; the decoder's
reconstruction is replaced by NT-Xent on the shape code, and one extractor feeds both codes. Nothing but orthogonality
therefore tells the appearance code what to hold.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedad_components.fedsd.losses import Loss, alive, cos, full
from fedad_components.fedsd.model import LOCAL_PART, split
from fedad_components.fedsd.pixels import per_image
from fedad_components.fedsd.views import denormalise, normalise
from fedad_components.methods.local import LocalMethod, on_cpu

GAMMA = (0.5, 2.0)
"""Range of the exponent by which intensities are changed."""


def shape_consistency(z_s: Tensor, z_shifted: Tensor) -> Tensor:
    """L_SCL: mean of 1 - cos(z_s, z_s'), z_s' the constant shape code under changed intensities; both ``(..., D)``."""
    return (1 - cos(z_s, z_shifted)).mean()


def latent_orthogonality(z_s: Tensor, z_d: Tensor) -> Tensor:
    """L_LOL: mean of max(0, cos(z_d, z_s)), z_s a constant: appearance turns away from shape; both ``(..., D)``."""
    return cos(z_d, z_s.detach()).clamp_min(0).where(alive(z_d), 0).mean()


def shift_intensities(x: Tensor, gamma: Tensor) -> Tensor:
    """Each normalised view ``(V, 3, P, P)`` with intensities i^gamma, ``gamma`` ``(V,)``."""
    return normalise(denormalise(x).clamp(0, 1).pow(per_image(gamma)))


class FedDis(LocalMethod):
    """NT-Xent + w (L_SCL + L_LOL), from the first round on; the paper's weights come late and are w = 0.2 each."""

    def begin_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self._modules = (extractor, head)
        self._appearance = head.get_submodule(LOCAL_PART.removesuffix("."))
        if self.kept:
            self._appearance.load_state_dict(self.kept)

    def loss(self, x: Tensor, z_s: Tensor, z_d: Tensor) -> Loss:
        shape = super().loss(x, z_s, z_d)
        with torch.autocast(z_s.device.type, enabled=False):
            orthogonality = self.config.baselines.dis_weight * latent_orthogonality(full(z_s), full(z_d))
        return shape._replace(total=shape.total + orthogonality, orthogonality=orthogonality)

    def pull(self, x: Tensor, z_s: Tensor) -> Tensor:
        gamma = torch.empty(len(x)).uniform_(*GAMMA, generator=self.generator).to(x.device)
        shifted = self._shape(shift_intensities(x, gamma)).unflatten(0, (2, -1))
        return self.config.baselines.dis_weight * shape_consistency(z_s, shifted)

    @torch.no_grad()
    def _shape(self, x: Tensor) -> Tensor:
        """z_s ``(2N, 128)`` of the model as it is, in evaluation mode: no statistics are taken of changed views."""
        extractor, head = self._modules
        extractor.eval()
        z_s, _ = split(head(extractor(x)))
        extractor.train()
        return full(z_s)

    def end_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self.kept = on_cpu(self._appearance.state_dict())
