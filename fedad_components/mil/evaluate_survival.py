"""Survival: risk groups, runs of patients or of counts, and their curves. Imports numpy and scipy only; no FLARE."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedad_components.mil.bins import SurvivalError, checked
from fedad_components.mil.counts import Floats, Grid, Ints
from fedad_components.mil.evaluate import ALL_SITES, EvaluationError, Run
from fedad_components.mil.federated_metrics import RiskSetTable, RiskTimeHistogram
from fedad_components.mil.survival_metrics import (
    KaplanMeier,
    LogRank,
    PairCounts,
    kaplan_meier,
    log_rank,
    pair_counts,
)

Cuts = tuple[float, ...]
"""Between G risk groups, G - 1 of them, ascending; a risk above a cut is in the next group."""


def risk_cuts(training_risks: npt.ArrayLike, groups: int = 2) -> Cuts:
    """Cuts at quantiles of the training patients' predicted risks ``(n,)``; two groups: at the median.

    Cut on test patients, groups would be of one size whatever the risks say, and a log-rank test would look at its own
    data twice.

    Raises:
        SurvivalError: if there are fewer than two groups, no finite risks, or two cuts are the same.
    """
    risks = np.asarray(training_risks, dtype=np.float64)
    if groups < 2 or risks.ndim != 1 or not len(risks) or not np.isfinite(risks).all():
        raise SurvivalError(f"{groups} groups of risks {risks.shape}: expected 2 or more groups, and finite risks (n,)")
    return _ascending(np.quantile(risks, np.arange(1, groups) / groups))


def risk_cuts_of_counts(training: RiskTimeHistogram, groups: int = 2) -> Cuts:
    """The same from all sites' counts of training patients: the edges of risk cells that are nearest above.

    Raises:
        SurvivalError: if there are fewer than two groups, no patient, or two cuts are the same.
    """
    below, grid = np.cumsum(training.counts.sum(axis=(0, 2))), training.grids[0]
    if groups < 2 or not below[-1]:
        raise SurvivalError(f"{groups} groups of {below[-1]} patients: expected 2 or more groups, and patients")
    cells = np.searchsorted(below, below[-1] * np.arange(1, groups) / groups, side="left")
    return _ascending(grid.edges[cells + 1])


def risk_groups(risks: npt.ArrayLike, cuts: Cuts) -> npt.NDArray[np.intp]:
    """The group of each risk, ``(n,)``, from 0, the lowest."""
    return np.searchsorted(np.asarray(cuts), np.asarray(risks, dtype=np.float64), side="left")


def group_names(groups: int) -> tuple[str, ...]:
    """From the lowest risk to the highest."""
    if groups <= 3:
        return {2: ("low risk", "high risk"), 3: ("low risk", "medium risk", "high risk")}[groups]
    return tuple(f"risk group {number + 1} of {groups}" for number in range(groups))


class GroupCurves(NamedTuple):
    """Kaplan-Meier curves of risk groups."""

    curves: tuple[KaplanMeier | None, ...]
    """Of each group; None: it has no patient."""
    log_rank: LogRank | None
    """None: fewer than two groups have a patient at risk at an event."""
    binned: bool

    def at_risk(self, times: npt.ArrayLike) -> Ints:
        """Patients still seen at each time ``(m,)``, ``(G, m)``; of counts, those at the beginning of its cell."""
        # A curve from counts lies at the cells' upper edges, of which a time's own is the first above it.
        side = "right" if self.binned else "left"
        return np.stack(
            [
                np.append(curve.at_risk, 0)[np.searchsorted(curve.times, times, side=side)]  # type: ignore[call-overload]
                if curve is not None
                else np.zeros(np.shape(times), dtype=np.int64)
                for curve in self.curves
            ]
        )


@dataclass(frozen=True, eq=False)
class SurvivalRun(Run):
    """Test patients whose risk a model was to tell."""

    @abstractmethod
    def groups(self) -> GroupCurves:
        """Curves of the risk groups."""

    @property
    @abstractmethod
    def rule(self) -> str:
        """How the groups were cut, in words."""


@dataclass(frozen=True, eq=False)
class Survived(SurvivalRun):
    """Patients with their risks.

    Attributes:
        times, events, risks: ``(n,)``, as :mod:`~fedad_components.mil.survival_metrics` has them; n > 0.
        cuts: of the risk groups, from this method's and seed's **training** patients: :func:`risk_cuts`.

    Raises:
        EvaluationError: if they are not of that form.
    """

    times: Floats
    events: npt.NDArray[np.bool_]
    risks: Floats
    cuts: Cuts

    def __post_init__(self) -> None:
        try:
            checked(self.times, self.events)
            if np.shape(self.risks) != np.shape(self.times) or not np.isfinite(self.risks).all():
                raise SurvivalError(f"risks {np.shape(self.risks)}: expected {len(self.times)} finite numbers")
            if not self.cuts:
                raise SurvivalError("no cut between risk groups: expected one or more, of the training risks")
            _ascending(np.asarray(self.cuts))
        except SurvivalError as error:
            raise EvaluationError(f"{self.where}: {error}") from None

    @property
    def patients(self) -> int:
        return len(self.times)

    @property
    def rule(self) -> str:
        return f"cut at a predicted risk of {', '.join(f'{cut:.3f}' for cut in self.cuts)}, fixed on training patients"

    def scores(self) -> dict[str, float | None]:
        return {"c-index": pair_counts(self.times, self.events, self.risks).c_index}

    def groups(self) -> GroupCurves:
        groups = risk_groups(self.risks, self.cuts)
        curves = tuple(
            kaplan_meier(self.times[groups == group], self.events[groups == group]) if (groups == group).any() else None
            for group in range(len(self.cuts) + 1)
        )
        return GroupCurves(curves, _tested(lambda: log_rank(self.times, self.events, groups)), binned=False)

    def joined(self, other: Survived) -> Survived:
        if self.cuts != other.cuts:
            raise ValueError(f"risk groups cut at {self.cuts} and {other.cuts}: expected the same at every site")
        return replace(
            self,
            site=ALL_SITES,
            times=np.concatenate([self.times, other.times]),
            events=np.concatenate([self.events, other.events]),
            risks=np.concatenate([self.risks, other.risks]),
        )


@dataclass(frozen=True, eq=False)
class SurvivalCounts(SurvivalRun):
    """What sites told of their patients.

    Attributes:
        pairs: of risk and time; or of comparable patients within each site only, where small counts may not be told.
        table: who leaves, by risk group; none where a site may not tell it.
        cut: how the groups were cut, in words: the counts do not say it.
    """

    pairs: RiskTimeHistogram | PairCounts
    table: RiskSetTable
    cut: str

    binned: ClassVar[bool] = True

    @classmethod
    def of(cls, run: Survived, risk_grid: Grid, time_grid: Grid, least: int) -> SurvivalCounts:
        """What a site may tell of its patients.

        Pairs, where patients and events are ``least`` or more. Who leaves, where in each risk group no event was seen
        or ``least`` were, and so of the censored: a table without the few of a kind would be a curve of others.
        """
        groups, number = risk_groups(run.risks, run.cuts), len(run.cuts) + 1
        table = RiskSetTable.of(run.times, run.events, groups, number, time_grid)
        sums = table.counts.sum(axis=2)
        if ((sums > 0) & (sums < least)).any():
            table = RiskSetTable(np.zeros_like(table.counts), table.grids)
        elif least > 1:
            table = RiskSetTable.of(run.times, run.events, groups, number, time_grid, least)
        pairs: RiskTimeHistogram | PairCounts = (
            pair_counts(run.times, run.events, run.risks, least)
            if least > 1
            else RiskTimeHistogram.of(run.times, run.events, run.risks, risk_grid, time_grid)
        )
        return cls(run.method, run.site, run.seed, pairs, table, run.rule)

    @property
    def rule(self) -> str:
        return self.cut

    @property
    def patients(self) -> int:
        return int(self.table.counts.sum())

    def scores(self) -> dict[str, float | None]:
        name = "c-index" if isinstance(self.pairs, RiskTimeHistogram) else "c-index within sites"
        return {name: self.pairs.c_index}

    def groups(self) -> GroupCurves:
        told = self.table.counts.sum(axis=(1, 2)) > 0
        curves = tuple(self.table.kaplan_meier(group) if known else None for group, known in enumerate(told))
        return GroupCurves(curves, _tested(self.table.log_rank), binned=True)

    def joined(self, other: SurvivalCounts) -> SurvivalCounts:
        if self.cut != other.cut:
            raise ValueError(f"risk groups {self.cut!r} and {other.cut!r}: expected the same at every site")
        pairs = self.pairs + other.pairs  # type: ignore[operator]  # of two kinds, it says so
        return replace(self, site=ALL_SITES, pairs=pairs, table=self.table + other.table)


def _tested(test: Callable[[], LogRank]) -> LogRank | None:
    """None where there are not two groups to compare."""
    try:
        return test()
    except SurvivalError:
        return None


def _ascending(cuts: npt.NDArray[np.float64]) -> Cuts:
    if (np.diff(cuts) <= 0).any() or not np.isfinite(cuts).all():
        raise SurvivalError(
            f"cuts between risk groups at {', '.join(f'{cut:g}' for cut in cuts)}: expected each above the one before: "
            f"take fewer groups"
        )
    return tuple(cuts.tolist())
