"""One log under verification, event by event: its chain, its clock, its files and its own checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from fedad_components.audit.event import FIRST_PREV, Event, EventError, Kind, Outcome, moment, parse
from fedad_components.audit.findings import MOST_FINDINGS, FindingKind, Findings
from fedad_components.audit.reading import (
    Chain,
    Line,
    ReadError,
    file_name,
    file_number,
    log_files,
    read_lines,
    torn_number,
    torn_reason,
)
from fedad_components.audit.trust import Claim, Trust
from fedad_components.audit.updates import Updates

LATE = timedelta(minutes=15)
"""Three times the pause between checkpoints."""
SHORTEST_RETENTION = timedelta(days=365)
"""No younger event is removed by ``retention.py``: whoever cuts more hides something."""


_ANCHORED = (Kind.TASK_RECEIVED, Kind.UPDATE_RECEIVED)
"""What the peer's checkpoint comes with."""
_CHECKPOINT_FIELDS = {"v", "seq", "time", "site", "event", "outcome", "prev", "checkpoint"}


class _Last(NamedTuple):
    """The event that the next one has to follow."""

    seq: int
    hash: str | None
    """None if that line cannot be read."""
    time: str
    kind: Kind | None
    path: Path
    line: int


class ChainVerifier:
    """Verifies the files of one log in one pass; memory grows with its findings and torn lines alone."""

    def __init__(
        self,
        chain: Chain,
        trust: Trust,
        claims: Mapping[str, Mapping[int, list[Claim]]],
        updates: Updates,
        findings: Findings,
        warnings: Findings,
    ) -> None:
        self.chain, self.trust, self.claims, self.updates = chain, trust, claims, updates
        self.findings, self.warnings = findings, warnings
        self.site: str | None = None
        self.events = 0
        self.checkpoints = 0
        self._held: Mapping[int, list[Claim]] = {}
        self._last: _Last | None = None
        self._gaps: dict[int, tuple[int, Path, int]] = {}
        """First missing event -> last missing one, and where the log goes on."""
        self._opening: Event | None = None
        """The first event, if it is not the chain's first."""
        self._cuts: dict[tuple[int, str], str] = {}
        """Number and hash of the last event that a signed cut removes -> time of the cut."""
        self._torn: dict[str, tuple[Path, int]] = {}
        self._certificate: str | None = None
        self._anchored: dict[str, str] = {}
        """When a peer's checkpoint was kept last."""
        self._signed = False
        """Whether there is any checkpoint, good or bad."""
        self._unsigned: tuple[int, str] = (0, "")
        """How many events wait for a checkpoint, and the first one's time."""

    def verify(self) -> None:
        """Read all files, and take down what is wrong.

        Raises:
            ReadError: if a file cannot be read.
        """
        previous: Path | None = None
        for file in self.chain.files:
            self._begin_file(file, previous)
            for line in read_lines(file):
                self._line(line)
            previous = file
        self._end()

    def _begin_file(self, file: Path, previous: Path | None) -> None:
        number, before = file_number(file), file_number(previous) if previous else None
        if number is None or previous is None or before is None:
            return
        if number != before + 1:
            self._find(file, 0, FindingKind.MISSING_FILE, f"{_names(before + 1, number - 1)} missing before it")
        elif self._last and self._last.kind is not Kind.LOG_ROTATED:
            self._find(
                file, 0, FindingKind.CUT_TAIL, f"the file before it, {previous.name}, does not end in its rotation"
            )

    def _line(self, line: Line) -> None:
        path, number = line.path, line.line
        if not line.whole:
            self._find(path, number, FindingKind.TORN_LINE, "the line does not end: a crash tore it, or it was cut")
        try:
            event, digest = parse(line.content)
        except EventError as error:
            if line.whole:
                self._find(path, number, FindingKind.CHANGED_LINE, f"no event as it was written: {error}")
            if self._last:
                self._last = self._last._replace(seq=self._last.seq + 1, hash=None, kind=None, path=path, line=number)
            else:
                self._last = _Last(0, None, "", None, path, number)
            return
        self.events += 1
        if self.site is None:
            self.site = event.site
            self.updates.of_log(event.site, cut=event.seq > 0)
            own = set(self.chain.files)
            self._held = {
                seq: others
                for seq, claims in self.claims.get(event.site, {}).items()
                if (others := [claim for claim in claims if claim.path not in own])
            }
        elif event.site != self.site:
            self._find(path, number, FindingKind.FOREIGN_LINE, f"of {event.site!r}, in the log of {self.site!r}")
        if self._follows(event, digest, path, number):
            self._clock(event, path, number)
            self._last = _Last(event.seq, digest, event.time, event.event, path, number)
        self._contradicted(event, digest, path, number)
        self._content(event, path, number)
        self.updates.add(event, path, number)

    def _follows(self, event: Event, digest: str, path: Path, line: int) -> bool:
        """Whether the event is now the last of the chain."""
        last = self._last
        if last is None:
            if event.seq:
                self._opening = event
            elif event.prev != FIRST_PREV:
                self._find(path, line, FindingKind.CHANGED_LINE, "the first event names one before it")
            return True
        first_of_file = path != last.path
        if event.seq == last.seq + 1:
            if last.hash is not None and event.prev != last.hash:
                if first_of_file:
                    detail = (
                        f"it does not follow from {last.path.name}: one of the two is not the file that was written"
                    )
                    self._find(path, line, FindingKind.REPLACED_FILE, detail)
                else:
                    detail = (
                        f"the line after it names another hash: event {last.seq} or the one after is not as written"
                    )
                    self._find(last.path, last.line, FindingKind.CHANGED_LINE, detail)
            return True
        if event.prev == last.hash:
            detail = f"numbered {event.seq}, at the place of event {last.seq + 1}"
            self._find(path, line, FindingKind.CHANGED_LINE, detail)
            self._last = _Last(last.seq + 1, digest, event.time, event.event, path, line)
            return False
        if event.seq > last.seq:
            if len(self._gaps) < MOST_FINDINGS:  # each later line that is out of its order is sought in them
                self._gaps[last.seq + 1] = (event.seq - 1, path, line)
            else:
                self._missing(last.seq + 1, event.seq - 1, path, line)
            return True
        if first_of_file:
            detail = f"it begins with event {event.seq}, after event {last.seq} in {last.path.name}"
            self._find(path, line, FindingKind.REPLACED_FILE, detail)
            return True
        gap = next((first for first, (end, *_) in self._gaps.items() if first <= event.seq <= end), None)
        if gap is None:
            detail = f"event {event.seq} again, after event {last.seq}"
            self._find(path, line, FindingKind.REPEATED_LINE, detail)
            return False
        self._find(path, line, FindingKind.SWAPPED_LINES, f"event {event.seq} stands after event {last.seq}")
        end, gap_path, gap_line = self._gaps.pop(gap)
        for first, final in ((gap, event.seq - 1), (event.seq + 1, end)):
            if first <= final:
                self._gaps[first] = (final, gap_path, gap_line)
        return False

    def _clock(self, event: Event, path: Path, line: int) -> None:
        if self._last and event.time < self._last.time and event.event is not Kind.CLOCK_STEPPED_BACK:
            detail = f"{event.time}, after {self._last.time}, and no {Kind.CLOCK_STEPPED_BACK.value} between"
            self._find(path, line, FindingKind.CLOCK_BACK, detail)

    def _contradicted(self, event: Event, digest: str, path: Path, line: int) -> None:
        for claim in self._held.get(event.seq, ()):
            if claim.root != digest:
                detail = (
                    f"event {event.seq} is not the one that {self.site!r} signed: {claim.holder!r} holds the "
                    f"checkpoint ({claim.path.name}:{claim.line})"
                )
                self._find(path, line, FindingKind.PEER_CHECKPOINT_MISMATCH, detail)

    def _content(self, event: Event, path: Path, line: int) -> None:
        """What single kinds of events have to hold."""
        kind = event.event
        if kind is Kind.CHECKPOINT:
            self._signed = True
            self._checkpoint(event, path, line)
            return
        count, since = self._unsigned
        self._unsigned = (count + 1, since or event.time)
        if since and moment(event.time) - moment(since) > LATE:
            self.warnings.add(path, line, FindingKind.CHECKPOINT_LATE, f"events since {since} wait for a checkpoint")
            self._unsigned = (count + 1, event.time)  # one warning for each such stretch
        if kind in _ANCHORED and event.outcome is Outcome.SUCCESS and event.peer is not None:
            anchored = self._anchored.get(event.peer)
            if anchored is None or moment(event.time) - moment(anchored) > LATE:
                detail = f"{kind.value} from {event.peer!r}, and no checkpoint of its log came with it"
                self.warnings.add(path, line, FindingKind.PEER_CHECKPOINT_MISSING, detail)
        if event.certificate is not None and kind in (Kind.SYSTEM_STARTED, Kind.CERTIFICATE_CHANGED):
            self._certificate = event.certificate
        elif kind is Kind.PEER_CHECKPOINT and event.outcome is Outcome.SUCCESS:
            held = event.checkpoint
            self._anchored[event.peer or ""] = event.time
            if held is None or held.site != event.peer:
                detail = f"it holds no checkpoint of {event.peer!r}"
                self._find(path, line, FindingKind.CHECKPOINT_MISMATCH, detail)
            elif self._signature(event, path, line) and abs(moment(event.time) - moment(held.time)) > LATE:
                detail = (
                    f"{held.site!r} signed it at {held.time}, and it came at {event.time}: an old one was sent again, "
                    f"or their clocks disagree"
                )
                self.warnings.add(path, line, FindingKind.PEER_CHECKPOINT_OLD, detail)
        elif kind is Kind.LOG_CUT and event.checkpoint is not None:
            if event.checkpoint.site != event.site:
                self._find(path, line, FindingKind.CHECKPOINT_MISMATCH, "a cut that another party signed")
            elif self._signature(event, path, line):
                self._cuts.setdefault((event.checkpoint.seq, event.checkpoint.root), event.time)
        elif kind is Kind.LOG_TORN:
            self._torn[event.reason or ""] = (path, line)

    def _checkpoint(self, event: Event, path: Path, line: int) -> None:
        own = event.checkpoint
        # The signature is over its own event's bytes as well if these say nothing else: else the last line is free.
        place = (event.site, event.seq - 1, event.prev, event.time)
        if (
            own is None
            or (own.site, own.seq, own.root, own.time) != place
            or event.outcome is not Outcome.SUCCESS
            or event.model_dump(exclude_none=True).keys() != _CHECKPOINT_FIELDS
        ):
            self._find(path, line, FindingKind.CHECKPOINT_MISMATCH, "it is not of the event before it, at its own time")
            return
        if not self._signature(event, path, line):
            return
        if self._certificate is not None and own.certificate != self._certificate:
            detail = f"signed with another certificate than before, and no {Kind.CERTIFICATE_CHANGED.value} between"
            self._find(path, line, FindingKind.WRONG_KEY, detail)
        self._certificate = own.certificate
        self.checkpoints += 1
        self._unsigned = (0, "")

    def _signature(self, event: Event, path: Path, line: int) -> bool:
        assert event.checkpoint is not None
        flaws = self.trust.flaws(event.checkpoint)
        for flaw in flaws:
            self._find(path, line, flaw.kind, flaw.detail)
        return not flaws

    def _end(self) -> None:
        last = self._last
        if last is None:
            self._find(self.chain.files[-1], 0, FindingKind.CUT_TAIL, "no event is in it")
            return
        opened_by_cut = self._check_opening()
        for first, (final, path, line) in self._gaps.items():
            self._missing(first, final, path, line)
        if last.kind is Kind.LOG_ROTATED:
            self._find(last.path, last.line, FindingKind.CUT_TAIL, "the file to which the log goes on is missing")
        later = [
            (seq, claim)
            for seq, claims in self._held.items()
            for claim in claims
            if seq > last.seq and claim.holder != self.site  # else it is an older copy beside a newer one
        ]
        if later:
            seq, claim = max(later)
            detail = (
                f"it ends with event {last.seq}, and {claim.holder!r} holds a checkpoint of event {seq}, signed by "
                f"{self.site!r} ({claim.path.name}:{claim.line})"
            )
            self._find(last.path, last.line, FindingKind.CUT_TAIL, detail)
        self._check_torn(opened_by_cut)
        if self.trust.root is not None and not self._signed:
            detail = f"no checkpoint is in it: nothing shows that {self.site!r} wrote it"
            self._find(last.path, 0, FindingKind.UNSIGNED_LOG, detail)
        count, _ = self._unsigned
        if count:
            detail = f"the last {count} events are held by no checkpoint" + (
                "" if self.checkpoints else ", nor any before"
            )
            self.warnings.add(last.path, last.line, FindingKind.UNSIGNED_TAIL, detail)

    def _check_opening(self) -> bool:
        """Whether the log begins at a signed cut; tells if it neither does nor begins with event 0."""
        path = self.chain.files[0]
        number = file_number(path)
        if self._opening is not None:
            first = self._opening
            cut = self._cuts.get((first.seq - 1, first.prev))
            if cut is not None:
                # A file ends in the moment in which the next one begins: so young was what the cut removed.
                if moment(cut) - moment(first.time) < SHORTEST_RETENTION:
                    detail = (
                        f"{_events(0, first.seq - 1)} missing before it: cut at {cut}, when the newest was of "
                        f"{first.time}, which is younger than any that retention removes"
                    )
                    self._find(path, 1, FindingKind.MISSING_LINES, detail)
                return True
            if number is None or number == 1:
                self._missing(0, first.seq - 1, path, 1)
        if number is not None and number > 1:
            detail = f"{_names(1, number - 1)} missing before it, and no signed {Kind.LOG_CUT.value} says why"
            self._find(path, 0, FindingKind.MISSING_FILE, detail)
        return False

    def _check_torn(self, opened_by_cut: bool) -> None:
        folder = self.chain.folder
        whole_log = self.chain.files == log_files(folder) and not opened_by_cut
        kept: dict[str, Path] = {}
        try:
            for file in folder.iterdir():
                if torn_number(file) is not None and file.is_file():
                    kept[torn_reason(file.name, file.read_bytes())] = file
        except OSError as error:
            raise ReadError(f"{folder}: {error.strerror}; run as an account that may read it") from None
        for reason, (path, line) in self._torn.items():
            if reason not in kept:
                self._find(path, line, FindingKind.TORN_LINE, f"the torn bytes are not kept as said: {reason!r}")
        for reason, file in kept.items():
            if reason not in self._torn and whole_log:
                detail = f"no {Kind.LOG_TORN.value} names it: the log's end was cut, or the file is another"
                self._find(file, 0, FindingKind.CUT_TAIL, detail)

    def _missing(self, first: int, final: int, path: Path, line: int) -> None:
        self._find(path, line, FindingKind.MISSING_LINES, f"{_events(first, final)} missing before it")

    def _find(self, path: Path, line: int, kind: FindingKind, detail: str) -> None:
        self.findings.add(path, line, kind, detail)


def _events(first: int, final: int) -> str:
    return f"event {first} is" if first == final else f"events {first} to {final} are"


def _names(first: int, final: int) -> str:
    return f"{file_name(first)} is" if first == final else f"{file_name(first)} to {file_name(final)} are"
