"""Gated attention over a bag's patches, one slide or patient a bag. Imports torch only.

Ilse et al. 2018, Eq. 9, as HistoFL uses it: h_i = Dropout(ReLU(Linear(x_i))), a = softmax over the bag's patches of
w(tanh(V h_i) * sigmoid(U h_i)), M = sum a_i h_i, logits = Linear(M).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class BagOutput(NamedTuple):
    """Logits ``(N, C)`` and attention ``(N, P)``, which is 0 at padding and sums to 1 over a bag."""

    logits: Tensor
    attention: Tensor


class GatedAttentionMIL(nn.Module):
    """A bag of feature vectors to logits: classes, or the hazards of survival's time bins before their sigmoid.

    Weights are Xavier-normal, biases 0. With d = 1024 there are 788,739 parameters for 2 outputs, and 513 more for each
    further one. No parameter or statistic is shared between the bags of a batch, so that per-sample gradients exist.

    Args:
        in_features: d, length of a patch's feature vector.
        outputs: C classes, or R time bins.
        hidden: length of h_i.
        attention: width of the two gates.
        dropout: after the first layer and after each gate.
    """

    def __init__(
        self, in_features: int, outputs: int, hidden: int = 512, attention: int = 256, dropout: float = 0.25
    ) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Dropout(dropout))
        self.content = nn.Sequential(nn.Linear(hidden, attention), nn.Tanh(), nn.Dropout(dropout))
        self.gate = nn.Sequential(nn.Linear(hidden, attention), nn.Sigmoid(), nn.Dropout(dropout))
        self.score = nn.Linear(attention, 1)
        self.classifier = nn.Linear(hidden, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> BagOutput:
        """One bag, or a padded batch of bags.

        Padding changes no output, whatever it holds. A bag without a patch is refused where bags are put together
        (:class:`~fedad_components.mil.bags.Bags`); a mask without one gives NaN, never a plausible number: a look at
        the mask here would keep ``vmap`` from working.

        Args:
            features: ``(N, P, d)``, or ``(P, d)`` for one bag.
            mask: bool ``(N, P)`` or ``(P,)``, True at a patch; none: there is no padding.

        Returns:
            Logits ``(N, C)`` and attention ``(N, P)``; ``(C,)`` and ``(P,)`` for one bag.

        Raises:
            ValueError: if P is 0, or the mask is not of the features' shape.
        """
        if mask is None:
            mask = torch.ones(features.shape[:-1], dtype=torch.bool, device=features.device)
        if mask.shape != features.shape[:-1] or not mask.shape[-1]:
            raise ValueError(
                f"features {tuple(features.shape)} and mask {tuple(mask.shape)}: expected (N, P, d) and (N, P), or "
                f"(P, d) and (P,), with a patch or more"
            )
        # Cleared, as attention 0 times NaN would be NaN, here and in the gradient.
        h = self.embed(features.masked_fill(~mask.unsqueeze(-1), 0.0))
        scores = self.score(self.content(h) * self.gate(h)).squeeze(-1)
        attention = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        bag = (attention.unsqueeze(-2) @ h).squeeze(-2)
        return BagOutput(self.classifier(bag), attention)
