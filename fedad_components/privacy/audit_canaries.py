"""The audit's attack: gradient canaries in a run of the real trainer, and what can be seen of them.

A canary is one more privacy unit. Its gradient lies on one coordinate of the extractor and is longer than C, so that
clipping makes it exactly C: no unit can weigh more. It goes through the same draw, clipping, sum, noise and optimiser
as every other. Canaries in image space found nothing even without any privacy, and are no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedad_components.fedsd.state import initial_state
from fedad_components.fedsd.trainer import Report, Student
from fedad_components.privacy.trainer import PrivateTrainer

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig

ORDINARY_UNITS, ORDINARY_IMAGES = 2, 4
"""Units besides the canaries, and images of each: the run is one of training, and takes no longer for it."""
UNCLIPPED = 10.0
"""Length of a canary's gradient over C, before clipping."""

Listener = Callable[[int], None]
"""Called with the number of canaries trained on so far, over all steps."""


def flip_coins(count: int) -> np.ndarray:
    """``(count,)`` bool, fair and from the operating system's entropy: the theorem needs coins that nobody knew."""
    return np.random.default_rng().random(count) < 0.5


class CanaryTrainer(PrivateTrainer):
    """A PrivateTrainer that trains on canaries as well, and listens. It replaces nothing but a canary's loss.

    Args:
        config: a FedADConfig with ``privacy.mode: dp_sgd``; ``units_per_step`` is of ordinary units and canaries.
        included: ``(m,)`` bool: which canaries are among the units.
        steps: noised steps of a round.
        listener: told of progress.

    Raises:
        ValueError: if the extractor trains fewer weights than there are canaries.
    """

    def __init__(
        self, config: FedADConfig, included: np.ndarray, steps: int, listener: Listener = lambda done: None
    ) -> None:
        rng, side = np.random.default_rng(), config.model.image_size
        images = rng.integers(0, 256, (ORDINARY_UNITS * ORDINARY_IMAGES, side, side, 3), dtype=np.uint8)
        units = dict(enumerate(np.arange(len(images)).reshape(ORDINARY_UNITS, ORDINARY_IMAGES)))
        no_image = np.empty(0, dtype=np.int64)
        units |= {ORDINARY_UNITS + int(canary): no_image for canary in np.flatnonzero(included)}
        super().__init__(config, images, "audit", units, ORDINARY_UNITS + len(included), public_images=images)
        self.steps_per_round = steps
        self._listener, self._trained_on = listener, 0

        trained = {name: weight for name, weight in self.extractor.named_parameters() if weight.requires_grad}
        weights = sum(weight.numel() for weight in trained.values())
        if weights < len(included):
            raise ValueError(
                f"{len(included)} canaries on {weights} trained weights of the extractor: each needs its own"
            )
        places = np.sort(rng.choice(weights, len(included), replace=False))
        ends = np.cumsum([weight.numel() for weight in trained.values()])
        self._names, owners = list(trained), np.searchsorted(ends, places, side="right")
        self._owners, self._offsets = owners, places - np.concatenate([[0], ends])[owners]
        self.drawn = np.zeros((steps, len(included)), dtype=bool)
        self.noised_sums = np.zeros((steps, len(included)))

    def at_canaries(self, tensors: Mapping[str, Tensor]) -> np.ndarray:
        """``(m,)``: each canary's coordinate of the extractor's weights, or of anything else of their shapes."""
        values = np.empty(len(self._owners))
        for owner in np.unique(self._owners):
            mine = self._owners == owner
            values[mine] = tensors[self._names[owner]].detach().cpu().flatten()[self._offsets[mine]].double().numpy()
        return values

    def _train(
        self,
        student: Student,
        lambda_t: float,
        round_number: int,
        on_epoch: Callable[[int, dict[str, float]], None] | None,
    ) -> Report:
        """The round, with an ear at the optimiser: what reaches it has left the mechanism."""
        steps = iter(self.noised_sums)

        def listen(*_: object) -> None:
            gradients = {
                name: weight.grad for name, weight in student.extractor.named_parameters() if weight.grad is not None
            }
            next(steps)[:] = self.at_canaries(gradients) * self.config.privacy.units_per_step

        with student.optimizer.register_step_pre_hook(listen):
            return super()._train(student, lambda_t, round_number, on_epoch)

    def _unit_loss(
        self,
        student: Student,
        lambda_t: float,
        number: int,
        indices: Tensor,
        round_number: int,
        step: int,
        negatives: Tensor | None,
    ) -> Tensor:
        canary = number - ORDINARY_UNITS
        if canary < 0:
            return super()._unit_loss(student, lambda_t, number, indices, round_number, step, negatives)
        self.drawn[step, canary] = True
        self._trained_on += 1
        self._listener(self._trained_on)
        weight = student.extractor.get_parameter(self._names[self._owners[canary]])
        place = np.unravel_index(self._offsets[canary], weight.shape)
        return UNCLIPPED * self.config.privacy.max_grad_norm * weight[tuple(int(i) for i in place)]


def attack(trainer: CanaryTrainer) -> dict[str, np.ndarray]:
    """Train a round and score each canary, ``(m,)``, higher where it more probably was included.

    ``mechanism``: log likelihood ratio of the noised sums at its coordinate, over all steps, under the mechanism that
    is claimed: 1 - q + q exp((2 x - 1) / (2 sigma^2)) for a sum of x C in a step. ``update``: how far its weight moved
    against the gradient, in what leaves the site.
    """
    config, q = trainer.config, trainer.sample_rate
    before = initial_state(config)
    update = trainer.train_round(before, config.atsa.lambda_max, 0).update
    x = trainer.noised_sums / config.privacy.max_grad_norm
    ratios = np.logaddexp(
        math.log1p(-q) if q < 1 else -math.inf, math.log(q) + (2 * x - 1) / (2 * config.privacy.noise_multiplier**2)
    )
    return {
        "mechanism": ratios.sum(axis=0),
        "update": trainer.at_canaries(before) - trainer.at_canaries(update),
    }
