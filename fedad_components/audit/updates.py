"""Updates from both ends: what the server counted and what the sites sent, by job, round, site and hash."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedad_components.audit.event import Event, Kind, Outcome
from fedad_components.audit.findings import FindingKind, Findings


class _Place(NamedTuple):
    path: Path
    line: int


class _Round(NamedTuple):
    job: str
    number: int
    site: str


class _Update(NamedTuple):
    of: _Round
    sha256: str


class Updates:
    """Collects over all logs, compares at the end. Its memory grows with the number of updates alone."""

    def __init__(self) -> None:
        self._sites: set[str] = set()
        self._sent: dict[_Update, _Place] = {}
        self._sent_rounds: set[_Round] = set()
        self._counted: dict[_Update, _Place] = {}
        self._counted_rounds: set[_Round] = set()
        self._answered: set[_Update] = set()
        """Updates that the server received, whatever it did with them."""
        self._unread: set[_Round] = set()
        """Rounds in which the server says that a site's update did not arrive, or not whole."""
        self._in_mean: dict[_Round, _Place] = {}
        self._done: dict[str, int] = {}
        """Last round that the server finished, by job."""

    def of_log(self, site: str) -> None:
        """The log of ``site`` is among those that are compared."""
        self._sites.add(site)

    def add(self, event: Event, path: Path, line: int) -> None:
        """Take down what an event says of an update."""
        if event.job_id is None or event.round is None:
            return
        success, place = event.outcome is Outcome.SUCCESS, _Place(path, line)
        if event.event is Kind.RESULT_SENT and success:
            of = _Round(event.job_id, event.round, event.site)
            self._sent_rounds.add(of)
            if event.payload:
                self._sent.setdefault(_Update(of, event.payload.sha256), place)
        elif event.event is Kind.UPDATE_RECEIVED and event.peer:
            of = _Round(event.job_id, event.round, event.peer)
            if event.payload:
                update = _Update(of, event.payload.sha256)
                self._answered.add(update)
                if success:
                    self._counted.setdefault(update, place)
            elif not success:
                self._unread.add(of)
            if success:
                self._counted_rounds.add(of)
        elif event.event is Kind.AGGREGATED and success:
            self._done[event.job_id] = max(event.round, self._done.get(event.job_id, -1))
            for site in event.participants or ():
                self._in_mean.setdefault(_Round(event.job_id, event.round, site), place)

    def compare(self, findings: Findings) -> None:
        """Tell of every update that only one end knows; of sites whose log is not there, nothing is said."""
        for update, place in self._counted.items():
            if update.of.site in self._sites and update not in self._sent:
                detail = f"the server received {_name(update)} from {update.of.site!r}, whose log says nothing of it"
                findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
        for of, place in self._in_mean.items():
            where = f"round {of.number} of job {of.job!r}"
            if of.site in self._sites and of not in self._sent_rounds:
                detail = f"{where}: {of.site!r} is in the mean, and its log says that it sent nothing"
                findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
            if of not in self._counted_rounds:
                detail = f"{where}: {of.site!r} is in the mean, and no update of it was received"
                findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)
        for update, place in self._sent.items():
            finished = update.of.number <= self._done.get(update.of.job, -1)
            if finished and update not in self._answered and update.of not in self._unread:
                detail = (
                    f"{update.of.site!r} sent {_name(update)}, and the server's log, which has the end of that round, "
                    f"says nothing of it: lost on its way, or left out"
                )
                findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)


def _name(update: _Update) -> str:
    return f"update {update.sha256[:12]}… of round {update.of.number}, job {update.of.job!r}"
