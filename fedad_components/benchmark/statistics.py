"""How far methods differ, over seeds. Needs scipy; imports no FLARE.

Methods are compared with one baseline, seed by seed, within a family: the rows of one target and one protocol. With n
common seeds and differences d (method minus baseline):

- t-test of paired samples, n - 1 degrees of freedom, and the 95 % interval of the mean difference that belongs to it;
- Wilcoxon's signed-rank test, two-sided, exact up to 12 pairs, ties included. No result of n pairs without ties has a
  p below 2 / 2^n, so that with fewer than 6 seeds it cannot reach .05, however clear the difference is;
- Cohen's d_z = mean(d) / sd(d) (Cohen 1988, 2.3.5) and Hedges' g_z = J d_z, without the bias of few pairs: with
  m = n - 1, J = Gamma(m / 2) / (sqrt(m / 2) Gamma((m - 1) / 2)) (Hedges 1981), exact;
- Holm's step-down correction (Holm 1979) of each test's p over the methods of the family.

The seeds differ in initialisation, order and views, not in images: p is about training again, not about other patients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import gammaln

from fedad_components.benchmark.results import METRICS, Row, check_unique

LEVEL = 0.05
EXACT_UP_TO = 12
"""Pairs up to which all 2^n signs are tried."""
_SAME = 1e-12
"""Differences closer than this are the same: scores are shares of counts, printed as floats."""


class StatisticsError(ValueError):
    """Rows that cannot be compared; the message says what was expected."""


@dataclass(frozen=True)
class Test:
    """One method against the baseline on their n common seeds; figures in units of the score, methods minus baseline.

    What n does not suffice for is None, and ``notes`` says why.
    """

    __test__ = False  # no test of pytest's

    method: str
    n: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    t_p: float | None = None
    t_p_holm: float | None = None
    wilcoxon_p: float | None = None
    wilcoxon_p_holm: float | None = None
    d_z: float | None = None
    g_z: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """All methods but the baseline on one target by one protocol, in the order in which the rows name them."""

    target: str
    protocol: str
    transductive: bool
    metric: str
    baseline: str
    tests: tuple[Test, ...]


def compare(rows: Sequence[Row], baseline: str, metric: str) -> list[Family]:
    """Every method against the baseline, for each target and protocol, in the order in which the rows name them.

    A seed whose row lacks the score counts as missing; a method without any is left out.

    Raises:
        StatisticsError: for a metric that no row has or a baseline that no row is of.
        ResultsError: if there are two rows of one method, seed, target and protocol.
    """
    check_unique(list(rows))
    if metric not in METRICS:
        raise StatisticsError(f"metric {metric!r}: expected one of {', '.join(METRICS)}")
    if not any(metric in row.metrics for row in rows):
        raise StatisticsError(f"metric {metric!r}: no row has it")
    if baseline not in (methods := dict.fromkeys(row.method for row in rows)):
        raise StatisticsError(f"baseline {baseline!r}: expected one of {', '.join(methods)}")
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if metric in row.metrics:
            families.setdefault((row.target, row.protocol), []).append(row)
    return [_family(members, baseline, metric) for members in families.values()]


def _family(rows: Sequence[Row], baseline: str, metric: str) -> Family:
    scores: dict[str, dict[int, float]] = {}
    for row in rows:
        scores.setdefault(row.method, {})[row.seed] = row.metrics[metric]
    reference = scores.get(baseline, {})
    tests = [paired(name, of_seed, reference) for name, of_seed in scores.items() if name != baseline]
    t_holm = holm({test.method: test.t_p for test in tests if test.t_p is not None})
    wilcoxon_holm = holm({test.method: test.wilcoxon_p for test in tests if test.wilcoxon_p is not None})
    return Family(
        target=rows[0].target,
        protocol=rows[0].protocol,
        transductive=any(row.transductive for row in rows),
        metric=metric,
        baseline=baseline,
        tests=tuple(
            replace(test, t_p_holm=t_holm.get(test.method), wilcoxon_p_holm=wilcoxon_holm.get(test.method))
            for test in tests
        ),
    )


def paired(method: str, scores: Mapping[int, float], reference: Mapping[int, float]) -> Test:
    """One method against the baseline, before Holm's correction; both as seed -> score."""
    common = sorted(set(scores) & set(reference))
    n, notes = len(common), []
    if n < max(len(scores), len(reference)):
        notes.append(f"{len(scores)} and {len(reference)} seeds, paired on the {n} that both have")
    if n < 2:
        return Test(method, n, notes=(*notes, f"no test: {n} pair(s) of seeds, and two are the least"))
    d = np.array([scores[seed] - reference[seed] for seed in common])
    mean, sd = float(d.mean()), float(d.std(ddof=1))
    if np.ptp(d) < _SAME:
        return Test(
            method,
            n,
            difference=mean,
            notes=(*notes, "no test: the difference is the same for every seed, so it has no spread"),
        )
    half = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * sd / math.sqrt(n)
    if 2 / 2**n > LEVEL:
        notes.append(f"Wilcoxon cannot reach {LEVEL:g} with fewer than {_least_pairs()} pairs: least p {2 / 2**n:.3g}")
    return Test(
        method,
        n,
        difference=mean,
        low=mean - half,
        high=mean + half,
        t_p=float(stats.ttest_1samp(d, 0.0).pvalue),
        wilcoxon_p=wilcoxon(d),
        d_z=mean / sd,
        g_z=hedges(n) * mean / sd if n > 2 else None,
        notes=tuple(notes),
    )


def wilcoxon(d: npt.NDArray[np.float64]) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test of differences ``(n,)``; zeros are left out, None if all are zero.

    scipy's own exact method leaves ties aside; all signs of the ranks are tried here instead, as long as they are few.
    """
    d = np.round(d, 12)  # differences that are equal on paper tie
    d = d[d != 0]
    if len(d) < 2:
        return 1.0 if len(d) else None  # of one difference, both signs are as extreme; scipy wants two or more
    if len(d) > EXACT_UP_TO:
        return float(stats.wilcoxon(d).pvalue)
    ranks = np.sign(d) * stats.rankdata(np.abs(d))
    test = stats.permutation_test(
        (ranks,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    return float(test.pvalue)


def hedges(n: int) -> float:
    """Hedges' J for n pairs, n > 2: exact, below 1."""
    m = n - 1
    return math.exp(gammaln(m / 2) - gammaln((m - 1) / 2)) / math.sqrt(m / 2)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p values: in ascending order max over j <= i of (m - j + 1) p_(j), at most 1."""
    adjusted, running = {}, 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        running = max(running, min(1.0, (len(p) - rank) * p[name]))
        adjusted[name] = running
    return adjusted


def _least_pairs() -> int:
    """Pairs from which Wilcoxon's smallest p, 2 / 2^n, reaches ``LEVEL``."""
    return math.ceil(math.log2(2 / LEVEL))
