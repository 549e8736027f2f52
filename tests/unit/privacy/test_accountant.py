"""Both accountants against the published table, closed forms, a direct integral and Google's dp_accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_two_probability_mass_functions
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.stats import norm

from fedad_components.privacy.accountant import (
    AccountantError,
    Charge,
    _smallest,
    epsilon_record,
    epsilon_unit,
    noise_multiplier_for,
)

DELTA = 1e-5
TABLE = [
    (0.0128, 9360, 0.6, 29.5, 42.5),
    (0.0128, 9360, 1.0, 7.96, 14.3),
    (0.0128, 9360, 2.0, 2.75, 5.73),
    (0.0128, 6318, 0.6, 23.4, 32.7),
    (0.0128, 6318, 1.0, 6.36, 11.1),
    (0.0128, 6318, 2.0, 2.21, 4.55),
    (0.0512, 2280, 0.6, 62.0, 91.0),
    (0.0512, 2280, 1.0, 18.4, 33.5),
    (0.0512, 2280, 2.0, 6.07, 12.8),
]


@pytest.mark.parametrize(("q", "steps", "sigma", "unit", "record"), TABLE)
def test_the_table_of_the_method_is_reproduced(q: float, steps: int, sigma: float, unit: float, record: float) -> None:
    charges = [Charge(sigma, q, steps)]
    assert epsilon_unit(charges, DELTA) == pytest.approx(unit, rel=0.02)
    assert epsilon_record(charges, DELTA) == pytest.approx(record, rel=0.02)


@pytest.mark.parametrize(("q", "steps", "sigma"), [(0.0128, 9360, 1.0), (0.0512, 500, 2.0), (0.3, 40, 4.0)])
def test_adding_or_removing_a_unit_agrees_with_dp_accounting_and_opacus(q: float, steps: int, sigma: float) -> None:
    charges = [Charge(sigma, q, steps)]
    oracle = PLDAccountant().compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma)), steps)
    assert epsilon_unit(charges, DELTA) == pytest.approx(oracle.get_epsilon(DELTA), abs=0.03)
    opacus = PRVAccountant()
    opacus.history = [(sigma, q, steps)]
    assert epsilon_unit(charges, DELTA) == pytest.approx(opacus.get_epsilon(DELTA), abs=0.02)


def pessimistic(q: float, sigma: float, steps: int, interval: float) -> float:
    """dp_accounting's upper bound for the replace-one pair, cut into cells; it rounds each loss up to ``interval``."""
    edges = np.linspace(-7.5 * sigma, 7.5 * sigma, 4001)

    def log_mass(mean: float) -> dict[int, float]:
        mass = (1 - q) * np.diff(norm.cdf(edges, 0, sigma)) + q * np.diff(norm.cdf(edges, mean, sigma))
        return dict(enumerate(np.log(mass / mass.sum()).tolist()))

    pair = from_two_probability_mass_functions(log_mass(-1), log_mass(1), value_discretization_interval=interval)
    return float(pair.self_compose(steps).get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize(("q", "steps", "sigma", "interval"), [(0.0128, 78, 1.0, 1e-4), (0.0512, 570, 2.0, 1e-4)])
def test_one_record_changed_agrees_with_dp_accounting(q: float, steps: int, sigma: float, interval: float) -> None:
    bound = pessimistic(q, sigma, steps, interval)
    # Rounding adds half an interval a step on average.
    assert epsilon_record([Charge(sigma, q, steps)], DELTA) == pytest.approx(bound - steps * interval / 2, rel=0.005)


def replaced_once(q: float, sigma: float, delta: float) -> float:
    """Epsilon of one step under replacement: the hockey-stick divergence on a fine grid, and bisection."""
    x = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 1_000_001)
    weight = (1 - q) * norm.pdf(x, 0, sigma)
    p, other = weight + q * norm.pdf(x, 1, sigma), weight + q * norm.pdf(x, -1, sigma)
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        above = np.clip(p - math.exp(middle) * other, 0, None).sum() * (x[1] - x[0])
        low, high = (middle, high) if above > delta else (low, middle)
    return high


@pytest.mark.parametrize(("q", "sigma"), [(0.0128, 1.0), (0.2, 0.7), (0.5, 3.0), (0.9, 2.0)])
def test_one_record_changed_in_one_step_is_the_direct_integral(q: float, sigma: float) -> None:
    expected = replaced_once(q, sigma, DELTA)
    found = epsilon_record([Charge(sigma, q, 1)], DELTA)
    assert expected <= found <= expected + 0.003 + 0.003 * expected


@pytest.mark.parametrize("sigma", [1.0, 5.0])
@pytest.mark.parametrize("steps", [1, 40])
def test_without_sampling_it_is_the_analytic_gaussian(sigma: float, steps: int) -> None:
    charge = [Charge(sigma, 1.0, steps)]
    for epsilon, sensitivity in ((epsilon_unit(charge, DELTA), 1.0), (epsilon_record(charge, DELTA), 2.0)):
        mu = sensitivity * math.sqrt(steps) / sigma
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(DELTA, rel=1e-4)  # Balle and Wang 2018, Theorem 8
    # A sample rate of almost 1 goes through the other code.
    assert epsilon_unit([Charge(sigma, 1 - 1e-9, steps)], DELTA) == pytest.approx(
        epsilon_unit(charge, DELTA), rel=0.01, abs=0.02
    )
    assert epsilon_record([Charge(sigma, 1 - 1e-9, steps)], DELTA) == pytest.approx(
        epsilon_record(charge, DELTA), rel=0.01, abs=0.02
    )


@pytest.mark.parametrize(("z", "epsilon"), [(1, 46), (2, 17.9), (5, 5.8), (10, 2.6)])
def test_forty_rounds_of_client_dp(z: float, epsilon: float) -> None:
    assert epsilon_unit([Charge(z, 1.0, 40)], DELTA) == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.0128, 1.0, 9360), (0.1, 1.5, 300)])
def test_the_bounds_are_ordered(q: float, sigma: float, steps: int) -> None:
    """PRV is below RDP, which bounds from above; a replaced gradient is between one and two removed ones."""
    rdp = RDPAccountant()
    rdp.history = [(sigma, q, steps)]
    unit, record = epsilon_unit([Charge(sigma, q, steps)], DELTA), epsilon_record([Charge(sigma, q, steps)], DELTA)
    assert unit < rdp.get_epsilon(DELTA)
    halved = [Charge(sigma / 2, q, steps)]  # sound for a replacement, and far too pessimistic
    assert unit < record < epsilon_unit(halved, DELTA)


def test_charges_compose_whatever_their_order_and_equal_ones_merge() -> None:
    a, b = Charge(2.0, 0.05, 100), Charge(1.5, 0.02, 300)
    for epsilon in (epsilon_unit, epsilon_record):
        together = epsilon([a, b], DELTA)
        assert together == epsilon([b, a], DELTA)
        assert max(epsilon([a], DELTA), epsilon([b], DELTA)) < together
        assert together < epsilon([a], DELTA / 2) + epsilon([b], DELTA / 2)  # basic composition
        assert epsilon([a, a, a], DELTA) == epsilon([Charge(2.0, 0.05, 300)], DELTA)
    assert epsilon_unit([], DELTA) == 0.0


def test_charges_that_hardly_differ_compose_as_if_they_were_equal() -> None:
    parts = [Charge(1.0 + step * 1e-9, 0.02, 200) for step in range(3)]
    for epsilon in (epsilon_unit, epsilon_record):
        assert epsilon(parts, DELTA) == pytest.approx(epsilon([Charge(1.0, 0.02, 600)], DELTA), rel=1e-4)


@pytest.mark.parametrize(
    ("charge", "unit", "record"),
    [
        (Charge(0.3, 0.05, 1000), 262.6, None),
        (Charge(0.6, 0.5, 5000), 2532.0, None),
        (Charge(20.0, 1e-6, 100_000), 0.0, 0.0),
        (Charge(1.0, 1e-12, 1000), 0.0, 0.0),
        pytest.param(Charge(1.0, 0.001, 1_000_000), 6.026, None, marks=pytest.mark.slow),
        pytest.param(Charge(0.3, 1e-5, 1_000_000), 12.97, None, marks=pytest.mark.slow),
        pytest.param(Charge(20.0, 0.01, 1_000_000), 1.995, None, marks=pytest.mark.slow),
    ],
)
def test_extremes(charge: Charge, unit: float, record: float | None) -> None:
    """dp_accounting's figures (PLD, intervals of 1e-4 and 2e-5), which take it minutes."""
    assert unit <= epsilon_unit([charge], DELTA) <= 1.005 * unit + 0.002
    if record is not None:
        assert record <= epsilon_record([charge], DELTA) <= 1.005 * record + 0.002


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 10_000), (0.3, 10)])
def test_epsilons_of_hundreds_and_thousands_agree_with_the_analytic_gaussian(sigma: float, steps: int) -> None:
    for epsilon in (epsilon_unit, epsilon_record):
        exact = epsilon([Charge(sigma, 1.0, steps)], DELTA)
        assert exact <= epsilon([Charge(sigma, 1 - 1e-12, steps)], DELTA) <= 1.005 * exact


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(AccountantError, match="too small for 1000000 steps"):
        epsilon_unit([Charge(2.0, 0.001, 1_000_000)], 1e-8)
    with pytest.raises(AccountantError, match="take fewer steps"):
        epsilon_unit([Charge(2.0, 0.001, 20_000_000)], 1e-3)
    with pytest.raises(AccountantError, match="add noise"):
        epsilon_record([Charge(0.01, 0.001, 1)], DELTA)
    t = np.linspace(-1, 1, 100)
    for mass in (np.full(100, math.nan), np.full(100, 0.02), np.append(np.full(99, 1.001 / 99), -0.001)):
        with pytest.raises(AccountantError, match="rounding"):
            _smallest(t, mass, DELTA, DELTA / 1000)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", True, None])
def test_a_charge_holds_positive_numbers(bad: object) -> None:
    for name in ("noise_multiplier", "sample_rate", "steps"):
        values = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 1, name: bad}
        with pytest.raises(ValueError, match=name):
            Charge(**values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 1"):
        Charge(1.0, 1.5, 1)
    with pytest.raises(ValueError, match="whole number"):
        Charge(1.0, 0.5, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon_unit([Charge(1.0, 0.1, 1)], delta)


@pytest.mark.parametrize(
    ("target", "q", "steps"), [(8.0, 0.0128, 9360), (1.0, 0.05, 100), (3.0, 1.0, 4), (40.0, 0.05, 2280)]
)
def test_the_sigma_for_a_target_just_meets_it(target: float, q: float, steps: int) -> None:
    sigma = noise_multiplier_for(target, q, steps, DELTA)
    assert 0.99 * target <= epsilon_unit([Charge(sigma, q, steps)], DELTA) <= target


def test_a_target_out_of_reach_is_refused() -> None:
    with pytest.raises(AccountantError, match="out of reach"):
        noise_multiplier_for(0.012, 1.0, 1_000_000, DELTA)
    with pytest.raises(AccountantError, match="lower the target"):
        noise_multiplier_for(1000.0, 0.05, 100, DELTA)
    with pytest.raises(ValueError, match="target_epsilon"):
        noise_multiplier_for(math.nan, 0.1, 10, DELTA)
