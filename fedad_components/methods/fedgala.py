"""FedGaLA (Pourpanah et al. 2025, "Federated unsupervised domain generalization using global and local alignment of
gradients"): its part at the site. The server's is ``aggregation.AlignedMean``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.methods.local import LocalMethod, on_cpu


class FedGaLA(LocalMethod):
    """A layer's gradient is left out of a step where its descent opposes the global model's last movement.

    The reference is theta^t - theta^s, s the last round in which the site took part; a tensor's gradient g is dropped
    where cos(-g, reference) is below the threshold. In its first round a site has no reference and drops nothing.
    """

    def begin_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self._named = {
            name: parameter
            for module, prefix in ((extractor, ""), (head, "head."))
            for name, parameter in module.named_parameters(prefix=prefix.removesuffix("."))
        }
        self._global = on_cpu(self._named)
        self._reference: dict[str, Tensor] = {
            name: (parameter.detach() - self.kept[name].to(parameter.device)).flatten()
            for name, parameter in self._named.items()
            if name in self.kept
        }

    def before_step(self) -> None:
        judged = {
            name: F.cosine_similarity(-gradient.flatten(), reference, dim=0)
            for name, reference in self._reference.items()
            if (gradient := self._named[name].grad) is not None
        }
        if not judged:
            return
        agrees = torch.stack([*judged.values()]) >= self.config.baselines.gala_threshold
        for name, kept in zip(judged, agrees.tolist(), strict=True):
            if not kept:
                self._named[name].grad = None  # not zero: Adam would go on with its momentum

    def end_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self.kept = self._global
