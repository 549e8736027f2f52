"""One-run audit: what correct guesses about canaries prove about epsilon. Imports numpy and scipy only.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv:2305.08846). Each of m
canaries is included or left out by a fair secret coin. Whoever sees the output guesses r of the coins and abstains from
the others. If the algorithm is (epsilon, delta)-DP with respect to adding or removing one canary, v or more right
guesses are unlikely; where they happen all the same, that epsilon is refuted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

SIGNIFICANCE = 0.05
"""Probability with which the audit may report a violation where there is none."""
GUESSED_SHARES = (1 / 2, 1 / 5, 1 / 10)
"""Shares of the canaries that are guessed, fixed before any score is seen. Many guesses expose a mechanism that leaks
all, few one that leaks a little; each of them is one more test, and the significance is divided by their number."""
WIDEST = 60.0
"""Where the search for a bound starts: exp(-60) is below what a float64 can tell from 0 beside 1."""


@dataclass(frozen=True)
class Reading:
    """What one score of the canaries proves."""

    epsilon: float
    """Lower bound, at the confidence of the whole audit."""
    guesses: int
    correct: int


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Largest probability of at least ``correct`` right guesses under (epsilon, delta)-DP: Theorem 5.2 of the paper.

    With W ~ Binomial(r, e^epsilon / (1 + e^epsilon)) it is P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i.

    Raises:
        ValueError: unless 0 <= correct <= guesses <= canaries, epsilon >= 0 and 0 <= delta <= 1.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"expected 0 <= correct <= guesses <= canaries, got correct {correct}, guesses {guesses}, "
            f"canaries {canaries}"
        )
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"expected epsilon >= 0 and 0 <= delta <= 1, got epsilon {epsilon} and delta {delta}")
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, accuracy))
    i = np.arange(1, correct + 1)
    below = np.cumsum(binom.pmf(correct - i, guesses, accuracy))
    return min(1.0, tail + 2 * canaries * delta * float(np.max(below / i, initial=0.0)))


def lower_bound(canaries: int, guesses: int, correct: int, delta: float, significance: float = SIGNIFICANCE) -> float:
    """Largest epsilon that the guesses refute at ``significance``; 0 if they refute none. Bisection, to 1e-6.

    Raises:
        ValueError: as :func:`p_value`.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) <= significance

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, WIDEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guess_counts(canaries: int) -> list[int]:
    """Numbers of guesses that the audit tries, each even: half of them say "included", half "left out"."""
    return sorted({2 * int(canaries * share / 2) for share in GUESSED_SHARES})


def count_correct(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """Right guesses where the ``guesses / 2`` highest scores are called included, as many of the lowest left out.

    Args:
        scores: ``(m,)``, higher where the canary more probably was included.
        included: ``(m,)`` bool, the coins.
        guesses: even.
    """
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    return int(np.sum(included[order[len(order) - half :]]) + np.sum(~included[order[:half]]))


def read(scores: np.ndarray, included: np.ndarray, delta: float, surfaces: int = 1) -> Reading:
    """The best of the bounds over :func:`guess_counts`, each at its share of the significance.

    ``surfaces`` is how many scores the audit reads in all; each takes its share too. Shapes as in
    :func:`count_correct`.
    """
    m, counts = len(scores), guess_counts(len(scores))
    significance = SIGNIFICANCE / (len(counts) * surfaces)
    readings = []
    for guesses in counts:
        correct = count_correct(scores, included, guesses)
        readings.append(Reading(lower_bound(m, guesses, correct, delta, significance), guesses, correct))
    return max(readings, key=lambda reading: reading.epsilon)


def ceiling(canaries: int, delta: float, surfaces: int = 1) -> float:
    """What :func:`read` returns at most: every guess right. No claim above it can be contradicted."""
    counts = guess_counts(canaries)
    significance = SIGNIFICANCE / (len(counts) * surfaces)
    return max(lower_bound(canaries, guesses, guesses, delta, significance) for guesses in counts)
