"""Style of an image: a target for z_d of its own (``domain_target: style``). Imports torch only.

Statistics of the image as acquired, before any augmentation: channel moments, the stain vector in optical density and
the radial power spectrum. They are standardised over the site's images, so that z_d has to tell these apart instead of
meeting one constant, and they stay at the site.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fedad_components.fedsd.model import LATENT, orthonormal
from fedad_components.fedsd.pixels import DARKEST, grey

BANDS = 8
"""Rings of the spectrum, up to the Nyquist frequency."""
STATISTICS = 9 + 3 + BANDS
EPS = 1e-6


def channel_moments(x: Tensor) -> Tensor:
    """``(N, 3, S, S)`` to ``(N, 9)``: mean, standard deviation and skewness of each channel."""
    values = x.flatten(2)
    mean = values.mean(dim=2)
    centred = values - mean[..., None]
    std = centred.square().mean(dim=2).sqrt()
    skewness = centred.pow(3).mean(dim=2) / (std.pow(3) + EPS)
    return torch.cat([mean, std, skewness], dim=1)


def stain_vector(x: Tensor) -> Tensor:
    """``(N, 3, S, S)`` to ``(N, 3)``: unit vector along which optical density varies most from no stain.

    The first right singular vector of the pixels' optical densities, not centred: blank pixels have density 0, as in
    Macenko's stain estimation. Its sign is that of a positive stain.
    """
    density = -x.clamp_min(DARKEST).log().flatten(2).double()
    _, vectors = torch.linalg.eigh(density @ density.mT)
    principal = vectors[..., -1]
    sign = torch.where(principal.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)
    return cast(Tensor, (principal * sign).to(x.dtype))


def radial_spectrum(x: Tensor) -> Tensor:
    """``(N, 3, S, S)`` to ``(N, 8)``: log of the luma's mean power in rings of spatial frequency."""
    luma = grey(x)[:, 0]
    side = luma.shape[-1]
    power = torch.fft.rfft2(luma - luma.mean(dim=(1, 2), keepdim=True), norm="ortho").abs().square()
    frequency = torch.hypot(torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)[None]).to(x.device)
    ring = (frequency * 2 * BANDS).long().clamp_max(BANDS - 1).flatten()
    total = power.new_zeros(len(x), BANDS).index_add_(1, ring, power.flatten(1))
    return (total / ring.bincount(minlength=BANDS).clamp_min(1) + EPS).log()


def style_statistics(images: Tensor) -> Tensor:
    """``(N, S, S, 3)`` uint8 to ``(N, 20)``: moments, stain vector, spectrum."""
    x = images.permute(0, 3, 1, 2).float().div(255).contiguous()
    return torch.cat([channel_moments(x), stain_vector(x), radial_spectrum(x)], dim=1)


def style_targets(statistics: Tensor, seed: int) -> Tensor:
    """All the site's statistics ``(n, 20)`` to targets for z_d ``(n, 128)``.

    Standardised over the site, then embedded by a public matrix with orthonormal columns, which keeps every angle.
    """
    centred = statistics - statistics.mean(dim=0)
    standardised = centred / (statistics.std(dim=0, correction=0) + EPS)
    return standardised @ orthonormal(LATENT, STATISTICS, seed, "style").T
