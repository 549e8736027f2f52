"""FedDG (Liu, Chen, Qin, Dou and Heng 2021, "FedDG: Federated domain generalization on medical image segmentation via
episodic learning in continuous frequency space") on NT-Xent.

**Not private**: amplitudes of low spatial frequencies of single images go to the server and on to other sites. Without
the phase they show no structure, but they are a fingerprint of an image: its mean colour, contrast and coarse texture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedad_components.fedsd.pixels import per_image
from fedad_components.methods.local import SHARED_PREFIX, LocalMethod

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig

SPECTRA = SHARED_PREFIX + "spectra"
SAME = 0.01
"""Relative difference below which a spectrum of the bank is the site's own, rounded on the wire."""


def mask_half_width(config: FedADConfig) -> int:
    """h, at least 1: the mask M holds the frequencies from -h to h cycles an image on both axes."""
    return max(1, int(config.baselines.dg_alpha * config.model.image_size))


def spectrum(images: Tensor) -> Tensor:
    """Eq. 1: ``(N, S, S, 3)`` uint8 to ``(N, 3, S, S)`` complex, an image's mean in the centre, at S // 2.

    Divided by the number of pixels, so that amplitudes of images of different size compare.
    """
    planes = images.permute(0, 3, 1, 2).float().div(255)
    return torch.fft.fftshift(torch.fft.fft2(planes, norm="forward"), dim=(-2, -1))


def masked(spectra: Tensor, half_width: int) -> Tensor:
    """What is inside the mask, as a view: ``(..., S, S)`` to ``(..., 2h + 1, 2h + 1)``."""
    start = spectra.shape[-1] // 2 - half_width
    return spectra[..., start : start + 2 * half_width + 1, start : start + 2 * half_width + 1]


def interpolated(images: Tensor, amplitudes: Tensor, strength: Tensor) -> Tensor:
    """Eqs. 2-3: A' = (1 - lambda) A M + lambda A_n M + A (1 - M), under the image's own phase.

    Args:
        images: ``(N, S, S, 3)`` uint8.
        amplitudes: A_n inside the mask, ``(N, 3, 2h + 1, 2h + 1)``.
        strength: lambda, ``(N,)`` in [0, 1].

    Returns:
        uint8, as ``images``.
    """
    changed = spectrum(images)
    low = masked(changed, amplitudes.shape[-1] // 2)
    low.copy_(torch.polar(torch.lerp(low.abs(), amplitudes, per_image(strength)), low.angle()))
    x = torch.fft.ifft2(torch.fft.ifftshift(changed, dim=(-2, -1)), norm="forward").real
    return x.mul(255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class FedDG(LocalMethod):
    """The second view of an image is one of its interpolation with an image of another site's, lambda ~ U(0, 1).

    The paper trains on the one and tests on the other within each step, supervised (episodic learning), and pulls the
    features of boundaries together; NT-Xent asks for both at once, without labels or boundaries. A site sends the same
    few images' amplitudes in each round, where the paper's sends all; the server passes a mixture of all sites' on.
    """

    @staticmethod
    def shared_spec(config: FedADConfig) -> dict[str, tuple[int, ...]]:
        side = 2 * mask_half_width(config) + 1
        return {SPECTRA: (config.baselines.dg_spectra, 3, side, side)}

    def prepare(self, load: Callable[[Tensor], Tensor], count: int, generator: torch.Generator) -> None:
        turn = torch.arange(self.config.baselines.dg_spectra) % count
        chosen = load(torch.randperm(count, generator=generator)[turn])
        self._own = masked(spectrum(chosen), mask_half_width(self.config)).abs().cpu().contiguous()

    def receive(self, shared: Mapping[str, Tensor], generator: torch.Generator) -> None:
        super().receive(shared, generator)
        bank = shared[SPECTRA]
        empty = (bank == 0).flatten(1).all(dim=1)  # before the first round
        own = torch.isclose(bank, self._own, rtol=SAME, atol=SAME / 10).flatten(1).all(dim=1)
        self._others = bank[~(empty | own)]

    def sources(self, images: Tensor) -> Tensor:
        if not len(self._others):
            return images
        chosen = torch.randint(len(self._others), (len(images),), generator=self.generator)
        strength = torch.rand(len(images), generator=self.generator)
        amplitudes = self._others[chosen].to(images.device)
        return torch.cat([images, interpolated(images, amplitudes, strength.to(images.device))])

    def send(self) -> dict[str, Tensor]:
        return {SPECTRA: self._own}
