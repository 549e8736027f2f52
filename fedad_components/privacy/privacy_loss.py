"""Privacy loss of one noised step, for the pairs of distributions that dominate it.

A step adds N(0, sigma^2) to a sum of clipped gradients, in units of the clipping norm, and uses each unit with
probability q. With M(m) = (1 - q) N(0, sigma^2) + q N(m, sigma^2), the loss is log dP/dQ under P, where P against Q is

- M(1) against N(0, sigma^2) where a unit is removed, and the reverse where it is added (Zhu, Dong and Wang, AISTATS
  2022);
- M(1) against M(-1) where one record in a unit changes: the unit's clipped gradient turns from one direction to the
  opposite. Its reverse is its mirror image.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

TAIL = 12.0
"""Standard deviations beyond which a Gaussian has no mass in double precision that counts (2e-33)."""


@dataclass(frozen=True)
class PrivacyLoss(ABC):
    """A loss that grows with the output x, of which P is a mixture of N(0, sigma^2) and N(1, sigma^2)."""

    sample_rate: float
    noise_multiplier: float

    @abstractmethod
    def at(self, x: npt.NDArray) -> npt.NDArray:
        """log dP/dQ at x."""

    @abstractmethod
    def inverse(self, t: npt.NDArray) -> npt.NDArray:
        """The x at which the loss is t; infinite where it does not get there."""

    @property
    def weight(self) -> float:
        """Share of N(1, sigma^2) in P."""
        return self.sample_rate

    def cdf(self, t: npt.NDArray) -> npt.NDArray:
        """P(loss <= t)."""
        x, sigma = self.inverse(t), self.noise_multiplier
        return (1 - self.weight) * ndtr(x / sigma) + self.weight * ndtr((x - 1) / sigma)

    def mean(self, t_min: float, t_max: float) -> float:
        """Integral of t over [t_min, t_max] under P, by Gauss and Legendre's rule on short pieces of x."""
        sigma = self.noise_multiplier
        low, high = self.inverse(np.array([t_min, t_max])).clip(-TAIL * sigma, 1 + TAIL * sigma)
        edges = np.linspace(low, high, 2 + int((high - low) / min(sigma, sigma**2)))
        nodes, weights = np.polynomial.legendre.leggauss(20)
        half = np.diff(edges)[:, None] / 2
        x = edges[:-1, None] + half * (1 + nodes)
        return float(np.sum(half * weights * self.at(x) * np.exp(self._log_density(x))))

    def log_moments(self, orders: npt.NDArray) -> npt.NDArray:
        """log E[e^(order * loss)], ``(orders,)``: Renyi divergence of order 1 + order, times order.

        The trapezoidal rule, which is exact to rounding for such integrands.
        """
        sigma = self.noise_multiplier
        step = min(sigma, sigma**2) / 3

        def log_moment(order: float) -> float:
            # The integrand peaks between 0 and 1 + 2 order.
            low, high = min(0.0, 2 * order) - TAIL * sigma, max(0.0, 2 * order) + 1 + TAIL * sigma
            x = np.arange(low, high, step)
            return float(logsumexp(order * self.at(x) + self._log_density(x)) + math.log(step))

        return np.array([log_moment(order) for order in orders])

    def _log_density(self, x: npt.NDArray) -> npt.NDArray:
        sigma = self.noise_multiplier
        scale = math.log(sigma * math.sqrt(2 * math.pi))
        parts = -(x**2) / (2 * sigma**2), -((x - 1) ** 2) / (2 * sigma**2)
        return np.logaddexp(_log(1 - self.weight) + parts[0], _log(self.weight) + parts[1]) - scale


class RemovedUnit(PrivacyLoss):
    """M(1) against N(0, sigma^2): log (1 - q + q e^((x - 1/2) / sigma^2))."""

    def at(self, x: npt.NDArray) -> npt.NDArray:
        q = self.sample_rate
        return np.logaddexp(_log(1 - q), math.log(q) + (x - 0.5) / self.noise_multiplier**2)

    def inverse(self, t: npt.NDArray) -> npt.NDArray:
        q = self.sample_rate
        with np.errstate(divide="ignore"):
            exponent = np.where(
                t < 1,
                np.log1p((np.expm1(t.clip(max=1)) / q).clip(min=-1)),
                t + np.log1p((q - 1) * np.exp(-t.clip(min=1))) - math.log(q),
            )
        return 0.5 + exponent * self.noise_multiplier**2


class AddedUnit(PrivacyLoss):
    """N(0, sigma^2) against M(1), mirrored so that it grows with x; never above -log(1 - q)."""

    @property
    def weight(self) -> float:
        return 0.0

    def at(self, x: npt.NDArray) -> npt.NDArray:
        return -self._removed.at(-x)

    def inverse(self, t: npt.NDArray) -> npt.NDArray:
        return -self._removed.inverse(-t)

    @property
    def _removed(self) -> RemovedUnit:
        return RemovedUnit(self.sample_rate, self.noise_multiplier)


class ReplacedRecord(PrivacyLoss):
    """M(1) against M(-1): log (1 + a e^(x / sigma^2)) / (1 + a e^(-x / sigma^2)).

    With a = q / (1 - q) e^(-1 / (2 sigma^2)).
    """

    @property
    def _log_a(self) -> float:
        q = self.sample_rate
        return math.log(q) - _log(1 - q) - 1 / (2 * self.noise_multiplier**2)

    def at(self, x: npt.NDArray) -> npt.NDArray:
        scaled = x / self.noise_multiplier**2
        if self.sample_rate == 1:
            return 2 * scaled
        return np.logaddexp(0, self._log_a + scaled) - np.logaddexp(0, self._log_a - scaled)

    def inverse(self, t: npt.NDArray) -> npt.NDArray:
        """sigma^2 (t/2 + asinh(sinh(t/2) / a)), without overflow."""
        half = np.abs(t) / 2
        with np.errstate(divide="ignore"):
            log_ratio = half + np.log(-np.expm1(-2 * half) / 2) - self._log_a
        arcsinh = np.where(
            log_ratio < 0,
            np.arcsinh(np.exp(log_ratio.clip(max=0))),
            log_ratio + np.log1p(np.sqrt(1 + np.exp(-2 * log_ratio.clip(min=0)))),
        )
        return np.sign(t) * (half + arcsinh) * self.noise_multiplier**2


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
