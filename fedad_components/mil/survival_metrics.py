"""How well risks order survival, on data at one place. Imports numpy and scipy only.

Throughout, ``times`` and ``events`` are ``(n,)``: the time of the event (1, True) or the last time seen without one (0,
censored); ``risks`` ``(n,)`` are higher where death is expected earlier. Among equal times, events come before
censorings: who is censored at t was still at risk at t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedad_components.mil.bins import SurvivalError, checked
from fedad_components.mil.counts import Counts, Floats, Ints


class PairCounts(Counts):
    """Comparable pairs ``(3,)``: concordant, discordant, and tied in risk.

    The sum over sites holds the pairs within a site only: its c-index is the site-stratified one.
    """

    leading: ClassVar[tuple[int | None, ...]] = (3,)

    @classmethod
    def of(cls, concordant: int, discordant: int, tied: int) -> PairCounts:
        """From its three numbers."""
        return cls(np.array([concordant, discordant, tied], dtype=np.int64))

    @property
    def c_index(self) -> float | None:
        """(concordant + tied / 2) / all (Harrell et al. 1982); None without a pair."""
        concordant, discordant, tied = self.counts.tolist()
        pairs = concordant + discordant + tied
        return (concordant + tied / 2) / pairs if pairs else None


def pair_counts(times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike, least: int = 1) -> PairCounts:
    """The pairs in which the first to die is known: an event at t, and a longer time, or one censored at t.

    Args:
        times, events, risks: as above.
        least: a site with fewer patients or fewer events than this tells no pair.

    Raises:
        SurvivalError: for bad times or events, or risks that are not finite or not as many.
    """
    times, events, risks = _checked_with_risks(times, events, risks)
    concordant = discordant = tied = 0
    if min(len(times), int(events.sum())) < least:
        return PairCounts.of(0, 0, 0)
    for row in np.flatnonzero(events):
        later = (times > times[row]) | ((times == times[row]) & ~events)
        below, equal = risks[later] < risks[row], risks[later] == risks[row]
        concordant += int(below.sum())
        tied += int(equal.sum())
        discordant += int((~below & ~equal).sum())
    return PairCounts.of(concordant, discordant, tied)


def c_index(times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike) -> float:
    """Harrell's c-index.

    Raises:
        SurvivalError: as :func:`pair_counts`, or if no two patients can be compared.
    """
    value = pair_counts(times, events, risks).c_index
    if value is None:
        raise SurvivalError("no pair of patients can be compared: expected an event, and a patient who lived longer")
    return value


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """Survival after each time, ``(T,)`` all: ``survival`` includes the ``events`` at that time, as the last point of
    the step; ``at_risk`` counts who was seen until it or longer."""

    times: Floats
    survival: Floats
    at_risk: Ints
    events: Ints

    def at(self, times: npt.ArrayLike) -> Floats:
        """Survival at any times, ``(m,)``: 1 before the first, and after the last what it was there."""
        return np.concatenate([[1.0], self.survival])[np.searchsorted(self.times, times, side="right")]


class LogRank(NamedTuple):
    """Chi-squared with its degrees of freedom (groups with patients, less one) and p."""

    chi2: float
    p: float
    degrees: int


def kaplan_meier(times: npt.ArrayLike, events: npt.ArrayLike) -> KaplanMeier:
    """The product-limit estimate (Kaplan & Meier 1958) at every time that occurs, censorings too.

    Raises:
        SurvivalError: for bad times or events.
    """
    times, events = checked(times, events)
    distinct, died, at_risk = _table(times, events, np.zeros(len(times), dtype=np.intp))
    return KaplanMeier(distinct, survival_of(died[0], at_risk[0]), at_risk[0], died[0])


def log_rank(times: npt.ArrayLike, events: npt.ArrayLike, groups: npt.ArrayLike) -> LogRank:
    """Whether groups ``(n,)``, numbered from 0, differ in survival (Mantel 1966; Peto & Peto 1972).

    Raises:
        SurvivalError: for bad times, events or groups, or if fewer than two groups have patients at an event.
    """
    times, events = checked(times, events)
    _, died, at_risk = _table(times, events, group_numbers(groups, len(times)))
    return log_rank_of(died, at_risk)


def survival_of(died: Ints, at_risk: Ints) -> Floats:
    """Product over times u <= t of 1 - d / n, ``(T,)``."""
    return np.cumprod(1 - died / np.maximum(at_risk, 1), dtype=np.float64)


def log_rank_of(died: Ints, at_risk: Ints) -> LogRank:
    """From events and patients at risk, ``(G, T)`` both.

    Raises:
        SurvivalError: if fewer than two groups have a patient at risk at an event.
    """
    died, at_risk = died[:, died.sum(axis=0) > 0], at_risk[:, died.sum(axis=0) > 0]
    present = at_risk.any(axis=1)
    died, at_risk = died[present].astype(np.float64), at_risk[present].astype(np.float64)
    if len(died) < 2:
        raise SurvivalError(
            f"{len(died)} groups have patients at risk when an event is seen: expected two or more to compare"
        )
    d, n = died.sum(axis=0), at_risk.sum(axis=0)
    share = at_risk / n
    excess = (died - d * share).sum(axis=1)
    factor = d * (n - d) / np.maximum(n - 1, 1)
    covariance = np.diag((factor * share).sum(axis=1)) - (factor * share) @ share.T
    # The groups' excesses sum to 0: one of them is left out, since the whole matrix is singular but for rounding.
    degrees = len(died) - 1
    excess, covariance = excess[:degrees], covariance[:degrees, :degrees]
    chi2 = float(excess @ np.linalg.pinv(covariance, hermitian=True) @ excess)
    return LogRank(chi2, float(stats.chi2.sf(chi2, degrees)), degrees)


class DynamicAUC(NamedTuple):
    """Cumulative/dynamic AUC at each time asked for, and its mean weighted by the survival curve's falls."""

    auc: Floats
    mean: float


def cumulative_dynamic_auc(
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    risks: npt.ArrayLike,
    at: npt.ArrayLike,
    censoring: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> DynamicAUC:
    """AUC(t) of who has died by t against who lives beyond it (Uno et al. 2007; Hung & Chiang 2010).

    A death at u weighs 1 / G(u), G being the Kaplan-Meier curve of censoring. The mean is Lambert & Chevret's (2016),
    as scikit-survival has it.

    Args:
        times, events, risks: of the patients that are tested.
        at: times ``(m,)``, ascending.
        censoring: times and events that G is estimated from; none: those tested.

    Raises:
        SurvivalError: for bad times, events or risks; for times ``at`` that are not ascending, or without a death
            before or a patient beyond them; if G is 0 at a death.
    """
    times, events, risks = _checked_with_risks(times, events, risks)
    at = np.asarray(at, dtype=np.float64)
    if at.ndim != 1 or not at.size or (np.diff(at) <= 0).any():
        raise SurvivalError("times of the AUC: expected one or more, ascending")
    seen_times, seen_events = (times, events) if censoring is None else checked(*censoring)
    weights = np.zeros(len(times))
    free = _censoring_curve(seen_times, seen_events).at(times[events])
    if (free <= 0).any():
        raise SurvivalError(
            "a death lies where no patient is left uncensored, so that it has no weight: shorten the follow-up of the "
            "patients tested to that of those the censoring is estimated from"
        )
    weights[events] = 1 / free
    areas = np.array([_dynamic_auc(times, events, risks, weights, t) for t in at])
    falls = -np.diff(kaplan_meier(times, events).at(at), prepend=1.0)
    return DynamicAUC(areas, float((areas * falls).sum() / falls.sum()))


def _dynamic_auc(times: Floats, events: npt.NDArray[np.bool_], risks: Floats, weights: Floats, t: float) -> float:
    cases, controls = (times <= t) & events, np.sort(risks[times > t])
    if not cases.any() or not len(controls):
        raise SurvivalError(
            f"time {t:g} of the AUC: expected a death by then and a patient who lived longer; choose a time in between"
        )
    below = np.searchsorted(controls, risks[cases], side="left")
    not_above = np.searchsorted(controls, risks[cases], side="right")
    return float((weights[cases] * (below + not_above) / 2).sum() / (weights[cases].sum() * len(controls)))


def _censoring_curve(times: Floats, events: npt.NDArray[np.bool_]) -> KaplanMeier:
    """Kaplan-Meier of being censored, in which the deaths of a time have left before its censorings."""
    distinct, died, at_risk = _table(times, events, np.zeros(len(times), dtype=np.intp))
    left = at_risk[0] - died[0]
    censored = left - np.append(at_risk[0][1:], 0)
    return KaplanMeier(distinct, survival_of(censored, left), left, censored)


def _table(times: Floats, events: npt.NDArray[np.bool_], groups: npt.NDArray[np.intp]) -> tuple[Floats, Ints, Ints]:
    """Distinct times ``(T,)``, and for each group the events at and the patients at risk just before them."""
    distinct, place = np.unique(times, return_inverse=True)
    gone = np.zeros((2, int(groups.max()) + 1, len(distinct)), dtype=np.int64)
    np.add.at(gone, (events.astype(np.intp), groups, place), 1)
    return distinct, gone[1], at_risk_of(gone.sum(axis=0))


def at_risk_of(gone: Ints) -> Ints:
    """Who is still there just before each time, from how many leave at it, ``(..., T)`` both."""
    return np.flip(np.cumsum(np.flip(gone, axis=-1), axis=-1), axis=-1)


def group_numbers(groups: npt.ArrayLike, count: int) -> npt.NDArray[np.intp]:
    """Groups as numbers from 0, ``(count,)``.

    Raises:
        SurvivalError: if they are not.
    """
    groups = np.asarray(groups)
    if groups.shape != (count,) or not np.isin(groups, np.arange(count)).all():
        raise SurvivalError(f"groups {groups.shape}: expected {count} numbers from 0, one a patient")
    return groups.astype(np.intp)


def _checked_with_risks(
    times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike
) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    times, events = checked(times, events)
    risks = np.asarray(risks, dtype=np.float64)
    if risks.shape != times.shape or not np.isfinite(risks).all():
        raise SurvivalError(f"risks {risks.shape}: expected {len(times)} finite numbers, one a patient")
    return times, events, risks
