"""``privacy.mode: client_dp``: differential privacy for a whole hospital, by a server that is trusted with the noise.

DP-FedAvg (McMahan et al. 2018) with uniform weights and a fixed denominator: a site clips its update to S, the server
adds N(0, (z S)^2 I) to the sum. A hospital that is there or not changes the sum by at most S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedad_components.config import ExperimentConfig

LARGEST_RATIO = 1.0
"""Noise over update, as lengths, above which the noise is longer than all updates together can be."""


class ClientDPRefused(ValueError):
    """A federation so small that the noise would drown the update; the message names the ratio and the fix."""


def clip_update(update: Mapping[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """``update`` scaled to an L2 norm of at most ``max_norm`` over all tensors together; a shorter one is unchanged.

    Raises:
        ValueError: if the update is not finite.
    """
    norm = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in update.values()))
    if not math.isfinite(norm):
        raise ValueError("the update is not finite: it cannot be clipped")
    factor = min(1.0, max_norm / norm) if norm else 1.0
    return {name: tensor * factor for name, tensor in update.items()}


def noise_sum(
    total: Mapping[str, Tensor], sites: int, *, noise_multiplier: float, max_norm: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """(sum of clipped updates + N(0, (z S)^2 I)) / sites, float32.

    Args:
        total: sum of the updates that came, each clipped to ``max_norm``.
        sites: number of sites **asked**, whoever answered: a denominator that followed the answers would tell more
            about one hospital than the sum does.
        noise_multiplier: z.
        max_norm: S.
        generator: of the noise; :func:`~fedad_components.privacy.mechanism.secure_generator` where models are sent.

    Raises:
        ValueError: if ``sites``, z or S is not positive and finite.
    """
    for name, value in (("sites", sites), ("noise_multiplier", noise_multiplier), ("max_norm", max_norm)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} {value}: expected a finite number above 0")

    def noised(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        return ((tensor.double() + noise_multiplier * max_norm * noise) / sites).float()

    return {name: noised(tensor) for name, tensor in total.items()}


def noise_ratio(sites: int, noise_multiplier: float, dimensions: int) -> float:
    """z sqrt(d) / M: expected length of the mean's noise over S, which is the most that a mean update can measure."""
    return noise_multiplier * math.sqrt(dimensions) / sites


def check_size(sites: int, config: ExperimentConfig) -> None:
    """Refuse a federation in which the noise drowns the update, unless ``privacy.force_small_federation``.

    Args:
        sites: asked in a round, M.
        config: with ``privacy.mode: client_dp``.

    Raises:
        ClientDPRefused: if z sqrt(d) / M exceeds 1.
    """
    from fedad_components.algorithms import wire_spec

    z = config.privacy.noise_multiplier
    dimensions = sum(math.prod(shape) for shape in wire_spec(config).values())
    ratio = noise_ratio(sites, z, dimensions)
    if ratio <= LARGEST_RATIO or config.privacy.force_small_federation:
        return
    raise ClientDPRefused(
        f"privacy.mode 'client_dp' with {sites} sites: z sqrt(d) / M = {z:g} * sqrt({dimensions}) / {sites} = "
        f"{ratio:.0f}: the noise is {ratio:.0f} times as long as the longest possible update. This needs at least "
        f"{math.ceil(noise_ratio(1, z, dimensions) / LARGEST_RATIO)} sites: use 'dp_sgd', which adds its noise at each "
        f"site, or set privacy.force_small_federation to run it all the same"
    )
