"""FedEMA (Zhuang, Wen and Zhang 2022, "Divergence-aware federated self-supervised learning") with BYOL."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedad_components.fedsd.losses import cos, full
from fedad_components.fedsd.model import split
from fedad_components.fedsd.state import load_wire_state, wire_state
from fedad_components.methods.local import LocalMethod, squared_distance

ONLINE, TARGET, SCALE = "online.", "target.", "scale"


def byol(prediction: Tensor, target: Tensor) -> Tensor:
    """Grill et al. 2020, Eq. 2, symmetric: mean over images of sum over views of 2 - 2 cos(q^v, y'^other view).

    Args:
        prediction: q ``(2, N, D)``, of the online network's predictor.
        target: y' ``(2, N, D)``, of the target network's projector; constants.
    """
    return (2 - 2 * cos(prediction, target.flip(0))).mean(dim=1).sum(dim=0)


class FedEMA(LocalMethod):
    """BYOL whose online network starts each round between the site's own and the global one.

    W_k <- mu W_k + (1 - mu) W_g with mu = min(lambda_k ||W_g - W_k||, 1): the further apart, the more of its own a site
    keeps. lambda_k = tau / ||W_g - W_k|| of the first time the site sees a new global model (autoscaler). The target
    network follows the online one, W' <- m W' + (1 - m) W, and never leaves the site.
    """

    @torch.no_grad()
    def begin_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self._online = (extractor, head)
        self._target = (copy.deepcopy(extractor), copy.deepcopy(head))
        self._scale = self.kept.get(SCALE)
        if self.kept:
            load_wire_state(self._part(TARGET), *self._target)
            self._keep_own(extractor, head)
        for module in self._target:
            module.train().requires_grad_(False)

    def _keep_own(self, extractor: nn.Module, head: nn.Module) -> None:
        own = (copy.deepcopy(extractor), copy.deepcopy(head))
        load_wire_state(self._part(ONLINE), *own)
        divergence = squared_distance(extractor.parameters(), own[0].parameters()).sqrt().cpu()
        if self._scale is None:
            self._scale = self.config.baselines.ema_tau / divergence.clamp_min(1e-12)
        mu = float((self._scale * divergence).clamp_max(1.0))
        mine, theirs = wire_state(*own), wire_state(extractor, head)
        load_wire_state({name: torch.lerp(theirs[name], mine[name], mu) for name in mine}, extractor, head)

    def contrastive(self, x: Tensor, z_s: Tensor, z_d: Tensor) -> Tensor:
        extractor, head = self._target
        with torch.no_grad():
            _, target = split(head(extractor(x)).unflatten(0, (2, -1)))
        return byol(z_s, full(target))

    @torch.no_grad()
    def after_step(self) -> None:
        decay = self.config.baselines.ema_decay
        for target, online in zip(self._target, self._online, strict=True):
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1 - decay)

    def end_round(self, extractor: nn.Module, head: nn.Module) -> None:
        self.kept = {
            **{ONLINE + name: tensor for name, tensor in wire_state(extractor, head).items()},
            **{TARGET + name: tensor for name, tensor in wire_state(*self._target).items()},
            **({} if self._scale is None else {SCALE: self._scale}),
        }

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in self.kept.items() if name.startswith(prefix)}
