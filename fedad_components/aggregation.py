"""The mean of the sites' updates, weighted by n_k (FedAvg; McMahan et al. 2017, Algorithm 1) or by how they agree.

Imports no FLARE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from fedad_components.methods.local import SHARED_PREFIX

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig


def make_mean(config: FedADConfig, theta: Mapping[str, torch.Tensor] | None = None) -> StreamingMean:
    """The mean of a round under the configuration's method.

    Args:
        theta: theta^t where updates are whole weights; None where they are differences to it.
    """
    if config.method == "fedgala":
        return AlignedMean(config.baselines.gala_iterations, theta)
    if config.method == "feddg":
        return BankMean()
    return StreamingMean()


class StreamingMean:
    """Sum of n_k theta_k over sum of n_k, one update at a time: memory does not grow with the number of sites.

    Sums are float64, so that the order in which sites answer does not show in the float32 result.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self.weight = 0
        self.count = 0

    def add(self, update: Mapping[str, torch.Tensor], weight: int) -> None:
        """Add one site's update.

        Raises:
            ValueError: if the weight is not positive, or the names differ from those of the first update.
        """
        if weight <= 0:
            raise ValueError(f"weight must be positive, got {weight}")
        if self.count == 0:
            self._sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in update.items()}
        elif self._sums.keys() != update.keys():
            raise ValueError(f"names differ from the first update: {sorted(self._sums.keys() ^ update.keys())[:3]}")
        for name, tensor in update.items():
            self._sums[name].add_(tensor.to(torch.float64), alpha=weight)
        self.weight += weight
        self.count += 1

    def sum(self) -> dict[str, torch.Tensor]:
        """Sum of n_k theta_k, float64.

        Raises:
            ValueError: if nothing was added.
        """
        if self.count == 0:
            raise ValueError("no update to average")
        return dict(self._sums)

    def result(self) -> dict[str, torch.Tensor]:
        """The mean as float32; ValueError as for :meth:`sum`."""
        return {name: (total / self.weight).to(torch.float32) for name, total in self.sum().items()}


class BankMean(StreamingMean):
    """The mean of the weights, and of what travels beside them a bank that the sites fill in turn (FedDG).

    Row b of a bank is row b of one site's, row b + 1 of the next one's: nothing is averaged. The turn follows the
    contents and not the order in which sites answer, and says no site's name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared: list[Mapping[str, torch.Tensor]] = []

    def add(self, update: Mapping[str, torch.Tensor], weight: int) -> None:
        shared = {name: tensor for name, tensor in update.items() if name.startswith(SHARED_PREFIX)}
        super().add({name: tensor for name, tensor in update.items() if name not in shared}, weight)
        self._shared.append(shared)

    def result(self) -> dict[str, torch.Tensor]:
        """Means and banks as float32."""
        names = self._shared[0] if self._shared else ()
        return super().result() | {name: self._bank([shared[name] for shared in self._shared]) for name in names}

    @staticmethod
    def _bank(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """``(B, ...)`` of each site to ``(B, ...)``."""
        turns = sorted(rows, key=lambda of_site: of_site.flatten().tolist())
        return torch.stack([turns[b % len(turns)][b] for b in range(len(turns[0]))])


class AlignedMean(StreamingMean):
    """FedGaLA's global alignment (Pourpanah et al. 2025): each tensor's weights follow how the sites' movements agree.

    From the mean of the movements n_k/N (theta_k - theta), a few iterations of: a site's weight is (1 + cos) / 2 of its
    movement and the present aggregate, over the sum of all. It needs all updates of a round at once: memory grows with
    the number of sites.

    Args:
        iterations: of the alignment.
        theta: where the sites started from; None if updates are differences already.
    """

    def __init__(self, iterations: int, theta: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__()
        self._iterations, self._theta = iterations, theta
        self._updates: list[tuple[Mapping[str, torch.Tensor], int]] = []

    def add(self, update: Mapping[str, torch.Tensor], weight: int) -> None:
        super().add(update, weight)
        self._updates.append((update, weight))

    def result(self) -> dict[str, torch.Tensor]:
        """The aligned mean as float32."""
        shares = [weight / self.weight for _, weight in self._updates]
        return {name: self._aligned(name, shares) for name in self.sum()}

    def _aligned(self, name: str, shares: Sequence[float]) -> torch.Tensor:
        updates = torch.stack([update[name].double() for update, _ in self._updates])
        start = torch.zeros_like(updates[0]) if self._theta is None else self._theta[name].double()
        movements = ((updates - start).flatten(1).T * torch.tensor(shares, dtype=torch.float64)).T
        weights = aligned_weights(movements, self._iterations)
        return torch.einsum("k,k...->...", weights, updates).to(torch.float32)


def aligned_weights(movements: torch.Tensor, iterations: int) -> torch.Tensor:
    """Weights ``(K,)``, of sum 1, of K movements ``(K, D)``."""
    aggregate = movements.mean(dim=0)
    for _ in range(iterations):
        weights = (1 + F.cosine_similarity(movements, aggregate[None], dim=1)) / 2
        weights = weights / weights.sum().clamp_min(1e-12)
        aggregate = weights @ movements
    return weights
