"""Plans are the accountant's numbers on the formulas of the method, and say what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.plan import PlanError, make_plan, sample_rate, steps_per_round

METHOD = {"units": 625, "rounds": 40, "epochs": 3, "delta": 1e-5, "unit_size": 8}


@pytest.mark.parametrize(("units_per_step", "q", "steps"), [(8, 0.0128, 9360), (32, 0.0512, 2280)])
def test_steps_and_rate_of_the_method(units_per_step: int, q: float, steps: int) -> None:
    plan = make_plan(**METHOD, units_per_step=units_per_step, noise_multiplier=2.0)
    assert (plan.sample_rate, plan.steps) == (pytest.approx(q, abs=2**-24), steps)
    assert steps_per_round(1, 625, units_per_step) * 120 == steps
    charge = [Charge(2.0, plan.sample_rate, steps)]
    assert plan.epsilon_unit == pytest.approx(epsilon_unit(charge, 1e-5), rel=1e-6)
    assert plan.epsilon_record == pytest.approx(epsilon_record(charge, 1e-5), rel=1e-6)
    rounds, unit, record = zip(*plan.curve, strict=True)
    assert rounds[0] == 1
    assert rounds[-1] == 40
    assert list(unit) == sorted(unit)
    assert list(record) == sorted(record)
    assert len(plan.warnings) == (units_per_step < 16)


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"noise_multiplier": 0.6}, "below 1: not defensible"),
        ({"noise_multiplier": 0.5}, r"adding or removing one bundle (delta = 1e-05, PRV accountant) is above 10"),
        ({"units_per_step": 4}, "4 units in a step: the noise on each weight of the mean gradient is 0.5 C"),
        ({"units": 64, "delta": 0.02}, "delta = 0.02 is not below 1 / 64"),
    ],
)
def test_what_cannot_be_defended_is_said(change: dict[str, Any], warning: str) -> None:
    plan = make_plan(**{**METHOD, "rounds": 4, "units_per_step": 32, "noise_multiplier": 2.0, **change})
    assert warning in " ".join(plan.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units_per_step": 626}, "more than the 625 declared units"),
        ({"units": 0}, "at least 1"),
        ({"noise_multiplier": None}, "either"),
        ({"target_epsilon": 3.0}, "either"),
        ({"rounds": 0}, "rounds 0"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_a_plan_needs_numbers_in_range(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(**{**METHOD, "units_per_step": 32, "noise_multiplier": 2.0, **change})
    assert sample_rate(4, 4) == 1.0


def test_a_target_is_met_by_a_sigma_of_three_decimals() -> None:
    plan = make_plan(**METHOD, units_per_step=32, target_epsilon=3.0)
    assert plan.noise_multiplier == round(plan.noise_multiplier, 3)
    assert 0.98 * 3 < plan.epsilon_unit <= 3
