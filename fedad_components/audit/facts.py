"""The facts that an auditor asks for, as rows of a report; ``history.py`` collects them from the logs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from fedad_components.audit.event import Actor, Kind, Outcome, Payload

Key = TypeVar("Key", bound=Hashable)


@dataclass
class Party:
    """Whose log it is, and what span of time it covers."""

    site: str
    first: str
    last: str
    events: int = 0
    software: dict[str, str] = field(default_factory=dict)
    """As at its last start."""
    files: dict[str, str] = field(default_factory=dict)
    """Digests of its kit's files, as at its last start."""
    policy: str | None = None
    """SHA-256 of its policy file, as last told."""
    certificate: str | None = None
    """Fingerprint of its own, as last told."""


class Approval(NamedTuple):
    """A site's word on a job."""

    time: str
    site: str
    outcome: Outcome
    actor: Actor | None
    job_id: str | None
    job_name: str | None
    digest: str | None
    reason: str | None


@dataclass
class Job:
    """A job, from all logs."""

    job_id: str
    name: str | None = None
    experiment: str | None = None
    digest: str | None = None
    submitter: Actor | None = None
    submitted: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    rounds: dict[int, Round] = field(default_factory=dict)
    """Those that the server finished."""
    sites: set[str] = field(default_factory=set)
    data_sets: dict[tuple[str, str], int | None] = field(default_factory=dict)
    """(site, id) to the number of images that were opened."""
    modes: set[str] = field(default_factory=set)
    first: str = ""
    last: str = ""
    ended: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None


class Round(NamedTuple):
    """A round that the server finished."""

    time: str
    participants: dict[str, int]
    payload: Payload | None
    lambda_t: float | None
    instability: float | None


class Left(NamedTuple):
    """What left a site in a round."""

    job_id: str
    round: int
    site: str
    time: str
    payload: Payload | None
    filters: tuple[str, ...]
    at_server: str
    """What the server says of it."""
    agreed: bool
    """Both ends tell the same."""


@dataclass
class Budget:
    """What a site charged for a data set: only what its ``ledger_charged`` events say."""

    site: str
    data_set: str
    mode: str
    unit: str | None
    delta: float | None
    charges: int = 0
    refused: int = 0
    before: float | None = None
    """Of the first charge here."""
    epsilon: float | None = None
    """After the last one; None where no event states one."""
    budget: float | None = None
    last: str = ""

    @property
    def exceeded(self) -> bool:
        """The events themselves say more than the budget."""
        return self.epsilon is not None and self.budget is not None and self.epsilon > self.budget


class Change(NamedTuple):
    """Something that is not as it was."""

    time: str
    site: str
    what: str
    before: str
    after: str
    said_by: Kind


class Certificate(NamedTuple):
    """A certificate that an event holds."""

    name: str
    issuer: str
    fingerprint: str
    """SHA-256 over the DER form, in hex."""
    begins: datetime
    ends: datetime
    pem: str


class Refused(NamedTuple):
    """Whom or what a party refused, or what failed there."""

    site: str
    kind: Kind
    outcome: Outcome
    who: str
    job_id: str | None
    round: int | None
    reason: str | None
    command: str | None


class Access(NamedTuple):
    """Who read or exported a log."""

    site: str
    kind: Kind
    who: str
    command: str | None
    outcome: Outcome


class Person(NamedTuple):
    """Who acted, as a certificate says."""

    name: str
    org: str | None
    role: str | None


@dataclass
class Times(Generic[Key]):
    """How often the same happened, and when."""

    of: Key
    first: str
    last: str
    count: int = 0
