"""FedProx (Li et al. 2020, "Federated optimization in heterogeneous networks", Eq. 2) on NT-Xent."""

from __future__ import annotations

from torch import Tensor, nn

from fedad_components.methods.local import LocalMethod, squared_distance, trained


class FedProx(LocalMethod):
    """h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2, over all parameters that are trained."""

    def begin_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self._parameters = trained(extractor, head)
        self._start = [parameter.detach().clone() for parameter in self._parameters]

    def pull(self, x: Tensor, z_s: Tensor) -> Tensor:
        return self.config.baselines.prox_mu / 2 * squared_distance(self._parameters, self._start)
