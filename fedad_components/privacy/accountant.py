"""Epsilon of composed, Poisson-subsampled Gaussian steps, by numerical composition of privacy losses (PRV).

Two adjacencies, for the same steps: adding or removing one unit, and one record changed inside a unit, which replaces
the unit's clipped gradient by another of norm at most C. ``privacy_loss.py`` has the loss of one step; Opacus composes
(Gopi, Lee and Wutschitz, "Numerical Composition of Differential Privacy", NeurIPS 2021). Every epsilon is the upper end
of the accountant's error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy.typing as npt
    from opacus.accountants.analysis.prv import DiscretePRV, Domain

    from fedad_components.privacy.privacy_loss import PrivacyLoss

RELATIVE_ERROR, SMALLEST_ERROR = 0.002, 0.001
"""What the discretisation may add to an epsilon: a share of Chernoff's bound on it, and no less than the other."""
LARGEST_DOMAIN = 1 << 23
"""Points of the discretised loss; some 1 GiB while it is composed."""
MOMENTS = (0.02, 1000.0, 48)
"""First and last order, and number, of the moments from which tails of the loss are bounded."""
SIGMAS = (0.2, 1000.0)
"""Range in which a sigma is looked for."""
SMALLEST_SIGMA = 0.05
"""With less noise, a single step's epsilon is in the hundreds, and its moments take minutes."""


class AccountantError(ValueError):
    """Steps for which no reliable epsilon can be computed; the message says what to change."""


LARGEST_SIGMA = 1e6
"""Far beyond any use; its square still is a number."""


@dataclass(frozen=True)
class Charge:
    """``steps`` noised steps of the same sigma and q.

    Raises:
        ValueError: naming the field that is not a finite number above 0, a sample rate above 1, or a sigma above 1e6.
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
        if self.noise_multiplier > LARGEST_SIGMA:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier!r}: expected at most {LARGEST_SIGMA:g}")
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
    """Epsilon under changing one record inside a unit, of all charges together; raises as :func:`epsilon_unit`."""
    return _epsilon(_merged(charges), _checked_delta(delta), replace_one=True)


def noise_multiplier_for(target_epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The sigma at which :func:`epsilon_unit` is at most ``target_epsilon``, and at least 99 % of it.

    Raises:
        ValueError: if the target is not a finite number above 0.
        AccountantError: if no sigma between 0.2 and 1000 does that.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon = {target_epsilon!r}: expected a finite number above 0")

    def epsilon(sigma: float) -> float:
        return epsilon_unit([Charge(sigma, sample_rate, steps)], delta)

    lowest, highest = SIGMAS
    low, high = 1.0, 1.0
    while epsilon(high) > target_epsilon:
        if high == highest:
            raise AccountantError(
                f"epsilon {target_epsilon:g} at delta {delta:g} is out of reach of sigma {highest:g} in {steps} steps "
                f"of sample rate {sample_rate:g}: take fewer steps, a smaller sample rate, or a larger epsilon"
            )
        low, high = high, min(2 * high, highest)
    while epsilon(low) <= target_epsilon:
        if low == lowest:
            raise AccountantError(
                f"epsilon {target_epsilon:g} at delta {delta:g} is reached with less noise than sigma {lowest:g}, in "
                f"{steps} steps of sample rate {sample_rate:g}: lower the target"
            )
        low, high = max(low / 2, lowest), low
    while epsilon(high) < 0.99 * target_epsilon:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon(middle) > target_epsilon else (low, middle)
    return high


def _merged(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Charges of the same sigma and q as one, in a fixed order."""
    steps: Counter[tuple[float, float]] = Counter()
    for charge in charges:
        steps[charge.noise_multiplier, charge.sample_rate] += charge.steps
    return tuple(Charge(sigma, q, count) for (sigma, q), count in sorted(steps.items()))


def _checked_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta!r}: expected a number between 0 and 1")
    return delta


@lru_cache(maxsize=4096)
def _epsilon(charges: tuple[Charge, ...], delta: float, replace_one: bool) -> float:
    if not charges:
        return 0.0
    if all(charge.sample_rate == 1 for charge in charges):
        # Without subsampling, the composition is one Gaussian: exact.
        sensitivity = 2.0 if replace_one else 1.0
        mu = sensitivity * math.sqrt(sum(charge.steps / charge.noise_multiplier**2 for charge in charges))
        return _gaussian(mu, delta)
    smallest = min(charge.noise_multiplier for charge in charges)
    if smallest < SMALLEST_SIGMA:
        raise AccountantError(f"noise_multiplier = {smallest!r}: expected at least {SMALLEST_SIGMA:g}: add noise")
    from fedad_components.privacy.privacy_loss import AddedUnit, RemovedUnit, ReplacedRecord

    pairs: Sequence[type[PrivacyLoss]] = (ReplacedRecord,) if replace_one else (RemovedUnit, AddedUnit)
    losses = [[pair(charge.sample_rate, charge.noise_multiplier) for charge in charges] for pair in pairs]
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


def _composed(pairs: Sequence[Sequence[PrivacyLoss]], steps: Sequence[int], delta: float) -> float:
    """The largest epsilon, over ``pairs``, of the sum of ``steps[i]`` draws of loss i (Gopi et al., Theorem 5.5)."""
    import numpy as np
    from opacus.accountants.analysis.prv import Domain, compose_heterogeneous
    from scipy.fft import next_fast_len

    total, delta_error = sum(steps), delta / 1000
    if total * np.finfo(float).eps > delta_error:
        raise AccountantError(
            f"delta = {delta:g} is too small for {total} steps, in which rounding would decide: use at least "
            f"{1000 * total * np.finfo(float).eps:.0e}"
        )
    bounds, reaches = zip(*(_reach(losses, steps, delta, delta_error) for losses in pairs), strict=True)
    error = max(RELATIVE_ERROR * max(bounds), SMALLEST_ERROR)
    mesh = error / math.sqrt(total * math.log(12 / delta_error) / 2)
    points = 2 * (max(reaches) + error) / mesh + 2
    if not points <= LARGEST_DOMAIN:
        raise AccountantError(
            f"{total} steps at delta = {delta:g} would take the accountant {points:.1e} points, more than "
            f"{LARGEST_DOMAIN:.1e}: take fewer steps, or add noise"
        )
    half = next_fast_len(math.ceil(points / 2), real=True)
    domain = Domain((1 - half) * mesh, half * mesh, 2 * half)
    epsilons = []
    for losses in pairs:
        parts = [_discretised(loss, domain) for loss in losses]
        composed = compose_heterogeneous(dprvs=parts, num_self_compositions=list(steps))
        epsilons.append(_smallest(composed.domain.ts, composed.pmf, delta, delta_error))
    return max(epsilons) + error


def _discretised(loss: PrivacyLoss, domain: Domain) -> DiscretePRV:
    """One step's loss on the domain, with its mean kept: a difference would add up over the steps."""
    import numpy as np
    from opacus.accountants.analysis.prv import DiscretePRV

    edges = np.append(domain.ts, domain.t_max + domain.dt) - domain.dt / 2
    mass = np.diff(loss.cdf(edges))
    mass /= mass.sum()
    shift = loss.mean(edges[0], edges[-1]) - float(np.dot(domain.ts, mass))
    return DiscretePRV(pmf=mass, domain=domain.shift_right(shift))


def _smallest(t: npt.NDArray, mass: npt.NDArray, delta: float, delta_error: float) -> float:
    """The smallest epsilon >= 0 with sum over t > epsilon of p(t) (1 - e^(epsilon - t)) <= delta - delta_error."""
    import numpy as np
    from scipy.signal import lfilter

    rounding = abs(float(mass.sum()) - 1) - float(mass[mass < 0].sum())
    if not rounding < 2 * delta_error:  # also where it is NaN
        raise AccountantError(f"delta = {delta:g} is too small for these steps: rounding comes to {rounding:.0e}")
    allowed = delta - delta_error
    t, mass = t[t > 0], mass[t > 0].clip(min=0)
    above = np.cumsum(mass[::-1])[::-1]
    # weighted[i] = sum over j >= i of p(t_j) e^(t_i - t_j), as a recursion, so that nothing overflows.
    weighted = lfilter([1.0], [1.0, -math.exp(t[0] - t[1])], mass[::-1])[::-1]
    i = int(np.argmax(above - weighted <= allowed))
    # Between t_(i-1) and t_i the sum is above[i] - e^(epsilon - t_i) weighted[i].
    if above[i] <= allowed:
        return float(t[i])
    return max(0.0, float(t[i]) + math.log((above[i] - allowed) / weighted[i]))


def _reach(
    losses: Sequence[PrivacyLoss], steps: Sequence[int], delta: float, delta_error: float
) -> tuple[float, float]:
    """A bound on epsilon, and half the width of a domain outside of which there is no mass that counts.

    By Chernoff's bound, P(loss > t) <= E[e^(order (loss - t))], and likewise below; the shares of ``delta_error`` are
    those of Gopi et al., Remark 5.6.
    """
    import numpy as np

    orders = np.geomspace(*MOMENTS)
    upper = np.array([_log_moments(loss, 1) for loss in losses])
    lower = np.array([_log_moments(loss, -1) for loss in losses])

    def tail(log_moments: npt.NDArray, mass: float) -> float:
        return float(np.min((log_moments - math.log(mass)) / orders))

    one = delta_error / (8 * sum(steps))
    reach = max(
        tail(np.dot(steps, upper), delta_error / 8),
        tail(np.dot(steps, lower), delta_error / 8),
        *(tail(each, one) for each in (*upper, *lower)),
    )
    return tail(np.dot(steps, upper), delta), reach


@lru_cache(maxsize=256)
def _log_moments(loss: PrivacyLoss, sign: int) -> npt.NDArray:
    """log E[e^(sign order loss)] of one step, at each order of MOMENTS."""
    import numpy as np

    return loss.log_moments(sign * np.geomspace(*MOMENTS))
