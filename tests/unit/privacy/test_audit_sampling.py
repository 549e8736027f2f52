"""Draws that are not independent are told from those that are."""

from __future__ import annotations

import numpy as np
import pytest

from fedad_components.privacy.audit_sampling import SIGNIFICANCE, check_sampling

STEPS, UNITS, RATE = 40, 400, 0.1


def poisson(rng: np.random.Generator, rate: float = RATE) -> np.ndarray:
    return rng.random((STEPS, UNITS)) < rate


def shuffled(rng: np.random.Generator) -> np.ndarray:
    """Each epoch a new order, cut into batches of 40."""
    drawn = np.zeros((STEPS, UNITS), dtype=bool)
    for step in range(STEPS):
        if step % 10 == 0:
            order = rng.permutation(UNITS).reshape(10, 40)
        drawn[step, order[step % 10]] = True
    return drawn


def fixed_size(rng: np.random.Generator) -> np.ndarray:
    """40 units, drawn anew in each step."""
    return np.stack([np.isin(np.arange(UNITS), rng.choice(UNITS, 40, replace=False)) for _ in range(STEPS)])


@pytest.mark.parametrize(("steps", "units", "rate"), [(40, 400, 0.1), (4, 2000, 0.5), (200, 40, 0.05)])
def test_p_values_of_independent_draws_are_uniform(steps: int, units: int, rate: float) -> None:
    rng = np.random.default_rng(0)
    checks = [check_sampling(rng.random((steps, units)) < rate, rate) for _ in range(500)]
    p_values = np.array([[check.rate_p_value, check.step_p_value, check.unit_p_value] for check in checks])
    assert np.abs(np.mean(p_values < 0.1, axis=0) - 0.1).max() < 0.05
    assert all(check.independent for check in checks)


def test_shuffled_batches_are_found_twice() -> None:
    check = check_sampling(shuffled(np.random.default_rng(0)), RATE)
    assert not check.independent
    assert check.rate_p_value > 0.1
    assert max(check.step_p_value, check.unit_p_value) < SIGNIFICANCE


def test_batches_of_one_size_are_found_by_their_size() -> None:
    check = check_sampling(fixed_size(np.random.default_rng(0)), RATE)
    assert check.step_p_value < SIGNIFICANCE < check.unit_p_value
    assert not check.independent


def test_the_same_units_again_and_again_are_found_by_unit() -> None:
    rng = np.random.default_rng(0)
    check = check_sampling(np.repeat(poisson(rng)[:1], STEPS, axis=0), RATE)
    assert check.unit_p_value < SIGNIFICANCE


def test_another_rate_is_found() -> None:
    check = check_sampling(poisson(np.random.default_rng(0), 0.15), RATE)
    assert check.rate_p_value < SIGNIFICANCE


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_a_rate_that_leaves_no_chance_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate within"):
        check_sampling(poisson(np.random.default_rng(0)), rate)
