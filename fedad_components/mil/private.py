"""HistoFL under ``privacy.mode: dp_sgd``: the unit is a patient's bag, and theta_k depends on noised sums alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedad_components.fedsd.seeds import stream_seed
from fedad_components.mil.site_bags import SiteBags
from fedad_components.mil.trainer import BagTrainer, make_optimizer
from fedad_components.privacy.mechanism import GroupGaussian, sample_units, secure_generator
from fedad_components.privacy.plan import sample_rate, steps_per_round
from fedad_components.privacy.units import UnitsError

if TYPE_CHECKING:
    from fedad_components.mil.config import HistoFLConfig


class PrivateBagTrainer(BagTrainer):
    """BagTrainer whose steps are taken by :class:`~fedad_components.privacy.mechanism.GroupGaussian`.

    A step draws each training patient with probability q; no loss is reported and nothing is validated. Whether a
    patient is trained on is drawn for each one alone.

    Args:
        units: number of each unit to the positions of its bags: one bag each, of one patient.
        declared_units: the public number of units, from which sample rate and steps follow.

    Raises:
        UnitsError: if a unit is not exactly one bag.
        PlanError: if fewer units are declared than a step is to use.
    """

    modes: ClassVar[frozenset[str]] = frozenset({"dp_sgd"})

    def __init__(
        self,
        config: HistoFLConfig,
        bags: SiteBags,
        site: str,
        units: Mapping[int, np.ndarray],
        declared_units: int,
        device: str | torch.device | None = None,
    ) -> None:
        positions = sorted(position for indices in units.values() for position in indices.tolist())
        if positions != list(range(len(bags.rows))) or len(units) != len(bags.rows):
            raise UnitsError(
                f"site {site}: {len(units)} privacy units of {len(bags.rows)} bags: expected one bag a patient, each "
                f"in one unit"
            )
        super().__init__(config, bags, site, device)
        trained = {row.id for row in self.train_rows}
        of_unit = [bags.rows[int(indices[0])] for _, indices in sorted(units.items())]
        self.train_rows = [row for row in of_unit if row.id in trained]
        self.sample_rate = sample_rate(declared_units, config.privacy.units_per_step)
        self.steps_per_round = steps_per_round(config.training.epochs, declared_units, config.privacy.units_per_step)

    def _train(
        self, targets: Tensor, round_number: int, on_epoch: Callable[[int, dict[str, float]], None] | None
    ) -> list[dict[str, float]]:
        privacy = self.config.privacy
        mechanism = GroupGaussian(
            list(self.model.parameters()),
            make_optimizer(self.model, self.config),
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=privacy.max_grad_norm,
            expected_units=privacy.units_per_step,
        )
        self.model.train()
        for step in range(self.steps_per_round):
            draw = round_number * self.steps_per_round + step
            drawn = sample_units(len(self.train_rows), self.sample_rate, secure_generator())
            mechanism.step(partial(self._unit_loss, position, targets, draw) for position in drawn)
        return []

    def _unit_loss(self, position: int, targets: Tensor, draw: int) -> Tensor:
        """The loss of one patient's bag; a scalar.

        Its dropout is drawn from a stream of the patient and the step: one stream for all would make it depend on who
        else was drawn before.
        """
        row = self.train_rows[position]
        torch.manual_seed(stream_seed(self.config.seed, f"dropout {row.id} {draw}", self.site))
        return self.loss(self._logits(row, draw), targets[position : position + 1])
