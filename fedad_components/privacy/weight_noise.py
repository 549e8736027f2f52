"""``privacy.mode: weight_noise``: HistoFL's noise on the weights that leave (Lu et al. 2022). It carries no guarantee.

Nothing is clipped, the noise follows the weights, and no accountant applies: an epsilon for it would be made up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

VARIANCE = "running_var"


def add_weight_noise(theta_k: Mapping[str, Tensor], alpha: float, generator: torch.Generator) -> dict[str, Tensor]:
    """theta_k + alpha std(W) N(0, I), tensor by tensor; biases and statistics included.

    HistoFL's code adds it at the server and spares biases; here it is added to all, before anything leaves. A tensor
    whose entries are all equal has no spread and gets no noise. BatchNorm's variances stay at 0 or above.

    Args:
        theta_k: weights by name, floating tensors on the CPU; not changed.
        alpha: ``privacy.weight_noise_alpha``.
        generator: of the noise; :func:`~fedad_components.privacy.mechanism.secure_generator` where weights leave.
    """
    noised = {}
    for name, tensor in theta_k.items():
        noise = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
        noised[name] = tensor + alpha * tensor.std(correction=0) * noise
        if name.rpartition(".")[2] == VARIANCE:
            noised[name].clamp_min_(0)
    return noised
