"""Were the units of each step drawn independently? What amplification by sampling rests on. Imports numpy and scipy.

Shuffled or fixed batches differ from independent draws in what they never do: a shuffled batch always has the same
size, and a shuffled unit comes exactly once an epoch. A bound read from canaries does not show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, gamma

SIGNIFICANCE = 1e-6
"""Of each of the three tests."""


@dataclass(frozen=True)
class Sampling:
    """How the units of an audit's steps were drawn, against independent draws at rate q."""

    sample_rate: float
    steps: int
    units: int
    rate_p_value: float
    """Of the share of units drawn over all steps."""
    step_p_value: float
    """Of the spread of the steps' sizes."""
    unit_p_value: float
    """Of the spread, over units, of the number of steps that drew them."""

    @property
    def independent(self) -> bool:
        """Whether independent draws could have looked like this."""
        return min(self.rate_p_value, self.step_p_value, self.unit_p_value) > SIGNIFICANCE


def check_sampling(drawn: np.ndarray, sample_rate: float) -> Sampling:
    """Compare draws ``(steps, units)``, bool, with independent ones at ``sample_rate``, which is below 1.

    Raises:
        ValueError: if the rate is not within (0, 1) or there is no draw.
    """
    if not 0 < sample_rate < 1 or drawn.size == 0:
        raise ValueError(f"expected draws at a rate within (0, 1), got {drawn.shape} draws at rate {sample_rate}")
    steps, units = drawn.shape
    total = int(drawn.sum())
    return Sampling(
        sample_rate=sample_rate,
        steps=steps,
        units=units,
        rate_p_value=_two_sided(
            binom.cdf(total, drawn.size, sample_rate), binom.sf(total - 1, drawn.size, sample_rate)
        ),
        step_p_value=_spread_p_value(drawn.sum(axis=1), units, sample_rate),
        unit_p_value=_spread_p_value(drawn.sum(axis=0), steps, sample_rate),
    )


def _spread_p_value(counts: np.ndarray, trials: int, rate: float) -> float:
    """Two-sided p-value of the squared deviations of Binomial(trials, rate) counts ``(n,)``.

    A gamma with the sum's own mean and variance; a chi-squared, its limit, ignores the counts' kurtosis and is wrong
    where few units are expected in a step.
    """
    variance = trials * rate * (1 - rate)
    spread = float(np.sum((counts - trials * rate) ** 2)) / variance
    half_variance = 1 + (1 / variance - 6 / trials) / 2
    shape = len(counts) / (2 * half_variance)
    return _two_sided(
        gamma.cdf(spread, shape, scale=2 * half_variance), gamma.sf(spread, shape, scale=2 * half_variance)
    )


def _two_sided(lower: float, upper: float) -> float:
    return float(min(1.0, 2 * min(lower, upper)))
