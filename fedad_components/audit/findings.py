"""What verification says: the words for each kind of finding, and the whole answer."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from pydantic import BaseModel

MOST_FINDINGS = 1000
"""More are counted only: a file of noise must not fill the memory."""


class FindingKind(str, Enum):
    """What is wrong."""

    CHANGED_LINE = "changed_line"
    MISSING_LINES = "missing_lines"
    REPEATED_LINE = "repeated_line"
    SWAPPED_LINES = "swapped_lines"
    FOREIGN_LINE = "foreign_line"
    """Of another party."""
    TORN_LINE = "torn_line"
    """Not ended; or the file that keeps a torn line's bytes is not what the log says."""
    CUT_TAIL = "cut_tail"
    MISSING_FILE = "missing_file"
    REPLACED_FILE = "replaced_file"
    """Sound in itself, and it does not follow from the file before."""
    CLOCK_BACK = "clock_back"
    """Without the event that says so."""
    BAD_SIGNATURE = "bad_signature"
    WRONG_KEY = "wrong_key"
    """Not under the root, issued to another name, or changed without the event that says so."""
    EXPIRED_CERTIFICATE = "expired_certificate"
    """At the time of the signature."""
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    """A checkpoint is not of the place where it stands."""
    PEER_CHECKPOINT_MISMATCH = "peer_checkpoint_mismatch"
    """A peer holds a signed checkpoint that this log contradicts."""
    UPDATE_NEVER_SENT = "update_never_sent"
    """The server counted it, or a second one for the same task, and the site's log does not have it."""
    UPDATE_NOT_RECORDED = "update_not_recorded"
    """The site sent it, or the server counted it, and the server's log does not have its arrival; or an event does not
    say of which update it is."""
    COUNTS_DIFFER = "counts_differ"
    """The counts of patients beside an update are others, more or fewer in the server's log than in the site's."""
    UNSIGNED_LOG = "unsigned_log"
    """No checkpoint at all, where certificates are to be checked: anybody can write such a log."""
    MORE = "more"
    """Findings beyond MOST_FINDINGS."""
    LOG_NOT_GIVEN = "log_not_given"
    """A warning: peers hold a party's checkpoints, and its log is not among those that were read."""
    PEER_CHECKPOINT_OLD = "peer_checkpoint_old"
    """A warning: a peer sent a checkpoint of another time than when it came; what it wrote since is not anchored."""
    PEER_CHECKPOINT_MISSING = "peer_checkpoint_missing"
    """A warning: a task or an update was taken, and no checkpoint of its sender was kept."""
    CHECKPOINT_LATE = "checkpoint_late"
    """A warning: events went on for long without a checkpoint."""
    UNSIGNED_TAIL = "unsigned_tail"
    """A warning: events after the last checkpoint are held by the chain alone, and the last one by nothing."""


class Finding(BaseModel):
    """One thing that is wrong, and where."""

    file: str
    line: int
    """From 1; 0 for the file as a whole."""
    kind: FindingKind
    detail: str


class Verification(BaseModel):
    """The answer."""

    verified: bool
    """No findings; warnings do not count."""
    events: int
    files: list[str]
    sites: list[str]
    """Whose logs they are."""
    checkpoints: int
    """The logs' own whose signature holds."""
    root_checked: bool
    """Certificates were checked against a root; if not, each log vouches for its own."""
    findings: list[Finding]
    warnings: list[Finding]


class Findings:
    """Collects, at most one of a kind for a line."""

    def __init__(self) -> None:
        self.all: list[Finding] = []
        self._seen: set[tuple[Path, int, FindingKind]] = set()
        self._left_out = 0

    def add(self, path: Path, line: int, kind: FindingKind, detail: str) -> None:
        """Take one down."""
        key = (path, line, kind)
        if key in self._seen:
            return
        if len(self._seen) >= MOST_FINDINGS:
            self._left_out += 1
            return
        self._seen.add(key)
        self.all.append(Finding(file=str(path), line=line, kind=kind, detail=detail))

    def result(self) -> list[Finding]:
        """All, by file and line."""
        found = sorted(self.all, key=lambda finding: (finding.file, finding.line))
        if self._left_out:
            detail = f"{self._left_out} findings more were left out"
            found.append(Finding(file="", line=0, kind=FindingKind.MORE, detail=detail))
        return found
