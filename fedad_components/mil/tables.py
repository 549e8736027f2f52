"""The public grids of an experiment's counts, and the sum of what the sites sent on them. Imports numpy, no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedad_components.mil.bins import EventHistogram
from fedad_components.mil.counts import Grid, Ints
from fedad_components.mil.federated_metrics import Confusion, ScoreHistogram
from fedad_components.mil.survival_metrics import PairCounts

if TYPE_CHECKING:
    from fedad_components.mil.config import HistoFLConfig
    from fedad_components.reports import ValidationCounts


def score_grid(config: HistoFLConfig) -> Grid:
    """Of probabilities."""
    return Grid(0.0, 1.0, config.counts.score_depth)


def time_grid(config: HistoFLConfig) -> Grid:
    """Of times, to ``target.horizon``."""
    return Grid(0.0, config.target.horizon, config.counts.time_depth)


def event_table(counts: list[int], config: HistoFLConfig) -> EventHistogram:
    """A site's survey."""
    return EventHistogram(_ints(counts), (time_grid(config),))


def pair_table(sites: Iterable[ValidationCounts]) -> PairCounts:
    """The sites' pairs, added up."""
    return PairCounts(sum((_ints(site.pairs) for site in sites), start=_zeros((3,))))


def class_pair_tables(sites: Iterable[ValidationCounts], config: HistoFLConfig) -> list[PairCounts]:
    """The sites' pairs of each class, added up."""
    shape = (len(config.target.classes), 3)
    return [PairCounts(row) for row in sum((_ints(site.pairs).reshape(shape) for site in sites), start=_zeros(shape))]


def score_tables(sites: Iterable[ValidationCounts], config: HistoFLConfig) -> list[ScoreHistogram]:
    """The sites' scores of each class, added up."""
    grid, of_sites = score_grid(config), [site.scores or [] for site in sites]
    shape = (2, grid.cells)
    return [
        ScoreHistogram(sum((_ints(scores[c]).reshape(shape) for scores in of_sites), start=_zeros(shape)), (grid,))
        for c in range(len(config.target.classes))
    ]


def confusion_table(sites: Iterable[ValidationCounts], config: HistoFLConfig) -> Confusion:
    """The sites' confusion, added up."""
    shape = (len(config.target.classes),) * 2
    return Confusion(sum((_ints(site.confusion).reshape(shape) for site in sites), start=_zeros(shape)))


def _ints(counts: list[int] | None) -> Ints:
    return np.asarray(counts, dtype=np.int64)


def _zeros(shape: tuple[int, ...]) -> Ints:
    return np.zeros(shape, dtype=np.int64)
