"""The weighted mean of the sites' updates (FedAvg; McMahan et al. 2017, Algorithm 1). Imports no FLARE."""

from __future__ import annotations

from collections.abc import Mapping

import torch


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
