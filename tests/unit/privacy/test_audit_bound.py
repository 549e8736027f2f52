"""The audit's statistics, against closed forms, mechanisms of known epsilon and another implementation's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedad_components.privacy.audit_bound import (
    GUESSED_SHARES,
    SIGNIFICANCE,
    ceiling,
    count_correct,
    guess_counts,
    lower_bound,
    p_value,
    read,
)


def at_least(correct: int, guesses: int, accuracy: float) -> float:
    """P[Binomial >= correct], summed by hand."""
    return sum(
        math.comb(guesses, k) * accuracy**k * (1 - accuracy) ** (guesses - k) for k in range(correct, guesses + 1)
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_pure_dp_is_the_binomial_tail_of_randomised_response(epsilon: float) -> None:
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    for correct in range(13):
        assert p_value(40, 12, correct, epsilon, 0.0) == pytest.approx(at_least(correct, 12, accuracy), rel=1e-9)


def test_delta_term_is_the_papers_maximum_written_out() -> None:
    m, r, v, epsilon, delta = 9, 6, 5, 0.8, 0.01
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, k) * accuracy**k * (1 - accuracy) ** (r - k) for k in range(r + 1)]
    alpha = max(2 / i * sum(mass[v - i : v]) for i in range(1, v + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(at_least(v, r, accuracy) + m * delta * alpha, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 0.1])
def test_holds_for_a_mechanism_that_shows_everything_with_probability_delta(delta: float) -> None:
    """Randomised response that shows all coins with probability delta is (epsilon, delta)-DP, and exactly solvable."""
    m, epsilon = 12, 1.0
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    for correct in range(m + 1):
        exact = delta + (1 - delta) * at_least(correct, m, accuracy)
        assert p_value(m, m, correct, epsilon, delta) >= min(1.0, exact) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1000, 100, 90, 1.0, 1e-3), 0.0814204014710946),
        ((5000, 500, 400, 1.2, 1e-5), 0.05455373339596742),
        ((100, 10, 9, 0.5, 1e-2), 0.47937412223100023),
        ((3500, 3500, 3500, 6.9, 1e-5), 0.04154037097340263),
        ((2000, 400, 230, 0.0, 1e-6), 0.0016497158029680813),
    ],
)
def test_p_values_of_jax_privacy(arguments: tuple[int, int, int, float, float], expected: float) -> None:
    """jax_privacy 2.0.0, ``auditing._one_run_p_value``."""
    assert p_value(*arguments) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5000, 500, 450, 1e-5, 0.05), 1.9414204),
        ((3500, 3500, 3500, 1e-5, 0.05), 6.9692730),
        ((1000, 100, 100, 0.0, 0.05), 3.4929653),
        ((1000, 1000, 700, 1e-3, 0.01), 0.1406289),
        ((10000, 250, 240, 1e-6, 0.05 / 3), 2.4991529),
    ],
)
def test_bounds_of_jax_privacy(arguments: tuple[int, int, int, float, float], expected: float) -> None:
    """jax_privacy 2.0.0, ``auditing._epsilon_one_run``."""
    assert lower_bound(*arguments) == pytest.approx(expected, abs=3e-6)


def test_all_right_without_delta_has_a_closed_form() -> None:
    """accuracy^r = significance."""
    accuracy = SIGNIFICANCE ** (1 / 200)
    assert lower_bound(200, 200, 200, 0.0) == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=2e-6)


def test_guessing_proves_nothing() -> None:
    assert lower_bound(1000, 500, 250, 1e-5) == 0.0
    assert lower_bound(1000, 0, 0, 1e-5) == 0.0


@given(st.data())
def test_p_value_rises_with_epsilon_and_falls_with_right_guesses(data: st.DataObject) -> None:
    """What bisection needs."""
    m = data.draw(st.integers(1, 400))
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    low, high = sorted(data.draw(st.tuples(st.floats(0, 8), st.floats(0, 8))))
    assert p_value(m, r, v, low, delta) <= p_value(m, r, v, high, delta) + 1e-12
    assert p_value(m, r, v, low, 0.0) <= p_value(m, r, v - 1, low, 0.0)


@pytest.mark.parametrize(
    "arguments",
    [
        (10, 11, 5, 1.0, 0.0),
        (10, 5, 6, 1.0, 0.0),
        (10, 5, -1, 1.0, 0.0),
        (10, 5, 5, -1.0, 0.0),
        (10, 5, 5, math.nan, 0.0),
        (10, 5, 5, 1.0, 2.0),
        (10, 5, 5, 1.0, math.nan),
    ],
)
def test_impossible_numbers_are_refused(arguments: tuple[int, int, int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"expected (0 <= correct|epsilon)"):
        p_value(*arguments)


def test_highest_are_called_included_and_lowest_left_out() -> None:
    scores = np.array([5.0, -3.0, 1.0, 4.0, -2.0, 0.0])
    included = np.array([True, False, True, False, False, False])
    assert count_correct(scores, included, 2) == 2
    assert count_correct(scores, included, 4) == 3
    assert count_correct(-scores, included, 2) == 0
    assert count_correct(scores, included, 0) == 0


def test_counts_are_even_and_fixed_by_the_number_of_canaries_alone() -> None:
    assert guess_counts(3500) == [350, 700, 1750]
    assert guess_counts(7) == [0, 2]


def test_more_tests_cost_confidence() -> None:
    included = np.arange(2000) % 2 == 0
    scores = included + np.random.default_rng(0).normal(0, 0.7, 2000)
    one, two = read(scores, included, 1e-5), read(scores, included, 1e-5, surfaces=2)
    assert 0 < two.epsilon < one.epsilon
    tried = [
        lower_bound(2000, r, count_correct(scores, included, r), 1e-5, SIGNIFICANCE / len(GUESSED_SHARES))
        for r in guess_counts(2000)
    ]
    assert one.epsilon == max(tried)


def test_ceiling_is_what_a_mechanism_without_noise_reads() -> None:
    included = np.random.default_rng(0).random(3500) < 0.5
    assert read(included.astype(float), included, 1e-5).epsilon == ceiling(3500, 1e-5)
    assert 5.7 < ceiling(3500, 1e-5) < 6.1


def test_false_alarms_on_randomised_response_stay_below_the_significance() -> None:
    """Bounds above the true epsilon, in 200 audits of a mechanism that uses its epsilon up."""
    rng, epsilon, m = np.random.default_rng(0), 1.0, 600
    alarms = 0
    for _ in range(200):
        included = rng.random(m) < 0.5
        scores = np.where(rng.random(m) < 1 / (1 + math.exp(-epsilon)), included, ~included).astype(float)
        alarms += read(scores, included, 0.0).epsilon > epsilon
    # 10 are allowed on average; 21 or more come with a probability below 2e-3
    assert alarms < 21
