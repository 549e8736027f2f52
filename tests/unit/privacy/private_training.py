"""Small private trainings, and the clipped sums inside them, for the tests of the theorem's conditions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from skimage import data
from torch import Tensor

from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state
from fedad_components.privacy import trainer as trainers
from fedad_components.privacy.trainer import PrivateTrainer

SIDE = 18
"""Of the stored images; views have 16 pixels. A configuration allows no less than 32, with four times the work."""
UNITS = {0: np.array([0, 1, 2]), 1: np.array([3, 4, 5]), 2: np.array([6, 7, 8])}


def tiles(count: int = 9) -> np.ndarray:
    """Tissue, ``(count, 18, 18, 3)`` uint8."""
    ihc = data.immunohistochemistry()
    corners = [(row, column) for row in range(0, 480, 30) for column in range(0, 480, 30)]
    return np.stack([ihc[row : row + SIDE, column : column + SIDE] for row, column in corners[:count]])


def configuration(
    noise_multiplier: float = 0.0, norm: str = "group", trainable: str = "affine_and_head", **sections: Any
) -> FedADConfig:
    """Of one step a round for three declared units; sigma may be 0, which no configuration file can say.

    Few weights are trained unless ``trainable`` says "all": a test that need not know takes a tenth of the time.
    """
    privacy = {"mode": "dp_sgd", "units_per_step": 2, "unit_size": 3, "max_grad_norm": 0.1, "trainable": trainable}
    model = {"norm": norm, "image_size": 32}
    if norm == "folded":
        model["initial_weights"] = {"file": "public.safetensors", "sha256": "0" * 64}
    config = FedADConfig.parse(
        {
            **sections,
            "model": model,
            "training": {"epochs": 1, "teacher_precision": "fp32"} | sections.get("training", {}),
            "privacy": privacy | sections.get("privacy", {}),
        }
    )
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"image_size": 16}),
            "privacy": config.privacy.model_copy(update={"noise_multiplier": noise_multiplier}),
        }
    )


def make_trainer(
    config: FedADConfig,
    images: np.ndarray | None = None,
    units: Mapping[int, np.ndarray] = UNITS,
    declared_units: int = 3,
    **arguments: Any,
) -> PrivateTrainer:
    return PrivateTrainer(
        config, tiles() if images is None else images, "north", units, declared_units, "cpu", **arguments
    )


class Spy:
    """Fixes which units are drawn, and reads what the mechanism sums and what reaches the optimiser."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.draws: list[list[int]] = []
        self.sums: list[list[Tensor]] = []
        self.means: list[list[Tensor]] = []
        """Noised."""
        add_noise, scale_grad = DPOptimizer.add_noise, DPOptimizer.scale_grad

        def watched_add_noise(optimizer: DPOptimizer) -> None:
            self.sums.append([parameter.summed_grad.clone() for parameter in optimizer.params])
            add_noise(optimizer)

        def watched_scale_grad(optimizer: DPOptimizer) -> None:
            scale_grad(optimizer)
            self.means.append([parameter.grad.clone() for parameter in optimizer.params])

        monkeypatch.setattr(DPOptimizer, "add_noise", watched_add_noise)
        monkeypatch.setattr(DPOptimizer, "scale_grad", watched_scale_grad)
        monkeypatch.setattr(trainers, "sample_units", lambda *_: self.draws.pop(0))

    def train(self, trainer: PrivateTrainer, *draws: Sequence[int], lambda_t: float = 0.5) -> dict[str, Tensor]:
        """Train one round on these positions of the trainer's units, a step for each draw."""
        self.draws, self.sums, self.means = [list(draw) for draw in draws], [], []
        trainer.steps_per_round = len(draws)
        return trainer.train_round(start(trainer.config), lambda_t, 0).update

    def clipped_sum(self, trainer: PrivateTrainer, draw: Sequence[int], lambda_t: float = 0.5) -> Tensor:
        """The sum of the clipped gradients of the first step, as one vector, float64; the trainer stays as it is."""
        self.train(copy.copy(trainer), draw, lambda_t=lambda_t)
        return flat(self.sums[0]).double()


def start(config: FedADConfig) -> dict[str, Tensor]:
    """theta^0: random weights, also where the configuration names a file."""
    return _random_start(config.model.norm, config.loss.head, config.seed)


@cache
def _random_start(norm: str, head: str, seed: int) -> dict[str, Tensor]:
    config = configuration(norm="group" if norm == "folded" else norm, seed=seed, loss={"head": head})
    return initial_state(config)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)
