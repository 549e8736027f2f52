"""Planning: what an experiment's guarantee will be, from public numbers alone, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedad_components.privacy.accountant import (
    AccountantError,
    Charge,
    epsilon_record,
    epsilon_unit,
    noise_multiplier_for,
)
from fedad_components.privacy.claim import ACCOUNTANTS, adjacencies

DEFENSIBLE_SIGMA = 1.0
LARGE_EPSILON = 10.0
FEW_UNITS = 16
CURVE_POINTS = 9
COINS = 2**24
"""Values that PyTorch's float32 uniform numbers have, evenly spaced from 0."""


class PlanError(ValueError):
    """An experiment that cannot be planned; the message names the number and what was expected."""


def sample_rate(units: int, units_per_step: int) -> float:
    """q = units_per_step / units: the probability with which a step draws each unit.

    Rounded up to a multiple of 2^-24: the coins are float32 numbers of that grain, which fall below any other q with
    the next larger probability. What is accounted for is what is drawn.

    Raises:
        PlanError: if fewer units are declared than a step is to use.
    """
    if units < 1 or units_per_step < 1:
        raise PlanError(f"units {units}, units_per_step {units_per_step}: expected at least 1 of each")
    if units_per_step > units:
        raise PlanError(
            f"units_per_step {units_per_step} is more than the {units} declared units: lower privacy.units_per_step, "
            f"or leave this site out"
        )
    return math.ceil(units_per_step / units * COINS) / COINS


def steps_per_round(epochs: int, units: int, units_per_step: int) -> int:
    """Steps that a trainer takes in a round, and that the ledger charges: epochs * floor(units / units_per_step).

    Raises:
        PlanError: as :func:`sample_rate`.
    """
    sample_rate(units, units_per_step)
    return epochs * (units // units_per_step)


@dataclass(frozen=True)
class Plan:
    """The guarantee of one site. Both epsilons belong to ``delta`` and to all rounds together."""

    unit: Literal["patient", "bundle"]
    units: int
    unit_size: int
    units_per_step: int
    noise_multiplier: float
    rounds: int
    epochs: int
    delta: float
    sample_rate: float
    steps: int
    epsilon_unit: float
    """Adding or removing one unit."""
    epsilon_record: float
    """One record changed inside a unit."""
    curve: tuple[tuple[int, float, float], ...]
    """(rounds, epsilon_unit, epsilon_record) after so many rounds, ascending, up to all of them."""
    warnings: tuple[str, ...]


def make_plan(
    *,
    units: int,
    units_per_step: int,
    rounds: int,
    epochs: int,
    delta: float,
    unit_size: int,
    unit: Literal["patient", "bundle"] = "bundle",
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
) -> Plan:
    """Plan one site's guarantee, at a given sigma, or at the sigma that a target for ``epsilon_unit`` needs.

    Raises:
        PlanError: if not exactly one of sigma and target is given, or a number is out of range.
        AccountantError: if no epsilon can be computed, or no sigma reaches the target.
    """
    if (noise_multiplier is None) == (target_epsilon is None):
        raise PlanError("expected either a noise multiplier or a target epsilon")
    for name, value in (("rounds", rounds), ("epochs", epochs), ("unit_size", unit_size)):
        if value < 1:
            raise PlanError(f"{name} {value}: expected at least 1")
    rate = sample_rate(units, units_per_step)
    steps_a_round = steps_per_round(epochs, units, units_per_step)
    steps = rounds * steps_a_round
    try:
        sigma = (
            noise_multiplier
            if noise_multiplier is not None
            # Rounded up, so that the sigma that is printed holds.
            else math.ceil(1000 * noise_multiplier_for(target_epsilon or 0.0, rate, steps, delta)) / 1000
        )

        def after(count: int) -> tuple[int, float, float]:
            charge = [Charge(sigma, rate, count * steps_a_round)]
            return count, epsilon_unit(charge, delta), epsilon_record(charge, delta)

        curve = tuple(after(count) for count in _points(rounds))
    except AccountantError:
        raise
    except ValueError as error:
        raise PlanError(str(error)) from None
    return Plan(
        unit=unit,
        units=units,
        unit_size=unit_size,
        units_per_step=units_per_step,
        noise_multiplier=sigma,
        rounds=rounds,
        epochs=epochs,
        delta=delta,
        sample_rate=rate,
        steps=steps,
        epsilon_unit=curve[-1][1],
        epsilon_record=curve[-1][2],
        curve=curve,
        warnings=tuple(_warnings(sigma, curve[-1][1], delta, unit, units, units_per_step)),
    )


def _points(rounds: int) -> list[int]:
    """Rounds at which the curve is computed: evenly spaced, the first and the last among them."""
    count = min(rounds, CURVE_POINTS)
    return sorted({1 + round(index * (rounds - 1) / max(1, count - 1)) for index in range(count)} | {rounds})


def _warnings(sigma: float, epsilon: float, delta: float, unit: str, units: int, units_per_step: int) -> Iterator[str]:
    if sigma < DEFENSIBLE_SIGMA:
        yield f"noise multiplier {sigma:.2f} is below {DEFENSIBLE_SIGMA:g}: not defensible"
    if epsilon > LARGE_EPSILON:
        yield (
            f"epsilon = {epsilon:.1f} for {adjacencies(unit)['unit']} (delta = {delta:g}, {ACCOUNTANTS['unit']}) is "
            f"above {LARGE_EPSILON:g}: it excludes little of what an attacker may learn"
        )
    if units_per_step < FEW_UNITS:
        yield (
            f"{units_per_step} units in a step: the noise on each weight of the mean gradient is "
            f"{sigma / units_per_step:.2g} C, and that gradient is at most C long: more units in a step, with more "
            f"noise, learn more at the same epsilon"
        )
    if delta >= 1 / units:
        yield (
            f"delta = {delta:g} is not below 1 / {units} units: a mechanism that publishes one unit in {units} would "
            f"meet it"
        )
