"""Epsilon of composed, Poisson-subsampled Gaussian steps, by numerical composition of privacy losses (PRV).

Two adjacencies, at the same steps: adding or removing one unit, and one record changed inside a unit, which replaces
the unit's clipped gradient by another of norm at most C. Opacus discretises and composes (Gopi, Lee and Wutschitz,
"Numerical Composition of Differential Privacy", NeurIPS 2021); it knows the first pair, the second is written here.
Every epsilon is the upper end of the accountant's error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy.typing as npt

ORDERS = tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(12, 64)) + (80, 128, 256, 512, 1024)
"""Renyi orders from which the tails of the privacy loss are bounded; Opacus's, and a few for small losses."""
EPSILON_ERROR, RELATIVE_ERROR = 0.005, 0.002
"""What the discretisation may add to an epsilon: the larger of the two."""
LARGEST_DOMAIN = 1 << 24
SMALLEST_DELTA = 1e-10
"""Below it, rounding in the Fourier transform could decide."""


class AccountantError(ValueError):
    """Steps for which no reliable epsilon can be computed; the message says what to change."""


@dataclass(frozen=True)
class Charge:
    """``steps`` noised steps of the same sigma and q.

    Raises:
        ValueError: naming the field that is not a finite number above 0, or a sample rate above 1.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "sample_rate", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} = {value!r}: expected a finite number above 0")
        if self.sample_rate > 1:
            raise ValueError(f"sample_rate = {self.sample_rate!r}: expected at most 1")
        if not isinstance(self.steps, int):
            raise ValueError(f"steps = {self.steps!r}: expected a whole number")


def epsilon_unit(charges: Sequence[Charge], delta: float) -> float:
    """Epsilon under adding or removing one unit, of all charges together; 0 for none.

    Raises:
        ValueError: if delta is not between 0 and 1.
        AccountantError: if no reliable number can be computed.
    """
    return _epsilon(_merged(charges), _checked_delta(delta), replace_one=False)


def epsilon_record(charges: Sequence[Charge], delta: float) -> float:
    """Epsilon under changing one record inside a unit, of all charges together; raises as :func:`epsilon_unit`.

    The pair is (1 - q) N(0, sigma^2) + q N(1, sigma^2) against (1 - q) N(0, sigma^2) + q N(-1, sigma^2): the unit's
    gradient turns from one direction to the opposite.
    """
    return _epsilon(_merged(charges), _checked_delta(delta), replace_one=True)


def noise_multiplier_for(target_epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The sigma at which :func:`epsilon_unit` is at most ``target_epsilon``, and at least 98 % of it.

    Raises:
        ValueError: if the target is not a finite number above 0.
        AccountantError: if no sigma between 0.2 and 1000 reaches it.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon = {target_epsilon!r}: expected a finite number above 0")

    def excess(log_sigma: float) -> float:
        """log(epsilon / target), nearly linear in log sigma."""
        return math.log(epsilon_unit([Charge(math.exp(log_sigma), sample_rate, steps)], delta) / target_epsilon)

    low, high = math.log(0.5), math.log(8.0)
    while (below := excess(low)) < 0:
        low, high = low - 0.5, low
        if low < math.log(0.2):
            raise AccountantError(f"epsilon {target_epsilon:g} is reached with less noise than sigma 0.2: lower it")
    while (above := excess(high)) > 0:
        low, below, high = high, above, high + 1.5
        if high > math.log(1000):
            raise AccountantError(
                f"epsilon {target_epsilon:g} at delta {delta:g} is out of reach of sigma 1000 in {steps} steps of "
                f"sample rate {sample_rate:g}: take fewer steps, a smaller sample rate, or a larger epsilon"
            )
    while not -0.02 < above <= 0:
        # A little beyond the chord's zero, so that the accepted end of the bracket moves too.
        middle = low + min(max(1.03 * below / (below - above), 0.05), 0.95) * (high - low)
        value = excess(middle)
        if value > 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return math.exp(high)


class _PrivacyLoss(Protocol):
    sample_rate: float
    noise_multiplier: float

    def __init__(self, sample_rate: float, noise_multiplier: float) -> None: ...

    def cdf(self, t: npt.NDArray) -> npt.NDArray: ...

    def rdp(self, alpha: float) -> float: ...


class ReplaceOnePRV:
    """Privacy loss of the replace-one pair, as Opacus composes them."""

    def __init__(self, sample_rate: float, noise_multiplier: float) -> None:
        self.sample_rate, self.noise_multiplier = sample_rate, noise_multiplier

    def cdf(self, t: npt.NDArray) -> npt.NDArray:
        """P(loss <= t) under the first of the pair.

        The loss at x is log (1 + a e^(x/s^2)) / (1 + a e^(-x/s^2)), with a = q/(1-q) e^(-1/2s^2); it grows with x, and
        x = s^2 (t/2 + asinh(sinh(t/2) / a)).
        """
        import numpy as np
        from scipy.special import ndtr

        q, sigma = self.sample_rate, self.noise_multiplier
        t = np.asarray(t, dtype=float)
        x = t / 2
        if q < 1:
            log_a = math.log(q) - math.log1p(-q) - 1 / (2 * sigma**2)
            half = np.abs(t) / 2
            # asinh(sinh(half) / a) without overflow: log(r + sqrt(r^2 + 1)), r = e^log_r.
            with np.errstate(divide="ignore"):
                log_r = half + np.log(-np.expm1(-2 * half) / 2) - log_a
            inverse = np.where(
                log_r > 0,
                log_r + np.log1p(np.sqrt(1 + np.exp(-2 * log_r.clip(min=0)))),
                np.arcsinh(np.exp(log_r.clip(max=0))),
            )
            x = x + np.sign(t) * inverse
        x = x * sigma**2
        return (1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma)

    def rdp(self, alpha: float) -> float:
        """Renyi divergence of order alpha, integrated over a grid."""
        import numpy as np
        from scipy.special import logsumexp

        q, sigma = self.sample_rate, self.noise_multiplier
        step = min(sigma, 1.0) / 20
        x = np.arange(-12 * sigma - 1, 2 * alpha + 12 * sigma, step)
        keep = math.log1p(-q) if q < 1 else -math.inf

        def log_density(shift: float) -> npt.NDArray:
            exponent = np.logaddexp(keep - x**2 / (2 * sigma**2), math.log(q) - (x - shift) ** 2 / (2 * sigma**2))
            return exponent - math.log(sigma * math.sqrt(2 * math.pi))

        return float(logsumexp(alpha * log_density(1) - (alpha - 1) * log_density(-1)) + math.log(step)) / (alpha - 1)


def _merged(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Charges of the same sigma and q as one, in a fixed order."""
    steps: Counter[tuple[float, float]] = Counter()
    for charge in charges:
        steps[charge.noise_multiplier, charge.sample_rate] += charge.steps
    return tuple(Charge(sigma, q, count) for (sigma, q), count in sorted(steps.items()))


def _checked_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta!r}: expected a number between 0 and 1")
    if delta < SMALLEST_DELTA:
        raise AccountantError(f"delta = {delta!r}: expected at least {SMALLEST_DELTA:g}, below which rounding decides")
    return delta


@lru_cache(maxsize=4096)
def _epsilon(charges: tuple[Charge, ...], delta: float, replace_one: bool) -> float:
    if not charges:
        return 0.0
    if all(charge.sample_rate == 1 for charge in charges):
        # Without subsampling, the composition is one Gaussian: exact.
        sensitivity = 2.0 if replace_one else 1.0
        return _gaussian(
            sensitivity * math.sqrt(sum(charge.steps / charge.noise_multiplier**2 for charge in charges)), delta
        )
    from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV

    kind = ReplaceOnePRV if replace_one else PoissonSubsampledGaussianPRV
    losses = [kind(charge.sample_rate, charge.noise_multiplier) for charge in charges]
    return _composed(losses, [charge.steps for charge in charges], delta)


def _gaussian(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with sensitivity / sigma = mu (Balle and Wang 2018, Theorem 8)."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(epsilon: float) -> float:
        first = log_ndtr(mu / 2 - epsilon / mu)
        return math.exp(first) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, mu * (mu / 2 + 40), xtol=1e-9)) + 1e-9


def _composed(losses: Sequence[_PrivacyLoss], steps: Sequence[int], delta: float) -> float:
    import numpy as np
    from opacus.accountants.analysis.prv import (
        Domain,
        TruncatedPrivacyRandomVariable,
        compose_heterogeneous,
        discretize,
    )

    delta_error = delta / 1000
    reach, bound = _reach(losses, steps, delta, delta_error)
    total = sum(steps)
    error = max(EPSILON_ERROR, RELATIVE_ERROR * bound)
    mesh = error / math.sqrt(total * math.log(12 / delta_error) / 2)
    if 2 * reach / mesh > LARGEST_DOMAIN:
        raise AccountantError(
            f"{total} steps reach an epsilon of about {bound:.0f}, for which the accountant would need "
            f"{2 * reach / mesh:.0f} points: add noise, or take fewer steps; such an epsilon protects nobody"
        )
    try:
        with np.errstate(all="ignore"):
            domain = Domain.create_aligned(-reach, reach, mesh)
            parts = [
                discretize(TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max), domain) for loss in losses
            ]
            composed = compose_heterogeneous(dprvs=parts, num_self_compositions=list(steps))
    except (RuntimeError, ValueError) as failed:
        raise AccountantError(f"the accountant cannot compose these {total} steps: {failed}") from None
    epsilon = _smallest(composed.domain.ts, composed.pmf, delta - delta_error) + error
    if not math.isfinite(epsilon):
        raise AccountantError(f"the accountant returned {epsilon} for {total} steps")
    return epsilon


def _smallest(t: npt.NDArray, mass: npt.NDArray, delta: float) -> float:
    """The smallest epsilon >= 0 with sum over t > epsilon of p(t) (1 - e^(epsilon - t)) <= delta."""
    import numpy as np

    keep = t > 0
    t, mass = t[keep], mass[keep].clip(min=0)
    above = np.cumsum(mass[::-1])[::-1]
    weighted = np.cumsum((mass * np.exp(-t))[::-1])[::-1]
    # delta(epsilon) at epsilon = t_i falls in i; within a cell it is above - e^epsilon weighted.
    deltas = above - np.exp(t) * weighted
    first = int(np.argmax(deltas <= delta))
    if deltas[first] > delta:
        return math.inf
    start = above[first], weighted[first]
    if start[1] <= 0:
        return float(t[first])
    return float(max(0.0, min(t[first], math.log(max(start[0] - delta, 1e-300) / start[1]))))


@lru_cache(maxsize=256)
def _renyi(kind: type[_PrivacyLoss], sample_rate: float, noise_multiplier: float) -> npt.NDArray:
    """Renyi divergences of one step at ORDERS; infinite where they cannot be computed."""
    import numpy as np

    loss = kind(sample_rate, noise_multiplier)
    with np.errstate(all="ignore"):
        curve = np.array([loss.rdp(alpha) for alpha in ORDERS])
    return np.nan_to_num(curve, nan=math.inf, posinf=math.inf)


def _reach(
    losses: Sequence[_PrivacyLoss], steps: Sequence[int], delta: float, delta_error: float
) -> tuple[float, float]:
    """Half-width of the domain beyond which the loss has no mass that counts, and the RDP bound on epsilon.

    Gopi et al., Remark 5.6, with the tails bounded through Renyi divergences.
    """
    import warnings

    import numpy as np
    from opacus.accountants.analysis.rdp import get_privacy_spent

    curves = [_renyi(type(loss), loss.sample_rate, loss.noise_multiplier) for loss in losses]
    composed = np.dot(steps, curves)

    def tail(curve: npt.NDArray, mass: float) -> float:
        usable = np.isfinite(curve)
        if not usable.any():
            raise AccountantError("the noise is too small for any bound: raise privacy.noise_multiplier")
        orders = [order for order, finite in zip(ORDERS, usable, strict=True) if finite]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an optimum at the largest order is only loose
            return float(get_privacy_spent(orders=orders, rdp=curve[usable], delta=mass)[0])

    single = max(tail(curve, delta_error / (8 * sum(steps))) for curve in curves)
    return max(tail(composed, delta_error / 4), single, EPSILON_ERROR) + 3, tail(composed, delta)
