"""MOON (Li, He and Song 2021, "Model-contrastive federated learning", Eq. 3) beside NT-Xent."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.fedsd.losses import cos, full
from fedad_components.fedsd.model import split
from fedad_components.fedsd.state import load_wire_state, wire_state
from fedad_components.fedsd.teacher import Teacher
from fedad_components.methods.local import LocalMethod


def model_contrastive(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """Eq. 3: -log exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)), a mean.

    Args:
        z: ``(..., D)``, as are the others, which are constants.
    """
    towards, away = cos(z, z_global) / temperature, cos(z, z_previous) / temperature
    return F.softplus(away - towards).mean()


class Moon(LocalMethod):
    """Pulls z_s towards the global model's and away from that of the site's last round; from its second round on."""

    def begin_round(self, extractor: nn.Module, head: nn.Module) -> None:
        device, training = next(extractor.parameters()).device, self.config.training
        self._global = self._previous = None
        if not self.kept:
            return
        self._global = Teacher(extractor, head, training, device)
        previous, previous_head = copy.deepcopy(extractor), copy.deepcopy(head)
        load_wire_state(self.kept, previous, previous_head)
        self._previous = Teacher(previous, previous_head, training, device)

    def pull(self, x: Tensor, z_s: Tensor) -> Tensor:
        if self._global is None or self._previous is None:
            return z_s.new_zeros(())
        z_global, z_previous = (
            full(split(model(x))[0]).unflatten(0, (2, -1)) for model in (self._global, self._previous)
        )
        baselines = self.config.baselines
        return baselines.moon_mu * model_contrastive(z_s, z_global, z_previous, baselines.moon_temperature)

    @torch.no_grad()
    def end_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self.kept = wire_state(extractor, head)
