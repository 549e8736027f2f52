"""Plans are the accountant's numbers on the formulas of the method, and say what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.plan import PlanError, make_plan, sample_rate, steps_per_epoch

METHOD = {"units": 625, "rounds": 40, "epochs": 3, "delta": 1e-5, "unit_size": 8}
COMMAND = ["privacy", "plan", "--units", "625", "--rounds", "40", "--epochs", "3", "--delta", "1e-5"]


@pytest.mark.parametrize(("units_per_step", "q", "steps"), [(8, 0.0128, 9360), (32, 0.0512, 2280)])
def test_steps_and_rate_of_the_method(units_per_step: int, q: float, steps: int) -> None:
    plan = make_plan(**METHOD, units_per_step=units_per_step, noise_multiplier=2.0)
    assert (plan.sample_rate, plan.steps) == (pytest.approx(q), steps)
    assert steps_per_epoch(625, units_per_step) * 120 == steps
    charge = [Charge(2.0, q, steps)]
    assert plan.epsilon_unit == pytest.approx(epsilon_unit(charge, 1e-5), rel=1e-6)
    assert plan.epsilon_record == pytest.approx(epsilon_record(charge, 1e-5), rel=1e-6)
    rounds, unit, record = zip(*plan.curve, strict=True)
    assert rounds[0] == 1
    assert rounds[-1] == 40
    assert list(unit) == sorted(unit)
    assert list(record) == sorted(record)
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"noise_multiplier": 0.6}, "below 1: not defensible"),
        ({"noise_multiplier": 0.5}, "above 10"),
        ({"units": 64, "delta": 0.02}, "delta 0.02 is not below 1 / 64"),
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


def test_the_command_prints_what_stands_beside_an_epsilon(tmp_path: Path) -> None:
    figure = tmp_path / "plan.svg"
    options = ["--units-per-step", "8", "--noise-multiplier", "1", "--figure", str(figure), "--json"]
    result = CliRunner().invoke(app, [*COMMAND, *options])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert (plan["steps"], plan["sample_rate"]) == (9360, pytest.approx(0.0128))
    assert plan["epsilon_unit"] == pytest.approx(7.96, rel=0.02)
    assert plan["epsilon_record"] == pytest.approx(14.3, rel=0.02)
    assert plan["adjacency_unit"] == "adding or removing one bundle"
    assert plan["accountant_record"] == "replace-one PRV accountant"
    assert "<svg" in figure.read_text()


def test_a_target_gives_its_sigma_and_the_table_is_for_people() -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--units-per-step", "32", "--target-epsilon", "8"])
    assert result.exit_code == 0, result.output
    assert "sigma = 1.6" in result.stdout
    for word in ("delta = 1e-05", "PRV accountant", "2280 steps"):
        assert word in result.stdout
    refused = CliRunner().invoke(app, [*COMMAND, "--units-per-step", "700", "--target-epsilon", "8"])
    assert refused.exit_code == 1
    assert "declared units" in refused.stderr
