"""What logs say, put together: parties, jobs, what left each site, refusals, budgets, changes. Verifies nothing.

Each fact is one party's word, and says whose: only ``audit/verify.py`` holds the parties' words against each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding

from fedad_components.audit.event import Event, Kind, Outcome, Payload
from fedad_components.audit.facts import (
    Access,
    Approval,
    Budget,
    Certificate,
    Change,
    Job,
    Key,
    Left,
    Party,
    Person,
    Refused,
    Round,
    Times,
)
from fedad_components.audit.keys import KeysError, common_name, load_certificate
from fedad_components.audit.reading import BadLine, read

_ACCESS = (Kind.LOG_READ, Kind.LOG_EXPORTED)
_INCIDENTS = (Kind.CLOCK_STEPPED_BACK, Kind.LOG_TORN, Kind.LOG_CUT)
_BY_SERVER = (Kind.TASK_SENT, Kind.UPDATE_RECEIVED, Kind.AGGREGATED)
_WITH_PEERS = (*_BY_SERVER, Kind.TASK_RECEIVED, Kind.RESULT_SENT, Kind.PEER_CHECKPOINT)
"""Whom these name is a party of the consortium; whom a refused connection names may be anybody."""


class _Update(NamedTuple):
    job_id: str
    round: int
    site: str


class _Arrival(NamedTuple):
    time: str
    outcome: Outcome
    reason: str | None
    payload: Payload | None


class _Sent(NamedTuple):
    of: _Update
    time: str
    payload: Payload | None
    filters: tuple[str, ...]


class History:
    """Collects over the events of any number of logs; each log's in order."""

    def __init__(self) -> None:
        self.parties: dict[str, Party] = {}
        self.servers: set[str] = set()
        """Parties whose log has what only a server writes."""
        self.jobs: dict[str, Job] = {}
        self.approvals: list[Approval] = []
        self.changes: list[Change] = []
        self.certificates: dict[str, Certificate] = {}
        """By their PEM text, in the order in which they were first seen."""
        self.unreadable_certificates = 0
        self.refusals: dict[Refused, Times[Refused]] = {}
        self.accesses: dict[Access, Times[Access]] = {}
        self.people: dict[Person, Counter[Outcome]] = defaultdict(Counter)
        self._named: set[str] = set()
        self._budgets: dict[Hashable, Budget] = {}
        self._refused_charges: Counter[tuple[str, str | None]] = Counter()
        self._charged: set[tuple[str | None, str]] = set()
        self._sent: list[_Sent] = []
        self._arrived: dict[_Update, dict[str | None, _Arrival]] = defaultdict(dict)
        self._newest: dict[str, tuple[str, str]] = {}
        """Name -> (time, fingerprint) of the certificate that was in use last."""

    def add(self, event: Event) -> None:
        """Take down what an event says."""
        kind, success = event.event, event.outcome is Outcome.SUCCESS
        party = self.parties.setdefault(event.site, Party(event.site, event.time, event.time))
        party.events += 1
        party.first, party.last = min(party.first, event.time), max(party.last, event.time)
        if event.job_id is not None:
            self._add_job(event, event.job_id)
        if event.actor is not None:
            self.people[Person(*event.actor.model_dump().values())][event.outcome] += 1
        if kind in _BY_SERVER:
            self.servers.add(event.site)
        if kind in _WITH_PEERS and success:
            self._named |= {event.peer} if event.peer else set()
            self._named |= set(event.participants or ())
        if not success:
            self._add_refusal(event)
        if kind in _ACCESS:
            access = Access(event.site, kind, _who(event), event.command, event.outcome)
            _count(self.accesses, access, event.time)
        elif kind is Kind.JOB_APPROVAL:
            self.approvals.append(
                Approval(
                    event.time,
                    event.site,
                    event.outcome,
                    event.actor,
                    event.job_id,
                    event.job_name,
                    event.job_digest,
                    event.reason,
                )
            )
        elif kind is Kind.LEDGER_CHARGED:
            self._add_charge(event)
        elif kind in (Kind.RESULT_SENT, Kind.UPDATE_RECEIVED):
            self._add_update(event)
        self._add_changes(party, event)

    # -- jobs -----------------------------------------------------------------------------------------------------

    def _add_job(self, event: Event, job_id: str) -> None:
        job = self.jobs.setdefault(job_id, Job(job_id, first=event.time, last=event.time))
        job.first, job.last = min(job.first, event.time), max(job.last, event.time)
        job.name = job.name or event.job_name
        job.experiment = job.experiment or event.experiment
        if event.privacy is not None:
            job.modes.add(event.privacy.mode)
        if event.event is Kind.JOB_SUBMITTED and event.outcome is Outcome.SUCCESS:
            job.submitter, job.submitted, job.digest = event.actor, event.time, event.job_digest
            job.files = dict(event.files or {})
        elif event.event is Kind.JOB_ENDED:
            job.ended, job.outcome, job.reason = event.time, event.outcome, event.reason
        elif event.event is Kind.AGGREGATED and event.outcome is Outcome.SUCCESS and event.round is not None:
            job.rounds[event.round] = Round(
                event.time, dict(event.participants or {}), event.payload, event.lambda_t, event.instability
            )
            job.sites |= set(event.participants or ())
        elif event.event is Kind.TASK_SENT and event.peer:
            job.sites.add(event.peer)
        elif event.event in (Kind.TASK_RECEIVED, Kind.RESULT_SENT):
            job.sites.add(event.site)
        elif event.event is Kind.DATA_SET_OPENED and event.data_set and event.outcome is Outcome.SUCCESS:
            job.data_sets[event.site, event.data_set] = event.images

    def _add_update(self, event: Event) -> None:
        if event.job_id is None or event.round is None:
            return
        if event.event is Kind.RESULT_SENT:
            if event.outcome is Outcome.SUCCESS:
                filters = tuple(event.policy.filters) if event.policy else ()
                of = _Update(event.job_id, event.round, event.site)
                self._sent.append(_Sent(of, event.time, event.payload, filters))
        elif event.peer:
            of = _Update(event.job_id, event.round, event.peer)
            digest = event.payload.sha256 if event.payload else None
            self._arrived[of][digest] = _Arrival(event.time, event.outcome, event.reason, event.payload)

    @property
    def left(self) -> list[Left]:
        """What left each site, by job, round and site; from the site's log, else as the server has it."""
        rows, told = [], set()
        for sent in self._sent:
            digest = sent.payload.sha256 if sent.payload else None
            arrivals = self._arrived.get(sent.of, {})
            arrival = arrivals.get(digest) or arrivals.get(None)
            told.add((sent.of, digest))
            if arrival is None:
                says = "not in the server's log" if self.servers else "the server's log was not given"
            else:
                says = _said(arrival)
            agreed = arrival is not None and arrival.outcome is Outcome.SUCCESS
            rows.append(Left(*sent.of, sent.time, sent.payload, sent.filters, says, agreed))
        for of, arrivals in self._arrived.items():
            for digest, arrival in arrivals.items():
                if arrival.outcome is Outcome.SUCCESS and (of, digest) not in told:
                    missing = "not in the site's log" if of.site in self.parties else "the site's log was not given"
                    says = f"{_said(arrival)}; {missing}"
                    rows.append(Left(*of, arrival.time, arrival.payload, (), says, False))
        return sorted(rows, key=lambda row: (row.job_id, row.round, row.site, row.time))

    # -- privacy --------------------------------------------------------------------------------------------------

    def _add_charge(self, event: Event) -> None:
        cost = event.privacy
        data_set = event.data_set or (cost.data_set if cost else None)
        if event.outcome is not Outcome.SUCCESS:
            self._refused_charges[event.site, data_set] += 1
            return
        self._charged.add((event.job_id, event.site))
        if cost is None or data_set is None:
            return
        key = (event.site, data_set, cost.mode, cost.unit, cost.delta)
        row = self._budgets.setdefault(key, Budget(*key, before=cost.epsilon_before))
        row.charges += 1
        row.epsilon, row.budget, row.last = cost.epsilon_after, cost.budget, event.time

    @property
    def budgets(self) -> list[Budget]:
        """By site and data set."""
        rows = sorted(self._budgets.values(), key=lambda row: (row.site, row.data_set, row.last))
        for row in rows:
            row.refused = self._refused_charges[row.site, row.data_set]
        return rows

    @property
    def uncharged(self) -> list[tuple[str, str]]:
        """(job, site) of results that left without any event of the site's ledger."""
        sent = {(item.of.job_id, item.of.site) for item in self._sent}
        return sorted(sent - self._charged)

    # -- changes --------------------------------------------------------------------------------------------------

    def _add_changes(self, party: Party, event: Event) -> None:
        kind = event.event

        def changed(what: str, before: str | None, after: str | None) -> None:
            self.changes.append(Change(event.time, event.site, what, before or "", after or "none", kind))

        if event.policy is not None and (event.policy.digest != party.policy or kind is Kind.POLICY_CHANGED):
            changed("policy file", party.policy, event.policy.digest)
            party.policy = event.policy.digest
        if event.certificate is not None:
            seen = self._add_certificate(event.certificate, event.time)
            if seen and (seen.fingerprint != party.certificate or kind is Kind.CERTIFICATE_CHANGED):
                changed("certificate", party.certificate, seen.fingerprint)
                party.certificate = seen.fingerprint
        if event.checkpoint is not None:
            self._add_certificate(event.checkpoint.certificate, event.checkpoint.time)
        if kind is Kind.SYSTEM_STARTED:
            software, files = event.software or {}, event.files or {}
            if party.software and software != party.software:
                changed("software", _pairs(party.software, software), _pairs(software, party.software))
            if party.files and files != party.files:
                names = sorted({name for name, _ in party.files.items() ^ files.items()})
                changed("files of the kit", None, ", ".join(names))
            party.software, party.files = dict(software), dict(files)
        if kind in _INCIDENTS:
            changed(kind.value, None, event.reason)

    def _add_certificate(self, pem: str, time: str) -> Certificate | None:
        try:
            certificate = self.certificates.get(pem) or read_certificate(pem)
        except KeysError:
            self.unreadable_certificates += 1
            return None
        self.certificates[pem] = certificate
        in_use = self._newest.get(certificate.name, ("", ""))
        self._newest[certificate.name] = max(in_use, (time, certificate.fingerprint))
        return certificate

    @property
    def in_use(self) -> list[Certificate]:
        """Each holder's newest certificate, the one that ends first before the others."""
        newest = {fingerprint for _, fingerprint in self._newest.values()}
        found = (one for one in self.certificates.values() if one.fingerprint in newest)
        return sorted(found, key=lambda one: (one.ends, one.name))

    # -- who and what ---------------------------------------------------------------------------------------------

    def _add_refusal(self, event: Event) -> None:
        refused = Refused(
            event.site, event.event, event.outcome, _who(event), event.job_id, event.round, event.reason, event.command
        )
        _count(self.refusals, refused, event.time)

    @property
    def without_log(self) -> list[str]:
        """Parties that other parties name, and whose log is not here."""
        return sorted(self._named - self.parties.keys())


def read_history(paths: Sequence[str | Path], bad: list[BadLine] | None = None) -> History:
    """The history in these logs; what is no event goes into ``bad``, or raises.

    Raises:
        ReadError: as :func:`fedad_components.audit.reading.read`.
    """
    history = History()
    for located in read(paths, bad):
        history.add(located.event)
    return history


def read_certificate(pem: str) -> Certificate:
    """What a certificate says of itself.

    Raises:
        KeysError: if it is none.
    """
    loaded = load_certificate(pem)
    return Certificate(
        common_name(loaded),
        loaded.issuer.rfc4514_string(),
        sha256(loaded.public_bytes(Encoding.DER)).hexdigest(),
        loaded.not_valid_before_utc,
        loaded.not_valid_after_utc,
        loaded.public_bytes(Encoding.PEM).decode("ascii"),
    )


def _count(counted: dict[Key, Times[Key]], key: Key, time: str) -> None:
    times = counted.setdefault(key, Times(key, time, time))
    times.count += 1
    times.first, times.last = min(times.first, time), max(times.last, time)


def _who(event: Event) -> str:
    return event.actor.name if event.actor else event.peer or ""


def _said(arrival: _Arrival) -> str:
    if arrival.outcome is Outcome.SUCCESS:
        return "accepted"
    return f"{arrival.outcome.value}: {arrival.reason or 'no reason given'}"


def _pairs(mine: dict[str, str], other: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(mine.items()) if other.get(name) != value)
