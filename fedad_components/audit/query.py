"""Find events: which, by whom, where, when, how they ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from fedad_components.audit.event import Event, Kind, Outcome, rfc3339


class QueryError(ValueError):
    """A filter's value that means nothing; the message says what was expected."""


_Moment = TypeAdapter(AwareDatetime)
_RFC_3339 = re.compile(r"[1-9]\d{3}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def as_time(text: str) -> str:
    """An RFC 3339 time as events write it: UTC, microseconds. Such strings sort as the times do.

    Raises:
        QueryError: for anything else; a time without its zone is no moment.
    """
    try:
        if not _RFC_3339.fullmatch(text):
            raise ValueError
        return rfc3339(_Moment.validate_python(text))
    except (ValidationError, ValueError, OverflowError):
        raise QueryError(
            f"{text!r} is no RFC 3339 time; expected one like 2030-01-31T08:00:00Z or 2030-01-31T09:00:00+01:00"
        ) from None


@dataclass(frozen=True)
class Filter:
    """What an event has to be; an empty set asks nothing.

    Attributes:
        sites: parties whose log it is in.
        users: names of actors.
        jobs: ids or names of jobs.
        events: kinds.
        outcomes: how it ended.
        since: earliest time, as :func:`as_time` gives it.
        until: first time that is too late: two queries that meet share no event.
    """

    sites: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    events: frozenset[Kind] = frozenset()
    outcomes: frozenset[Outcome] = frozenset()
    since: str | None = None
    until: str | None = None

    def admits(self, event: Event) -> bool:
        """Whether the event is asked for."""
        return (
            (not self.sites or event.site in self.sites)
            and (not self.users or (event.actor is not None and event.actor.name in self.users))
            and (not self.jobs or not self.jobs.isdisjoint({event.job_id, event.job_name}))
            and (not self.events or event.event in self.events)
            and (not self.outcomes or event.outcome in self.outcomes)
            and (self.since is None or event.time >= self.since)
            and (self.until is None or event.time < self.until)
        )


def select(events: Iterable[Event], wanted: Filter) -> Iterator[Event]:
    """The events that the filter admits, in their order."""
    return (event for event in events if wanted.admits(event))
