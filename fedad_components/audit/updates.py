"""Updates from both ends: what the server counted and what the sites sent, by server, job, round, site and hash."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from fedad_components.audit.event import Event, Kind, Outcome
from fedad_components.audit.findings import FindingKind, Findings

_NEEDED = {
    Kind.RESULT_SENT: ("peer", "payload"),
    Kind.UPDATE_RECEIVED: ("peer", "payload"),
    Kind.AGGREGATED: ("participants",),
}
"""Without these, and job and round, an event of success cannot be held against the other end's."""


class _Place(NamedTuple):
    path: Path
    line: int


class _Round(NamedTuple):
    """``server``: the party whose log has to answer for it. Nobody else's log can, whatever is written there."""

    server: str
    job: str
    number: int
    site: str


class _Update(NamedTuple):
    of: _Round
    sha256: str


Counts = dict[str, str]
"""Name to digest of the counts of patients beside an update."""


class Updates:
    """Collects over all logs, compares at the end. Its memory grows with the number of updates alone."""

    def __init__(self) -> None:
        self._sites: set[str] = set()
        self._cut: set[str] = set()
        self._first: dict[tuple[str, str], int] = {}
        """The round in which a log knows a job first, by log and job."""
        self._sent: dict[_Update, _Place] = {}
        self._sent_rounds: set[_Round] = set()
        self._counted: dict[_Update, _Place] = {}
        self._counted_rounds: set[_Round] = set()
        self._sent_counts: dict[_Update, list[Counts]] = defaultdict(list)
        """One for each time that the site says it sent the update."""
        self._received_counts: list[tuple[_Place, _Update, Counts]] = []
        self._answered: set[_Update] = set()
        """Updates that the server received, whatever it did with them."""
        self._unread: set[_Round] = set()
        """Rounds in which the server says that a site's update did not arrive, or not whole."""
        self._in_mean: dict[_Round, _Place] = {}
        self._done: dict[tuple[str, str], int] = {}
        """Last round that a server left behind, by server and job."""
        self._answers: set[tuple[str, str, str]] = set()
        """Of (server, job, site): an update was counted since the site's last task."""
        self._twice: list[tuple[_Place, _Round]] = []
        self._vague: list[tuple[_Place, str]] = []

    def of_log(self, site: str, cut: bool) -> None:
        """The log of ``site`` is among those that are compared; ``cut``: its beginning is not there."""
        self._sites.add(site)
        if cut:
            self._cut.add(site)

    def add(self, event: Event, path: Path, line: int) -> None:
        """Take down what an event says of an update."""
        kind, success, place = event.event, event.outcome is Outcome.SUCCESS, _Place(path, line)
        if success and kind in _NEEDED:
            missing = [name for name in ("job_id", "round", *_NEEDED[kind]) if getattr(event, name) is None]
            if missing:
                self._vague.append((place, f"{kind.value} without {', '.join(missing)}: nothing to compare it with"))
        if event.job_id is None:
            return
        if kind is Kind.JOB_ENDED and success:
            self._leave(event.site, event.job_id, sys.maxsize)
        if event.round is None:
            return
        self._first.setdefault((event.site, event.job_id), event.round)
        if kind is Kind.RESULT_SENT and success and event.peer:
            of = _Round(event.peer, event.job_id, event.round, event.site)
            self._sent_rounds.add(of)
            if event.payload:
                update = _Update(of, event.payload.sha256)
                self._sent.setdefault(update, place)
                self._sent_counts[update].append(event.counts or {})
        elif kind is Kind.UPDATE_RECEIVED and event.peer:
            of = _Round(event.site, event.job_id, event.round, event.peer)
            if event.payload:
                update = _Update(of, event.payload.sha256)
                self._answered.add(update)
                if success:
                    self._counted.setdefault(update, place)
                    self._received_counts.append((place, update, event.counts or {}))
            elif not success:
                self._unread.add(of)
            if success:
                self._counted_rounds.add(of)
                answer = (of.server, of.job, of.site)
                if answer in self._answers:
                    self._twice.append((place, of))
                self._answers.add(answer)
        elif kind is Kind.AGGREGATED and success:
            self._leave(event.site, event.job_id, event.round)
            for site in event.participants or ():
                self._in_mean.setdefault(_Round(event.site, event.job_id, event.round, site), place)
        elif kind is Kind.TASK_SENT and success:
            self._leave(event.site, event.job_id, event.round - 1)
            self._answers.discard((event.site, event.job_id, event.peer or ""))
        elif kind is Kind.TASK_RECEIVED and success and event.peer:
            self._leave(event.peer, event.job_id, event.round - 1)

    def _leave(self, server: str, job: str, number: int) -> None:
        """The server goes on after that round, by its own word or because a site has its next task."""
        self._done[server, job] = max(number, self._done.get((server, job), -1))

    def compare(self, findings: Findings) -> None:
        """Tell of every update that only one end knows; of sites whose log is not there, nothing is said."""
        for place, detail in self._vague:
            findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)
        for place, of in self._twice:
            detail = f"round {of.number} of job {of.job!r}: a second update of {of.site!r} was counted for one task"
            findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
        for update, place in self._counted.items():
            if self._has_all(update.of.site, update.of) and update not in self._sent:
                detail = f"the server received {_name(update)} from {update.of.site!r}, whose log says nothing of it"
                findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
        self._compare_counts(findings)
        for of, place in self._in_mean.items():
            where = f"round {of.number} of job {of.job!r}"
            if self._has_all(of.site, of) and of not in self._sent_rounds:
                detail = f"{where}: {of.site!r} is in the mean, and its log says that it sent nothing"
                findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
            if self._has_all(of.server, of) and of not in self._counted_rounds:
                detail = f"{where}: {of.site!r} is in the mean, and no update of it was received"
                findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)
        for update, place in self._sent.items():
            of = update.of
            finished = of.number <= self._done.get((of.server, of.job), -1) and self._has_all(of.server, of)
            if finished and update not in self._answered and of not in self._unread:
                detail = (
                    f"{of.site!r} sent {_name(update)}, and the log of {of.server!r}, which went on after that round, "
                    f"says nothing of it: lost on its way, or left out"
                )
                findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)

    def _compare_counts(self, findings: Findings) -> None:
        """Tell of counts beside an update that both ends know, which one of them does not have, or has otherwise."""
        for place, update, received in self._received_counts:
            sent = self._sent_counts.get(update)
            if sent and received not in sent:
                names = sorted(
                    name for name in received.keys() | sent[0].keys() if received.get(name) != sent[0].get(name)
                )
                told = "; ".join(
                    f"{name!r}: sent {_hash(sent[0], name)}, received {_hash(received, name)}" for name in names
                )
                detail = f"counts beside {_name(update)} of {update.of.site!r} differ at its two ends: {told}"
                findings.add(*place, FindingKind.COUNTS_DIFFER, detail)

    def _has_all(self, log: str, of: _Round) -> bool:
        """Whether a log is there and holds all of a round: one whose beginning retention cut may begin within one."""
        return log in self._sites and (log not in self._cut or of.number > self._first.get((log, of.job), of.number))


def _name(update: _Update) -> str:
    return f"update {update.sha256[:12]}… of round {update.of.number}, job {update.of.job!r}"


def _hash(counts: Counts, name: str) -> str:
    return f"{counts[name][:12]}…" if name in counts else "none"
