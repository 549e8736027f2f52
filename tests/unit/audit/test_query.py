"""Filters are checked against one written the slow way; times against Python's own arithmetic."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from audit_events import ACTOR, event_of, every_kind
from hypothesis import given
from hypothesis import strategies as st

from fedad_components.audit.event import Event, Kind, Outcome, rfc3339
from fedad_components.audit.query import Filter, QueryError, as_time, select

EVENTS = [*every_kind(), *(event_of(kind, 100 + n, site="server") for n, kind in enumerate(Kind))]


def some(values: list[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(values), max_size=3)


@given(
    sites=some(["hospital-a", "server", "nobody"]),
    users=some([ACTOR["name"], "nobody"]),
    jobs=some(["0c9e6a5e-1111", "fedad_job", "nothing"]),
    kinds=st.frozensets(st.sampled_from(Kind), max_size=20),
    outcomes=st.frozensets(st.sampled_from(Outcome), max_size=2),
    bounds=st.tuples(*[st.none() | st.sampled_from([event.time for event in EVENTS])] * 2),
)
def test_every_condition_has_to_hold(
    sites: frozenset[str],
    users: frozenset[str],
    jobs: frozenset[str],
    kinds: frozenset[Kind],
    outcomes: frozenset[Outcome],
    bounds: tuple[str | None, str | None],
) -> None:
    expected: list[Event] = []
    for event in EVENTS:
        holds = True
        if sites and event.site not in sites:
            holds = False
        if users and not (event.actor and event.actor.name in users):
            holds = False
        if jobs and event.job_id not in jobs and event.job_name not in jobs:
            holds = False
        if kinds and event.event not in kinds:
            holds = False
        if outcomes and event.outcome not in outcomes:
            holds = False
        when = datetime.fromisoformat(event.time.replace("Z", "+00:00"))
        if bounds[0] and when < datetime.fromisoformat(bounds[0].replace("Z", "+00:00")):
            holds = False
        if bounds[1] and when >= datetime.fromisoformat(bounds[1].replace("Z", "+00:00")):
            holds = False
        if holds:
            expected.append(event)
    assert list(select(EVENTS, Filter(sites, users, jobs, kinds, outcomes, *bounds))) == expected


def test_no_filter_finds_everything() -> None:
    assert list(select(EVENTS, Filter())) == EVENTS


def test_two_queries_that_meet_share_no_event_and_lose_none() -> None:
    middle = EVENTS[10].time
    before, after = select(EVENTS, Filter(until=middle)), select(EVENTS, Filter(since=middle))
    assert sorted([*before, *after], key=EVENTS.index) == EVENTS


@given(
    st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1)),
    st.integers(min_value=-839, max_value=839),
)
def test_a_time_with_any_offset_is_the_same_moment(moment: datetime, minutes: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert as_time(local.isoformat()) == rfc3339(local)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-31T08:00:00Z", "2030-01-31T08:00:00.000000Z"),
        ("2030-01-31t08:00:00.5z", "2030-01-31T08:00:00.500000Z"),
        ("2030-01-31T00:30:00+01:00", "2030-01-30T23:30:00.000000Z"),
        ("2030-01-31T08:00:00.1234567Z", "2030-01-31T08:00:00.123456Z"),
    ],
)
def test_times_of_rfc_3339(text: str, time: str) -> None:
    assert as_time(text) == time


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2030-01-31",
        "2030-01-31T08:00:00",
        "2030-02-30T08:00:00Z",
        "2030-01-31T25:00:00Z",
        "1893456000",
    ],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="expected one like"):
        as_time(text)
