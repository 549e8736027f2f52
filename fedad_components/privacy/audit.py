"""Audit of the installed DP training: a lower bound on epsilon from an attack on a real run, beside the claim."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedad_components.config import ConfigError, FedADConfig
from fedad_components.fedsd.trainer import TrainingError
from fedad_components.privacy.accountant import AccountantError, Charge, epsilon_unit
from fedad_components.privacy.audit_bound import SIGNIFICANCE, Reading, ceiling, read
from fedad_components.privacy.audit_canaries import ORDINARY_UNITS, CanaryTrainer, attack, flip_coins
from fedad_components.privacy.audit_sampling import Sampling, check_sampling
from fedad_components.privacy.claim import PrivacyClaim
from fedad_components.privacy.plan import sample_rate

SURFACES = ("mechanism", "update")
"""Where an attacker may look: the noised sums of gradients, or the weights that leave."""
ATTACK = "one run, gradient canaries (Steinke et al. 2023)"
IMAGE_SIZE = 32
FEWEST_CANARIES = 100
SAMPLING_UNITS, SAMPLING_STEPS, SAMPLING_PER_STEP = 200, 20, 20
"""Canaries, steps and expected units a step of the run that checks the draws."""

Listener = Callable[[int, int], None]
"""Called with the canaries trained on so far, over all steps, and with about how many there will be."""


class AuditError(ValueError):
    """An audit that cannot be run as asked; the message says what was expected."""


@dataclass(frozen=True)
class AuditPlan:
    """What is audited, and what is claimed of it.

    Of ``config`` the audit takes how a site trains and what it promises; images are small and noise, weights random.

    Raises:
        AuditError: if a number is out of range, or the configuration does not go with dp_sgd.
    """

    config: FedADConfig
    canaries: int = 2000
    noise_multiplier: float = 4.0
    steps: int = 4
    sample_rate: float = 1.0
    surfaces: tuple[str, ...] = SURFACES

    def __post_init__(self) -> None:
        for name, value, good, expected in (
            (
                "noise multiplier",
                self.noise_multiplier,
                0 < self.noise_multiplier < math.inf,
                "a finite number above 0",
            ),
            ("sample rate", self.sample_rate, 0 < self.sample_rate <= 1, "a number within (0, 1]"),
            ("steps", self.steps, self.steps >= 1, "at least 1"),
            ("canaries", self.canaries, self.canaries >= FEWEST_CANARIES, f"at least {FEWEST_CANARIES}"),
            ("surfaces", self.surfaces, self.surfaces and set(self.surfaces) <= set(SURFACES), f"some of {SURFACES}"),
        ):
            if not good:
                raise AuditError(f"{name} {value}: expected {expected}")
        _ = self.run_config

    @property
    def units(self) -> int:
        """Declared units of the run: a canary that is left out counts, as a patient who stayed away does."""
        return ORDINARY_UNITS + self.canaries

    @cached_property
    def run_config(self) -> FedADConfig:
        """The configuration of the run that is attacked."""
        return self._configure(
            noise_multiplier=float(self.noise_multiplier), units_per_step=max(1, round(self.sample_rate * self.units))
        )

    @cached_property
    def sampling_config(self) -> FedADConfig:
        """The configuration of the run that checks the draws: few weights, for speed; draws know nothing of them."""
        return self._configure(units_per_step=SAMPLING_PER_STEP, trainable="affine_and_head")

    @cached_property
    def claim(self) -> PrivacyClaim:
        """What the accountant says of the run.

        Raises:
            AuditError: if it has no answer.
        """
        privacy = self.run_config.privacy
        q = sample_rate(self.units, privacy.units_per_step)
        try:
            epsilon = epsilon_unit([Charge(privacy.noise_multiplier, q, self.steps)], privacy.delta)
        except AccountantError as error:
            raise AuditError(str(error)) from error
        return PrivacyClaim(
            unit=privacy.unit,
            units=self.units,
            noise_multiplier=privacy.noise_multiplier,
            sample_rate=q,
            steps=self.steps,
            delta=privacy.delta,
            epsilon_unit=epsilon,
            epsilon_record=None,
        )

    @cached_property
    def ceiling(self) -> float:
        """What these canaries can show at most; a claim above it cannot be contradicted."""
        return ceiling(self.canaries, self.run_config.privacy.delta, len(self.surfaces))

    def _configure(self, **privacy: Any) -> FedADConfig:
        data = self.config.to_json()
        data["model"] |= {"image_size": IMAGE_SIZE, "norm": "group", "initial_weights": None}
        data["privacy"] |= {"mode": "dp_sgd", **privacy}
        try:
            return FedADConfig.parse(data)
        except ConfigError as error:
            raise AuditError(str(error)) from error


@dataclass(frozen=True)
class AuditReport:
    """What the audit found. No violation is no proof that there is none."""

    plan: AuditPlan
    readings: dict[str, Reading]
    """For each surface."""
    sampling: Sampling
    seconds: float
    violations: list[str] = field(init=False)
    """Sentences."""

    def __post_init__(self) -> None:
        claim = self.plan.claim
        found = [
            f"{name}: at 95 % confidence, epsilon is at least {reading.epsilon:.2f} for adding or removing one "
            f"{claim.unit} (delta = {claim.delta:g}, one-run audit); claimed is {claim}"
            for name, reading in self.readings.items()
            if reading.epsilon > claim.epsilon_unit
        ]
        if not self.sampling.independent:
            found.append(
                "units are not drawn independently at the sample rate: no epsilon that was computed for a sample rate "
                "below 1 holds"
            )
        object.__setattr__(self, "violations", found)

    @property
    def verdict(self) -> str:
        return "FAIL" if self.violations else "no violation found"

    @property
    def strongest(self) -> Reading:
        """The reading with the largest lower bound."""
        return max(self.readings.values(), key=lambda reading: reading.epsilon)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; every epsilon stands beside its unit, delta, adjacency and accountant."""
        claim = self.plan.claim
        return {
            "verdict": self.verdict,
            "violations": self.violations,
            "claimed_epsilon": claim.epsilon_unit,
            "unit": claim.unit,
            "delta": claim.delta,
            "adjacency": f"adding or removing one {claim.unit}",
            "accountant": "PRV",
            "noise_multiplier": claim.noise_multiplier,
            "sample_rate": claim.sample_rate,
            "steps": claim.steps,
            "lower_bound": self.strongest.epsilon,
            "confidence": 1 - SIGNIFICANCE,
            "canaries": self.plan.canaries,
            "guesses": self.strongest.guesses,
            "correct": self.strongest.correct,
            "ceiling": self.plan.ceiling,
            "attack": ATTACK,
            "surfaces": {
                name: {"lower_bound": reading.epsilon, "guesses": reading.guesses, "correct": reading.correct}
                for name, reading in self.readings.items()
            },
            "sampling": asdict(self.sampling) | {"independent": self.sampling.independent},
            "seconds": self.seconds,
        }


def run_audit(plan: AuditPlan, listener: Listener = lambda done, total: None) -> AuditReport:
    """Run the attack and the check of the draws.

    Raises:
        AuditError: if the extractor trains fewer weights than there are canaries, or the device is missing.
    """
    began = time.perf_counter()
    included = flip_coins(plan.canaries)
    attacked = int(included.sum() * plan.steps * plan.claim.sample_rate)
    total = attacked + SAMPLING_PER_STEP * SAMPLING_STEPS
    try:
        trainer = CanaryTrainer(plan.run_config, included, plan.steps, lambda done: listener(done, total))
    except (ValueError, TrainingError) as error:
        raise AuditError(str(error)) from error
    scores = attack(trainer)
    delta, surfaces = plan.claim.delta, plan.surfaces
    return AuditReport(
        plan=plan,
        readings={name: read(scores[name], included, delta, len(surfaces)) for name in surfaces},
        sampling=_check_draws(plan, lambda done: listener(attacked + done, total)),
        seconds=time.perf_counter() - began,
    )


def _check_draws(plan: AuditPlan, listener: Callable[[int], None]) -> Sampling:
    trainer = CanaryTrainer(plan.sampling_config, np.ones(SAMPLING_UNITS, dtype=bool), SAMPLING_STEPS, listener)
    attack(trainer)
    return check_sampling(trainer.drawn, trainer.sample_rate)
