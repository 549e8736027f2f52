"""The loss of one step: its distribution, mean and moments against direct integrals and Opacus."""

from __future__ import annotations

import math

import numpy as np
import pytest
from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV
from opacus.accountants.analysis.rdp import compute_rdp
from scipy.integrate import quad
from scipy.stats import norm

from fedad_components.privacy.privacy_loss import AddedUnit, PrivacyLoss, RemovedUnit, ReplacedRecord

PAIRS = (RemovedUnit, AddedUnit, ReplacedRecord)
STEPS = [(0.0128, 1.0), (0.3, 0.5), (0.9, 5.0), (1e-5, 2.0), (1.0, 1.0)]


def densities(loss: PrivacyLoss, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P and Q as the module's docstring defines them; Q and P of a unit added are mirrored there, and here."""
    q, sigma = loss.sample_rate, loss.noise_multiplier

    def mixture(mean: float) -> np.ndarray:
        return (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, mean, sigma)

    plain = norm.pdf(x, 0, sigma)
    pair = {
        RemovedUnit: (mixture(1), plain),
        AddedUnit: (plain, mixture(-1)),
        ReplacedRecord: (mixture(1), mixture(-1)),
    }
    return pair[type(loss)]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("q", "sigma"), STEPS)
def test_the_loss_is_the_log_ratio_of_its_pair(pair: type[PrivacyLoss], q: float, sigma: float) -> None:
    loss = pair(q, sigma)
    x = np.linspace(-5 * sigma - 1, 5 * sigma + 1, 400_001)
    p, other = densities(loss, x)
    expected = np.log(p / other)
    np.testing.assert_allclose(loss.at(x), expected, atol=1e-12, rtol=1e-9)
    t = np.quantile(expected, [0.001, 0.1, 0.5, 0.9, 0.999])
    below = [(p * (expected <= limit)).sum() * (x[1] - x[0]) for limit in t]
    np.testing.assert_allclose(loss.cdf(t), below, atol=1e-4)
    np.testing.assert_allclose(loss.at(loss.inverse(t)), t, atol=1e-12, rtol=1e-6)


@pytest.mark.parametrize(("q", "sigma"), STEPS[:4])
def test_a_removed_unit_is_the_loss_that_opacus_has(q: float, sigma: float) -> None:
    t = np.linspace(-1, 4, 101)
    with np.errstate(all="ignore"):
        expected = PoissonSubsampledGaussianPRV(q, sigma).cdf(t)
    np.testing.assert_allclose(RemovedUnit(q, sigma).cdf(t), expected, atol=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("q", "sigma"), [(0.0128, 1.0), (0.3, 0.5), (0.9, 5.0)])
def test_the_mean_is_its_integral(pair: type[PrivacyLoss], q: float, sigma: float) -> None:
    loss = pair(q, sigma)

    def integrand(x: float) -> float:
        p, other = densities(loss, np.array(x))
        return float(p * np.log(p / other))

    expected, _ = quad(integrand, -9 * sigma, 1 + 9 * sigma, epsabs=1e-13, epsrel=1e-12, limit=500)
    assert loss.mean(-1000.0, 1000.0) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("q", "sigma"), [(0.0128, 1.0), (0.3, 0.5), (0.05, 10.0)])
def test_moments_are_renyi_divergences(q: float, sigma: float) -> None:
    orders = np.array([0.1, 1.0, 3.5, 31.0, 255.0])
    expected = compute_rdp(q=q, noise_multiplier=sigma, steps=1, orders=list(1 + orders)) * orders
    np.testing.assert_allclose(RemovedUnit(q, sigma).log_moments(orders), expected, rtol=1e-6, atol=1e-12)
    # Of a pair and its reverse: E_P[e^(-(1 + a) loss)] = E_Q[e^(a reverse loss)].
    np.testing.assert_allclose(
        RemovedUnit(q, sigma).log_moments(-1 - orders), AddedUnit(q, sigma).log_moments(orders), rtol=1e-9, atol=1e-13
    )
    np.testing.assert_allclose(
        ReplacedRecord(q, sigma).log_moments(-1 - orders), ReplacedRecord(q, sigma).log_moments(orders), rtol=1e-9
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_far_tails_do_not_overflow(pair: type[PrivacyLoss]) -> None:
    cdf = pair(1e-6, 0.1).cdf(np.array([-5000.0, -1.0, 0.0, 1.0, 5000.0]))
    assert np.all(np.diff(cdf) >= 0)
    assert (cdf[0], cdf[-1]) == (0.0, 1.0)
    assert math.isfinite(pair(1e-6, 0.1).mean(-5000.0, 5000.0))
