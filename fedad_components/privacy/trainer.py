"""Local training under ``privacy.mode: dp_sgd``: theta_k depends on the images through noised sums alone.

The theorem (docs/privacy.md) rests on this: a unit's contribution to a step is a function of the unit's own images, of
what is public, and of earlier noised sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedad_components.fedsd.seeds import PUBLIC, stream
from fedad_components.fedsd.trainer import LocalTrainer, Report, Student
from fedad_components.privacy.mechanism import GroupGaussian, sample_units, secure_generator
from fedad_components.privacy.plan import sample_rate, steps_per_round
from fedad_components.privacy.units import UnitsError

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig

logger = logging.getLogger("fedad.privacy")


class PrivateTrainer(LocalTrainer):
    """LocalTrainer whose steps are taken by :class:`~fedad_components.privacy.mechanism.GroupGaussian`.

    Extractor and head are trained jointly, everything else is public or fixed. No loss is computed for reporting.

    Args:
        config: a FedADConfig with ``privacy.mode: dp_sgd``.
        images: uint8 ``(n, S, S, 3)``, an array or memory map. There may be none: the steps are then noise.
        site: the site's name.
        units: number of each privacy unit to the indices of its images: :func:`~fedad_components.privacy.units.
            assign_units`. A unit's views are drawn from a stream of its number.
        declared_units: the public number of units, from which sample rate and steps follow.
        device: overrides ``training.device``.
        public_images: uint8 ``(k, S, S, 3)``, for ``negatives: public``.

    Raises:
        TrainingError: if the images are not of that form, or the configuration asks for another mode.
        UnitsError: if the units overlap or name images that do not exist, or public images are needed and missing.
        PlanError: if fewer units are declared than a step is to use.
    """

    modes: ClassVar[frozenset[str]] = frozenset({"dp_sgd"})
    fewest_images: ClassVar[int] = 0
    """A refusal for want of images would tell how many there are."""

    def __init__(
        self,
        config: FedADConfig,
        images: np.ndarray,
        site: str,
        units: Mapping[int, np.ndarray],
        declared_units: int,
        device: str | torch.device | None = None,
        public_images: np.ndarray | None = None,
    ) -> None:
        super().__init__(config, images, site, device)
        privacy = config.privacy
        self._units = [(number, torch.as_tensor(indices)) for number, indices in units.items()]
        self._check_partition()
        self.sample_rate = sample_rate(declared_units, privacy.units_per_step)
        self.steps_per_round = steps_per_round(config.training.epochs, declared_units, privacy.units_per_step)
        self.public_images = public_images if privacy.negatives == "public" else None
        if privacy.negatives == "public" and (public_images is None or len(public_images) == 0):
            raise UnitsError(
                f"site {site}: privacy.negatives is 'public', and public_data_set {privacy.public_data_set!r} has no "
                f"images: add them to the catalogue, or use 'unit'"
            )
        if privacy.trainable == "affine_and_head":
            for layer in self.extractor.modules():
                if isinstance(layer, nn.Conv2d):
                    layer.requires_grad_(False)
        self._warn_of_single_images()

    def _train(
        self,
        student: Student,
        lambda_t: float,
        round_number: int,
        on_epoch: Callable[[int, dict[str, float]], None] | None,
    ) -> Report:
        privacy = self.config.privacy
        mechanism = GroupGaussian(
            student.parameters,
            student.optimizer,
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=privacy.max_grad_norm,
            expected_units=privacy.units_per_step,
        )
        public = stream(self.config.seed, "public negatives", PUBLIC, round_number)
        for step in range(self.steps_per_round):
            drawn = sample_units(len(self._units), self.sample_rate, secure_generator())
            negatives = self._public_z_s(student, public)
            mechanism.step(
                partial(self._unit_loss, student, lambda_t, *self._units[position], round_number, step, negatives)
                for position in drawn
            )
        return Report()

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
        """The whole loss inside one unit, of at most ``unit_size`` of its images; a scalar."""
        generator = stream(self.config.seed, f"unit {number} step {step}", self.site, round_number)
        chosen = indices[torch.randperm(len(indices), generator=generator)[: self.config.privacy.unit_size]]
        loss, _ = student.loss(self.batch(chosen, generator), lambda_t, negatives)
        return loss.total

    @torch.no_grad()
    def _public_z_s(self, student: Student, generator: torch.Generator) -> Tensor | None:
        """z_s ``(2K, 128)`` of two views each of K = ``training.batch_size`` public images, newly drawn: constants."""
        if self.public_images is None:
            return None
        order = torch.randperm(len(self.public_images), generator=generator)
        chosen = np.asarray(self.public_images[order[: self.config.training.batch_size].numpy()])
        z_s, _ = student.embed(self.views(torch.from_numpy(chosen).to(self.device), generator))
        return z_s.flatten(0, 1)

    def _check_partition(self) -> None:
        """Raise UnitsError where an image is in two units: its gradient would count twice, and its noise once."""
        named = torch.cat([torch.empty(0, dtype=torch.long), *(indices for _, indices in self._units)])
        if len(named.unique()) != len(named) or not ((named >= 0) & (named < len(self.images))).all():
            raise UnitsError(
                f"site {self.site}: the privacy units name {len(named)} images, some of them twice or not among the "
                f"{len(self.images)} of the data set: expected disjoint sets of indices"
            )

    def _warn_of_single_images(self) -> None:
        single = sum(len(indices) == 1 for _, indices in self._units)
        if single and self.public_images is None:
            logger.warning(
                "site %s: %d of %d privacy units have one image, without negatives: NT-Xent teaches nothing there. "
                "Declare fewer units, or use privacy.negatives 'public'",
                self.site,
                single,
                len(self._units),
            )


def make_trainer(
    config: FedADConfig,
    images: np.ndarray,
    site: str,
    *,
    units: Mapping[int, np.ndarray] | None = None,
    declared_units: int | None = None,
    device: str | torch.device | None = None,
    public_images: np.ndarray | None = None,
) -> LocalTrainer:
    """The trainer of ``privacy.mode``: under dp_sgd a :class:`PrivateTrainer`, never another.

    Raises:
        UnitsError: if dp_sgd is asked for without units.
        TrainingError, PlanError: as the trainers.
    """
    if config.privacy.mode != "dp_sgd":
        return LocalTrainer(config, images, site, device)
    if units is None or declared_units is None:
        raise UnitsError(
            f"site {site}: privacy.mode 'dp_sgd' needs privacy units: declare `units: N` for the data set in "
            f"catalogue.yaml"
        )
    return PrivateTrainer(config, images, site, units, declared_units, device, public_images)
