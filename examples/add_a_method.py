"""A method of your own beside FedAD: Barlow Twins (Zbontar et al. 2021, Eq. 1) in place of NT-Xent.

    python examples/add_a_method.py

A :class:`~fedad_components.methods.local.LocalMethod` says what is trained and what a site keeps to itself; the trainer
calls it at fixed places of a round. Here it is given to two trainers directly. In the package, a card in
``methods/__init__.py`` and a line in ``methods/local.py`` make it a value of ``method:`` that a FLARE job can name
(docs/methods.md).
"""

from __future__ import annotations

import numpy as np
import torch
from skimage import data
from torch import Tensor

from fedad_components.config import FedADConfig
from fedad_components.fedsd.losses import standardised
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.methods.local import LocalMethod
from fedad_components.simulation import Simulation


class BarlowTwins(LocalMethod):
    """Cross-correlation of the two views' z_s near the identity: sum (1 - C_ii)^2 + weight sum_{i != j} C_ij^2."""

    weight = 5e-3

    def contrastive(self, x: Tensor, z_s: Tensor, z_d: Tensor) -> Tensor:
        """One scalar for z_s ``(2, N, 128)``."""
        a, b = standardised(z_s)
        c = a.T @ b / len(a)
        return (1 - c.diagonal()).square().sum() + self.weight * (c - torch.diag(c.diagonal())).square().sum()


def tiles(picture: np.ndarray, count: int = 32, side: int = 110) -> np.ndarray:
    """``(count, side, side, 3)``, cut at random places."""
    corners = np.random.default_rng(0).integers(0, np.array(picture.shape[:2]) - side, (count, 2))
    return np.stack([picture[row : row + side, column : column + side] for row, column in corners])


def main() -> None:
    # FedAvg-SSL's settings: the head is aggregated, there is no teacher.
    config = FedADConfig.parse(
        {"method": "fedavg_ssl", "model": {"image_size": 96}, "training": {"epochs": 2, "batch_size": 16}}
    )
    sites = {"pathology": data.immunohistochemistry(), "ophthalmology": data.retina()[200:1200, 200:1200]}
    trainers = {site: LocalTrainer(config, tiles(picture), site) for site, picture in sites.items()}
    for trainer in trainers.values():
        trainer.method = BarlowTwins(config)
    simulation = Simulation(config, trainers)
    for _ in range(3):
        record = simulation.run_round()
        losses = ", ".join(f"{site} {losses.contrastive:.2f}" for site, losses in record.losses.items())
        print(f"round {record.round}: {losses}; {sum(record.bytes.values()) / 1e6:.1f} MB sent")


if __name__ == "__main__":
    main()
