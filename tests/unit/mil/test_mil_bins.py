"""Bins from event histograms: against quantiles of pooled times, and every edge case."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mil_reference import KIRC, kirc

from fedad_components.mil.bins import (
    EventHistogram,
    SurvivalError,
    edges_from_histograms,
    edges_from_times,
    event_histogram,
    sites_without_events,
    to_bins,
)
from fedad_components.mil.counts import CountsError, Grid, joined

GRID = Grid(0.0, 64.0, 6)
MONTH = 30.44


@pytest.mark.parametrize("bins", [2, 4, 6, 8])
def test_central_edges_are_the_references(bins: int) -> None:
    patients = kirc()
    months = patients.days / MONTH
    edges = edges_from_times(months, patients.events, bins)
    assert edges == pytest.approx(KIRC["edges_months_30.44"][str(bins)][1:-1], abs=5e-5)
    assert np.bincount(to_bins(months, edges)).tolist() == KIRC["counts"][str(bins)]


@pytest.mark.parametrize("bins", [2, 4, 6, 8])
@pytest.mark.parametrize("depth", [8, 10, 16])
def test_federated_edges_are_the_references_within_a_cell(bins: int, depth: int) -> None:
    patients, grid = kirc(), Grid(0.0, 150.0, depth)
    months = patients.days / MONTH
    told = {
        str(site): event_histogram(months[patients.site == site], patients.events[patients.site == site], grid)
        for site in np.unique(patients.site)
    }
    edges = edges_from_histograms(told, bins)
    assert edges == pytest.approx(KIRC["edges_months_30.44"][str(bins)][1:-1], abs=grid.width + 5e-5)
    if depth == 16:
        assert np.bincount(to_bins(months, edges)).tolist() == pytest.approx(KIRC["counts"][str(bins)], abs=1)


def test_a_least_count_costs_little() -> None:
    patients, grid = kirc(), Grid(0.0, 150.0, 10)
    months = patients.days / MONTH
    told = {}
    for site in np.unique(patients.site):
        here = patients.site == site
        told[str(site)] = histogram = event_histogram(months[here], patients.events[here], grid, least=5)
        assert histogram.counts.sum() == patients.events[here].sum()
        assert histogram.counts[histogram.counts > 0].min() >= 5
    counts = np.bincount(to_bins(months[patients.events], edges_from_histograms(told, 4)), minlength=4)
    assert np.abs(counts / patients.events.sum() - 1 / 4).max() < 0.05


@given(st.lists(st.lists(st.integers(0, 9), min_size=32, max_size=32), min_size=1, max_size=3), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_joined_counts_are_none_or_enough_with_the_same_totals(rows: list[list[int]], least: int) -> None:
    counts = np.array(rows)
    told = joined(counts, least)
    assert ((told == 0) | (told >= least)).all()
    totals = counts.sum(axis=1)
    assert told.sum(axis=1).tolist() == np.where(totals >= least, totals, 0).tolist()
    if least == 1:
        assert np.array_equal(told, counts)


def test_cells_are_joined_from_the_left_and_told_in_their_middle() -> None:
    row = [0, 2, 0, 0, 1, 3, 4, 0, 1, 0, 0, 9, 0, 1, 1, 0]
    # 1 to 5 hold 6, 6 to 8 hold 5, and 11 holds 9, which the last two join.
    assert joined(np.array(row), 5).tolist() == [0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 0, 11, 0, 0, 0]
    assert joined(np.array([row, [0, 1] * 8]), 9).tolist() == [
        [0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0],
        [0] * 16,
    ]


def test_edges_of_many_events_take_no_more_memory_than_those_of_few() -> None:
    """2^40 events: a list of their times would be 8 TiB. The quantiles are those of the same shares of 4,096."""
    few = np.bincount(np.random.default_rng(0).integers(0, GRID.cells, 4096), minlength=GRID.cells)
    many, expected = (edges_from_histograms({"a": EventHistogram(few * times, (GRID,))}, 4) for times in (1 << 28, 1))
    assert many == pytest.approx(expected, abs=GRID.width)


@given(st.lists(st.integers(0, 40), min_size=32, max_size=32), st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_edges_are_numpys_quantiles_of_events_spread_over_their_cells(counts: list[int], bins: int) -> None:
    grid = Grid(0.0, 64.0, 5)
    times = [2.0 * (cell + (place + 0.5) / count) for cell, count in enumerate(counts) for place in range(count)]
    assume(len(times) > 1)
    found = edges_from_histograms({"a": EventHistogram(np.array(counts), (grid,))}, bins)
    assert found == pytest.approx(np.quantile(times, np.arange(1, bins) / bins))


def test_tied_times_and_times_beyond_the_follow_up() -> None:
    histogram = event_histogram([3.5, 3.5, 3.5, 64.0, 900.0, 10.0], [1, 1, 1, 1, 1, 0], GRID)
    assert histogram.counts.nonzero()[0].tolist() == [3, 63]
    assert histogram.counts[[3, 63]].tolist() == [3, 2]
    assert to_bins([0.0, 4.9, 5.0, 63.0, 64.0, 900.0], (5.0, 20.0)).tolist() == [0, 0, 1, 2, 2, 2]


def test_a_site_without_events_is_of_use_and_noted() -> None:
    with_events = event_histogram(np.linspace(1, 60, 40), np.ones(40), GRID, least=5)
    told = {
        "A": with_events,
        "B": event_histogram([5.0, 6.0], [0, 0], GRID, least=5),
        "C": event_histogram([5.0, 6.0], [1, 1], GRID, least=5),
    }
    assert edges_from_histograms(told, 4) == edges_from_histograms({"A": with_events}, 4)
    assert sites_without_events(told) == ["B", "C"]


def test_all_censored() -> None:
    nothing = event_histogram([5.0, 6.0], [0, 0], GRID)
    with pytest.raises(SurvivalError, match="none of the 2 sites told an event"):
        edges_from_histograms({"A": nothing, "B": nothing}, 4)
    with pytest.raises(SurvivalError, match="all 2 patients are censored"):
        edges_from_times([5.0, 6.0], [0, 0], 4)


def test_duplicate_edges() -> None:
    with pytest.raises(SurvivalError, match="take fewer bins"):
        edges_from_times([1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 9.0], np.ones(7), 4)
    with pytest.raises(SurvivalError, match="take fewer bins"):
        edges_from_times([0.0, 0.0, 0.0, 1.0], np.ones(4), 2)
    with pytest.raises(SurvivalError, match="each above the one before"):
        to_bins([1.0], (5.0, 5.0))


@pytest.mark.parametrize(
    ("times", "events", "says"),
    [
        ([-1.0, 2.0], [1, 1], "1 of 2 times are negative"),
        ([float("nan"), 2.0], [1, 1], "not finite"),
        ([float("inf"), 2.0], [0, 1], "not finite"),
        ([1.0, 2.0], [1, 2], "neither 0"),
        ([1.0, 2.0], [1], "as many of each"),
        ([], [], "one or more"),
    ],
)
def test_bad_times_and_events(times: list[float], events: list[int], says: str) -> None:
    with pytest.raises(SurvivalError, match=says):
        event_histogram(times, events, GRID)
    with pytest.raises(SurvivalError, match=says):
        edges_from_times(times, events, 2)


def test_histograms_of_other_grids_are_not_added() -> None:
    other = event_histogram([1.0], [1], Grid(0.0, 32.0, 6))
    with pytest.raises(CountsError, match="cannot be added"):
        edges_from_histograms({"A": event_histogram([1.0], [1], GRID), "B": other}, 2)
    with pytest.raises(SurvivalError, match="1 bins"):
        edges_from_histograms({"A": other}, 1)
    with pytest.raises(SurvivalError, match="no site"):
        edges_from_histograms({}, 2)


def test_they_travel_as_plain_numbers() -> None:
    parts = [
        event_histogram(np.arange(start, 60.0, 7), np.ones(len(np.arange(start, 60.0, 7))), GRID) for start in (1, 2)
    ]
    total = reduce(add, parts)
    sent = EventHistogram.from_dict(total.as_dict())
    assert sent.grids == (GRID,)
    assert sent.counts.tolist() == total.counts.tolist()
    assert {type(value) for value in total.as_dict()["counts"]} == {int}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "PairCounts"}, "kind 'EventHistogram'"),
        ({"more": 1}, "kind 'EventHistogram'"),
        ({"counts": [1] * 63}, r"shape \(64,\)"),
        ({"counts": [0.5] * 64}, "integers"),
        ({"counts": [-1] * 64}, "0 to 2"),
        ({"counts": [2**60] * 64}, "0 to 2"),
        ({"counts": [[1], [1, 2]]}, "EventHistogram"),
        ({"grids": [[0.0, float("inf"), 6]]}, "expected finite bounds"),
        ({"grids": [[0.0, 1.0, 40]]}, "depth 40"),
        ({"grids": [[0.0, 1.0]]}, "EventHistogram"),
        ({"grids": 3}, "EventHistogram"),
    ],
)
def test_what_another_party_sends_is_checked(change: dict[str, object], says: str) -> None:
    good = event_histogram([1.0], [1], GRID).as_dict()
    with pytest.raises(CountsError, match=says):
        EventHistogram.from_dict(good | change)


def test_bad_grids() -> None:
    with pytest.raises(CountsError, match="lower one first"):
        Grid(1.0, 1.0, 3)
    with pytest.raises(CountsError, match="least count: 0"):
        joined(np.array([1, 2]), 0)
