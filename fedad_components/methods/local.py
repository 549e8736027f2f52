"""What a method does in a site's local training where settings do not reach. Imports torch only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedad_components.fedsd.losses import Loss, full, nt_xent

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig

MODULES = {
    "fedprox_ssl": "fedprox:FedProx",
    "moon": "moon:Moon",
    "fedema": "fedema:FedEMA",
    "fedgala": "fedgala:FedGaLA",
    "feddg": "feddg:FedDG",
    "feddis": "feddis:FedDis",
}
"""Methods that are more than settings, with the class that makes the difference."""
SHARED_PREFIX = "shared."
"""Begins the names of tensors that travel beside the weights and are none."""


class LocalMethod:
    """NT-Xent and nothing else; a method overrides what it adds.

    The trainer calls :meth:`prepare` once; in each round :meth:`receive`, :meth:`begin_round` with theta^t loaded, then
    in each step :meth:`sources`, :meth:`loss`, :meth:`before_step` and :meth:`after_step`; if the round succeeded,
    :meth:`end_round` and :meth:`send`. What a method keeps between rounds is ``kept``: it stays at the site, is saved
    with the head, and changes in :meth:`end_round` alone.
    """

    def __init__(self, config: FedADConfig) -> None:
        self.config = config
        self.kept: dict[str, Tensor] = {}
        """CPU tensors by name; empty before the site's first round."""

    @staticmethod
    def shared_spec(config: FedADConfig) -> dict[str, tuple[int, ...]]:
        """Name, with :data:`SHARED_PREFIX`, and shape of what travels beside the weights, both ways."""
        return {}

    def prepare(self, load: Callable[[Tensor], Tensor], count: int, generator: torch.Generator) -> None:
        """Before the first round: ``load`` gives images ``(N, S, S, 3)`` uint8 by their positions below ``count``."""

    def receive(self, shared: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """What came beside theta^t, and the round's random stream."""
        self.generator = generator

    def sources(self, images: Tensor) -> Tensor:
        """Of ``(N, S, S, 3)`` uint8, what the views are taken of: as many, or ``(2N, S, S, 3)``, one for each view."""
        return images

    def send(self) -> dict[str, Tensor]:
        """What leaves beside the weights: the tensors of :meth:`shared_spec`, on the CPU."""
        return {}

    def begin_round(self, extractor: nn.Module, head: nn.Module) -> None:
        """theta^t is loaded; a method may take copies, and change the modules in place."""

    def loss(self, x: Tensor, z_s: Tensor, z_d: Tensor) -> Loss:
        """:meth:`contrastive` and :meth:`pull` of views ``(2N, 3, P, P)``; z_s, z_d ``(2, N, 128)``."""
        with torch.autocast(z_s.device.type, enabled=False):
            z_s, z_d = full(z_s), full(z_d)
            contrastive, pull = self.contrastive(x, z_s, z_d), self.pull(x, z_s)
            return Loss(contrastive + pull, contrastive, pull, z_s.new_zeros(()))

    def contrastive(self, x: Tensor, z_s: Tensor, z_d: Tensor) -> Tensor:
        """What teaches the features; a scalar."""
        return nt_xent(z_s, self.config.loss.temperature)

    def pull(self, x: Tensor, z_s: Tensor) -> Tensor:
        """What holds the site near the others, with its weight; a scalar. Reported as the loss's ``alignment``."""
        return z_s.new_zeros(())

    def before_step(self) -> None:
        """Gradients are there, the optimiser has not stepped."""

    def after_step(self) -> None:
        """The optimiser has stepped."""

    def end_round(self, extractor: nn.Module, head: nn.Module) -> None:
        """The round succeeded; replace ``kept``."""


def make_local_method(config: FedADConfig) -> LocalMethod | None:
    """The method's part at a site; None where the configuration's loss says all (FedAD, FedAvg-SSL, FedBN-SSL)."""
    method = _method_class(config)
    return method(config) if method else None


def shared_spec(config: FedADConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of what the configuration's method has travel beside the weights; empty for most."""
    method = _method_class(config)
    return method.shared_spec(config) if method else {}


def _method_class(config: FedADConfig) -> type[LocalMethod] | None:
    if config.method not in MODULES:
        return None
    module, _, name = MODULES[config.method].partition(":")
    method: type[LocalMethod] = getattr(import_module(f"fedad_components.methods.{module}"), name)
    return method


def trained(*modules: nn.Module) -> list[nn.Parameter]:
    """Parameters that the optimiser changes."""
    return [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]


def squared_distance(these: Iterable[Tensor], those: Iterable[Tensor]) -> Tensor:
    """Sum over pairs of tensors of their squared Euclidean distance; a scalar."""
    return torch.stack([(a - b).square().sum() for a, b in zip(these, those, strict=True)]).sum()


def on_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
