"""The time bins of discrete survival, found by sites that keep their times. Imports numpy only.

Edges are quantiles of the **uncensored training patients'** times: cut on all patients they would know the test's, and
on censored ones how long the study ran. Each site counts its events on a public grid of time; the server adds the
counts and publishes R - 1 inner edges. Bin r holds edge r <= time < edge r + 1; the first begins at 0 and the last has
no end, so that a time at or beyond the follow-up is in the last bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedad_components.mil.counts import Counts, Grid, joined

Edges = tuple[float, ...]
"""The R - 1 inner edges of R bins, ascending."""


class SurvivalError(ValueError):
    """Times and events that cannot be used; the message says what was expected."""


class EventHistogram(Counts):
    """Events of one site or of several: ``(cells,)`` on one grid of time."""

    leading: ClassVar[tuple[int | None, ...]] = ()


def checked(times: npt.ArrayLike, events: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Times and events as arrays ``(n,)``.

    Raises:
        SurvivalError: if they differ in length, there is none, an event is not 0 or 1, or a time is negative or not
            finite.
    """
    times, events = np.asarray(times, dtype=np.float64), np.asarray(events)
    if times.ndim != 1 or times.shape != events.shape or not times.size:
        raise SurvivalError(f"{times.shape} times, {events.shape} events: expected as many of each, one or more")
    if not np.isin(events, (0, 1)).all():
        raise SurvivalError("an event is neither 0 (censored) nor 1 (seen): correct it")
    if bad := int((~(np.isfinite(times) & (times >= 0))).sum()):
        raise SurvivalError(
            f"{bad} of {times.size} times are negative or not finite: expected the time from diagnosis, 0 or above; "
            f"correct them, or leave these patients out"
        )
    return times, events.astype(bool)


def event_histogram(times: npt.ArrayLike, events: npt.ArrayLike, grid: Grid, least: int = 1) -> EventHistogram:
    """What a site tells of its training patients' events: no cell holds 1 to ``least`` - 1 of them.

    A site with fewer than ``least`` events looks like one without any.

    Args:
        times: of the site's training patients, ``(n,)``.
        events: ``(n,)``: whether an event was seen then.
        grid: of time, from 0 to the follow-up; an event at or beyond its end is in the last cell.
        least: the smallest count that may be told: :func:`~fedad_components.mil.counts.joined`.

    Raises:
        SurvivalError: if times and events are not of the form above.
    """
    times, events = checked(times, events)
    counts = np.bincount(grid.cell(times[events], "times"), minlength=grid.cells)
    return EventHistogram(joined(counts, least), (grid,))


def edges_from_histograms(histograms: Mapping[str, EventHistogram], bins: int) -> Edges:
    """The inner edges of ``bins`` bins from every site's histogram, by site.

    Each event is taken to lie inside its cell (k events in a cell at its (i + 1/2) / k), so that an edge is within a
    cell's width of the quantile (``numpy.quantile``, linear) of the times themselves; further where a site had to join
    cells. A site without events is of use all the same: :func:`sites_without_events` names it.

    Raises:
        SurvivalError: if there are fewer than two bins, no site tells an event, or two edges are the same.
        CountsError: if the histograms are not on one grid.
    """
    if not histograms:
        raise SurvivalError("no site told its events")
    first, *others = histograms.values()
    total = sum(others, start=first)
    counts, (grid,) = total.counts, total.grids
    if not counts.any():
        raise SurvivalError(
            f"none of the {len(histograms)} sites told an event: all training patients are censored, or each site has "
            f"fewer events than the least count: there is no survival to learn"
        )
    _check_bins(bins)
    events, upto = int(counts.sum()), np.cumsum(counts)

    def time_of(rank: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        cell = np.searchsorted(upto, rank, side="right")
        place = rank - (upto[cell] - counts[cell])
        return grid.low + grid.width * (cell + (place + 0.5) / counts[cell])

    # Ranks, and not a time for each event: a site's word for their number must not decide how much memory is taken.
    rank = (events - 1) * np.arange(1, bins) / bins
    below = np.floor(rank).astype(np.int64)
    low, high = time_of(below), time_of(np.minimum(below + 1, events - 1))
    return _distinct(low + (high - low) * (rank - below), events)


def edges_from_times(times: npt.ArrayLike, events: npt.ArrayLike, bins: int) -> Edges:
    """The same from times ``(n,)`` at one place: for central and single-site baselines.

    Raises:
        SurvivalError: if there are fewer than two bins, all patients are censored, or two edges are the same.
    """
    times, events = checked(times, events)
    _check_bins(bins)
    if not events.any():
        raise SurvivalError(f"all {len(times)} patients are censored: expected events to cut the time at")
    return _distinct(np.quantile(times[events], np.arange(1, bins) / bins), int(events.sum()))


def _check_bins(bins: int) -> None:
    if bins < 2:
        raise SurvivalError(f"{bins} bins: expected 2 or more")


def _distinct(inner: npt.NDArray[np.float64], events: int) -> Edges:
    if inner[0] <= 0 or (np.diff(inner) <= 0).any():
        raise SurvivalError(
            f"{len(inner) + 1} bins of {events} events: edges {', '.join(f'{edge:g}' for edge in inner)} are not all "
            f"different and above 0, as many events have one time: take fewer bins, or a finer grid"
        )
    return tuple(inner.tolist())


def sites_without_events(histograms: Mapping[str, EventHistogram]) -> list[str]:
    """The sites that told none: all their training patients are censored, or their events fewer than the least."""
    return [site for site, histogram in histograms.items() if not histogram.counts.any()]


def to_bins(times: npt.ArrayLike, edges: Sequence[float]) -> npt.NDArray[np.int64]:
    """The bin of each time, ``(n,)``, 0 to R - 1; a time on an edge begins the next bin.

    Raises:
        SurvivalError: if a time is negative or not finite, or the edges are not ascending.
    """
    times, _ = checked(times, np.zeros(np.shape(times)))
    if (np.diff(edges) <= 0).any():
        raise SurvivalError(f"edges {', '.join(f'{edge:g}' for edge in edges)}: expected each above the one before")
    return np.searchsorted(np.asarray(edges, dtype=np.float64), times, side="right").astype(np.int64)
