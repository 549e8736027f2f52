"""Metrics of all sites' patients from counts that each site gives. Imports numpy and scipy only.

Every class adds up with ``+`` and travels as ``as_dict()``. A count is exact; what a grid loses is the order of
patients within one of its cells. AUC and c-index come with how much that can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedad_components.mil.bins import SurvivalError, checked
from fedad_components.mil.counts import Counts, CountsError, Grid, Ints, joined
from fedad_components.mil.survival_metrics import (
    KaplanMeier,
    LogRank,
    PairCounts,
    at_risk_of,
    group_numbers,
    log_rank_of,
    survival_of,
)

SCORES = Grid(0.0, 1.0, 10)
"""Probabilities in 1,024 cells."""


class ScoreHistogram(Counts):
    """Scores of the bags that are not, and that are, of a class: ``(2, cells)``."""

    leading: ClassVar[tuple[int | None, ...]] = (2,)

    @classmethod
    def of(cls, scores: npt.ArrayLike, positive: npt.ArrayLike, grid: Grid = SCORES, least: int = 1) -> ScoreHistogram:
        """From scores and whether each bag is of the class, ``(n,)`` both; no cell holds 1 to ``least`` - 1 bags.

        Raises:
            CountsError: if there are not as many of each, or a score is below the grid or not a number.
        """
        cells, positive = grid.cell(scores, "scores"), np.asarray(positive).astype(np.intp)
        if cells.shape != positive.shape or not np.isin(positive, (0, 1)).all():
            raise CountsError(f"{cells.shape} scores, {positive.shape} labels: expected as many of each, labels 0 or 1")
        counts = np.zeros((2, grid.cells), dtype=np.int64)
        np.add.at(counts, (positive, cells), 1)
        return cls(joined(counts, least), (grid,))

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve, pairs within a cell counting half; None without both kinds.

        It is within :attr:`tolerance` of the scores' own: about 1 / (2 cells) for scores that are spread evenly.
        """
        negative, positive = self.counts.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        return float((positive * (np.cumsum(negative) - negative / 2)).sum() / pairs) if pairs else None

    @property
    def tolerance(self) -> float | None:
        """Half the share of pairs whose order is not known, as both lie in one cell (of what was told, not joined)."""
        negative, positive = self.counts.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        return float((positive * negative).sum() / pairs / 2) if pairs else None


def class_histograms(
    true: npt.ArrayLike, probability: npt.NDArray, grid: Grid = SCORES, least: int = 1
) -> list[ScoreHistogram]:
    """Each class against the rest, from true classes ``(n,)`` and probabilities ``(n, K)``: K histograms."""
    return [
        ScoreHistogram.of(column, np.asarray(true) == number, grid, least)
        for number, column in enumerate(probability.T)
    ]


def score_pairs(scores: npt.ArrayLike, positive: npt.ArrayLike, least: int = 1) -> PairCounts:
    """Pairs of a bag of a class and one that is not of it, ``(n,)`` both: concordant where the former scores higher.

    Their c-index is the AUC (Hanley & McNeil 1982), exact, over pairs within a site. With fewer than ``least`` bags of
    either kind, no pair is told.
    """
    scores, positive = np.asarray(scores, dtype=np.float64), np.asarray(positive).astype(bool)
    of_class, others = scores[positive], np.sort(scores[~positive])
    if min(len(of_class), len(others)) < least:
        return PairCounts.of(0, 0, 0)
    below = int(np.searchsorted(others, of_class, side="left").sum())
    not_above = int(np.searchsorted(others, of_class, side="right").sum())
    return PairCounts.of(below, len(of_class) * len(others) - not_above, not_above - below)


def macro_auc(histograms: Sequence[ScoreHistogram]) -> float | None:
    """Mean AUC of the classes against the rest; None where a class has none."""
    areas = [area for histogram in histograms if (area := histogram.auc) is not None]
    return sum(areas) / len(areas) if areas and len(areas) == len(histograms) else None


class Confusion(Counts):
    """Bags by true class (rows) and predicted one (columns), ``(K, K)``."""

    leading: ClassVar[tuple[int | None, ...]] = (None, None)

    @classmethod
    def of(cls, true: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> Confusion:
        """From classes numbered from 0, ``(n,)`` both.

        Raises:
            CountsError: if there are not as many of each, or one is not a class.
        """
        true, predicted = np.asarray(true), np.asarray(predicted)
        known = np.isin(true, range(classes)).all() and np.isin(predicted, range(classes)).all()
        if true.shape != predicted.shape or not known:
            raise CountsError(f"expected as many true as predicted classes, numbered 0 to {classes - 1}")
        counts = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(counts, (true.astype(np.intp), predicted.astype(np.intp)), 1)
        return cls(counts)

    @property
    def error(self) -> float | None:
        """Share of bags called wrongly; None without a bag."""
        return float(1 - np.trace(self.counts) / self.counts.sum()) if self.counts.any() else None

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean recall over the classes that occur; None without a bag."""
        of_class = self.counts.sum(axis=1)
        occurs = of_class > 0
        return float((np.diag(self.counts)[occurs] / of_class[occurs]).mean()) if occurs.any() else None

    @property
    def kappa(self) -> float | None:
        """(p_o - p_e) / (1 - p_e) (Cohen 1960); None where chance alone agrees always."""
        n = self.counts.sum()
        by_chance = int(self.counts.sum(axis=1) @ self.counts.sum(axis=0))
        return float((n * np.trace(self.counts) - by_chance) / (n * n - by_chance)) if n * n > by_chance else None


class ClassTables(NamedTuple):
    """What a site tells of its patients' classes: all tables are of the same patients."""

    confusion: Confusion
    histograms: tuple[ScoreHistogram, ...]
    """Of each class."""
    pairs: tuple[PairCounts, ...]
    """Of each class."""

    @classmethod
    def of(cls, true: npt.ArrayLike, probability: npt.NDArray, grid: Grid = SCORES, least: int = 1) -> ClassTables:
        """From true classes ``(n,)`` and probabilities ``(n, K)``.

        Patients of a class with fewer than ``least`` are in no table, of other classes neither: as the rest of one of
        those, they would follow by subtraction.
        """
        true, classes = np.asarray(true, dtype=np.int64), probability.shape[1]
        told = np.bincount(true, minlength=classes)[true] >= least
        true, probability = true[told], probability[told]
        return cls(
            Confusion.of(true, probability.argmax(axis=1), classes),
            tuple(class_histograms(true, probability, grid, least)),
            tuple(score_pairs(column, true == number, least) for number, column in enumerate(probability.T)),
        )


class RiskSetTable(Counts):
    """Who leaves, by group, censored or dead, and cell of time: ``(G, 2, cells)``. Who is at risk follows from it.

    A least count costs accuracy, the more the fewer the deaths at a site: at five, curves of the 527 graded patients of
    TCGA-KIRC at three sites are up to .15 off where a group has 30 to 60 deaths a site.
    """

    leading: ClassVar[tuple[int | None, ...]] = (None, 2)

    @classmethod
    def of(
        cls, times: npt.ArrayLike, events: npt.ArrayLike, groups: npt.ArrayLike, number: int, grid: Grid, least: int = 1
    ) -> RiskSetTable:
        """From times, events and groups (0 to ``number`` - 1), ``(n,)`` each; no cell holds 1 to ``least`` - 1.

        Times at or beyond the grid's end are in its last cell, deaths there before censorings.

        Raises:
            SurvivalError: for bad times, events or groups.
        """
        times, events = checked(times, events)
        groups = group_numbers(groups, len(times))
        if groups.max() >= number:
            raise SurvivalError(f"group {groups.max()}: expected 0 to {number - 1}")
        counts = np.zeros((number, 2, grid.cells), dtype=np.int64)
        np.add.at(counts, (groups, events.astype(np.intp), grid.cell(times, "times")), 1)
        return cls(joined(counts, least), (grid,))

    @property
    def at_risk(self) -> Ints:
        """``(G, cells)``: who is there as a cell begins."""
        return at_risk_of(self.counts.sum(axis=1))

    def kaplan_meier(self, group: int) -> KaplanMeier:
        """The group's curve at the upper edges of the cells, at risk at their lower ones; deaths before censorings.

        Exact if no cell holds two distinct times. Else it is the highest that these counts allow, as a cell's
        censored are taken to be there until its end.
        """
        died, at_risk = self.counts[group, 1], self.at_risk[group]
        (grid,) = self.grids
        return KaplanMeier(grid.edges[1:], survival_of(died, at_risk), at_risk, died)

    def log_rank(self) -> LogRank:
        """Over all groups; exact if no cell holds two distinct times.

        Raises:
            SurvivalError: if fewer than two groups have a patient at risk at an event.
        """
        return log_rank_of(self.counts[:, 1], self.at_risk)


class RiskTimeHistogram(Counts):
    """Patients by censored or dead, cell of risk and cell of time: ``(2, risk cells, time cells)``.

    For the c-index over pairs from different sites too. Predicted risks of R bins lie in [-R, 0], a public grid. Most
    cells hold one patient, and it has no least count: with cells joined until each held five, the c-index of grade in
    TCGA-KIRC at HistoFL's three sites (.674) came out anywhere from .31 to .75. A site that may not tell small counts
    gives its :class:`~fedad_components.mil.survival_metrics.PairCounts`.
    """

    leading: ClassVar[tuple[int | None, ...]] = (2,)

    @classmethod
    def of(
        cls,
        times: npt.ArrayLike,
        events: npt.ArrayLike,
        risks: npt.ArrayLike,
        risk_grid: Grid,
        time_grid: Grid,
    ) -> RiskTimeHistogram:
        """From times, events and risks, ``(n,)`` each.

        Raises:
            SurvivalError: for bad times or events.
            CountsError: for risks below the grid or not a number, not as many as times.
        """
        times, events = checked(times, events)
        risk_cells, time_cells = risk_grid.cell(risks, "risks"), time_grid.cell(times, "times")
        if risk_cells.shape != time_cells.shape:
            raise CountsError(f"{risk_cells.shape} risks, {time_cells.shape} times: expected as many of each")
        counts = np.zeros((2, risk_grid.cells, time_grid.cells), dtype=np.int64)
        np.add.at(counts, (events.astype(np.intp), risk_cells, time_cells), 1)
        return cls(counts, (risk_grid, time_grid))

    @property
    def c_index(self) -> float | None:
        """Harrell's, over pairs whose times lie in different cells, risks in one cell counting half.

        None without a pair. :meth:`bounds` holds the risks' and times' own c-index.
        """
        concordant, discordant, tied, _ = self._pairs()
        pairs = concordant + discordant + tied
        return (concordant + tied / 2) / pairs if pairs else None

    def bounds(self) -> tuple[float, float] | None:
        """The least and greatest c-index of patients with these counts.

        Every pair with one risk cell may be either way; every pair with one time cell and a death may be comparable,
        and either way.
        """
        concordant, discordant, tied, unknown = self._pairs()
        pairs = concordant + discordant + tied
        if not pairs + unknown:
            return None
        return concordant / (pairs + unknown), (concordant + tied + unknown) / (pairs + unknown)

    def _pairs(self) -> tuple[int, int, int, int]:
        """Concordant, discordant, tied in risk, and those with one time cell and a death."""
        dead, everyone = self.counts[1], self.counts.sum(axis=0)
        later = at_risk_of(everyone) - everyone
        below = np.cumsum(later, axis=0) - later
        all_later, in_cell = later.sum(axis=0), dead.sum(axis=0)
        concordant, tied = int((dead * below).sum()), int((dead * later).sum())
        discordant = int((in_cell * all_later).sum()) - concordant - tied
        with_death = in_cell * (everyone.sum(axis=0) - in_cell) + in_cell * (in_cell - 1) // 2
        return concordant, discordant, tied, int(with_death.sum())
