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
        self._cut: set[str] = set()
        self._first: dict[tuple[str, str], int] = {}
        """The round in which a log knows a job first, by log and job."""
        self._sent: dict[_Update, _Place] = {}
        self._sent_rounds: set[_Round] = set()
        self._counted: dict[_Update, _Place] = {}
        self._counted_rounds: set[_Round] = set()
        self._answered: set[_Update] = set()
        """Updates that the server received, whatever it did with them."""
        self._unread: set[_Round] = set()
        """Rounds in which the server says that a site's update did not arrive, or not whole."""
        self._in_mean: dict[_Round, tuple[_Place, str]] = {}
        """With the server that says so."""
        self._done: dict[str, tuple[int, str]] = {}
        """Last round that a server finished, and the server, by job."""

    def of_log(self, site: str, cut: bool) -> None:
        """The log of ``site`` is among those that are compared; ``cut``: its beginning is not there."""
        self._sites.add(site)
        if cut:
            self._cut.add(site)

    def add(self, event: Event, path: Path, line: int) -> None:
        """Take down what an event says of an update."""
        if event.job_id is None or event.round is None:
            return
        self._first.setdefault((event.site, event.job_id), event.round)
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
            self._done[event.job_id] = max((event.round, event.site), self._done.get(event.job_id, (-1, "")))
            for site in event.participants or ():
                self._in_mean.setdefault(_Round(event.job_id, event.round, site), (place, event.site))

    def compare(self, findings: Findings) -> None:
        """Tell of every update that only one end knows; of sites whose log is not there, nothing is said."""
        for update, place in self._counted.items():
            if self._has_all(update.of.site, update.of) and update not in self._sent:
                detail = f"the server received {_name(update)} from {update.of.site!r}, whose log says nothing of it"
                findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
        for of, (place, server) in self._in_mean.items():
            where = f"round {of.number} of job {of.job!r}"
            if self._has_all(of.site, of) and of not in self._sent_rounds:
                detail = f"{where}: {of.site!r} is in the mean, and its log says that it sent nothing"
                findings.add(*place, FindingKind.UPDATE_NEVER_SENT, detail)
            if self._has_all(server, of) and of not in self._counted_rounds:
                detail = f"{where}: {of.site!r} is in the mean, and no update of it was received"
                findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)
        for update, place in self._sent.items():
            done, server = self._done.get(update.of.job, (-1, ""))
            finished = update.of.number <= done and self._has_all(server, update.of)
            if finished and update not in self._answered and update.of not in self._unread:
                detail = (
                    f"{update.of.site!r} sent {_name(update)}, and the server's log, which has the end of that round, "
                    f"says nothing of it: lost on its way, or left out"
                )
                findings.add(*place, FindingKind.UPDATE_NOT_RECORDED, detail)

    def _has_all(self, log: str, of: _Round) -> bool:
        """Whether a log is there and holds all of a round: one whose beginning retention cut may begin within one."""
        return log in self._sites and (log not in self._cut or of.number > self._first.get((log, of.job), of.number))


def _name(update: _Update) -> str:
    return f"update {update.sha256[:12]}… of round {update.of.number}, job {update.of.job!r}"
