"""The jobs that a site has received for approval, and its reviewers' decisions.

``<kit>/local/fedad/approvals/`` (0700) has a folder for each digest: ``job/``, what the site received;
``request.json``, when and from whom; ``decision-0001.json`` and so on, of which the last holds. A job without a
decision is pending. Nothing is deleted, every file is whole or not there, and each step is an event of the compliance
log first: what cannot be logged does not happen.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.approval.content import JobContent, UnsafeJob
from fedad_components.audit.access import ACCOUNT, account_name
from fedad_components.audit.event import LONGEST_NAME, PLAIN_WORD, Actor, Count, Digest, Kind, Outcome, Time, now
from fedad_components.audit.log import AuditLog
from fedad_components.files import alone_in, make_private_dir, sync_folder, write_atomic

FOLDER = "approvals"
MOST_PENDING = 50
"""Jobs that wait; more are refused, so that nobody fills the site's disk."""
LONGEST_NOTE = 500
SHORTEST_PREFIX = 12

_REQUEST, _JOB, _NEW = "request.json", "job", ".new-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DECISION = re.compile(r"decision-(\d{4})\.json")


class ApprovalError(ValueError):
    """A decision or a store that cannot be used; the message says what was expected, and the fix."""


class State(str, Enum):
    """Where a job stands at this site."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text).strip()


def _word(text: object) -> str | None:
    """A name from outside, as it may stand in the log: nothing that could be a sentence."""
    return text if isinstance(text, str) and PLAIN_WORD.fullmatch(text) else None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    version: Literal[1] = 1
    digest: Digest

    def content(self) -> bytes:
        """As it is in its file."""
        return self.model_dump_json(indent=2).encode("utf-8")


Text = Annotated[str, Field(max_length=LONGEST_NAME)]


class Request(_File):
    """A job that came."""

    app: Text
    job_name: Text
    submitter: Text
    first_time: Time
    last_time: Time
    last_job_id: Text
    times: Count


class Decision(_File):
    """What a reviewer decided."""

    state: Literal["approved", "rejected"]
    time: Time
    account: Text
    """Of the operating system."""
    by: Text
    """As the reviewer gave the name."""
    note: Annotated[str, Field(max_length=LONGEST_NOTE)]
    """The reviewer's own words; they stay in this file."""


@dataclass(frozen=True)
class Entry:
    """A job of the store; ``folder`` has the copy."""

    request: Request
    decisions: tuple[Decision, ...]
    folder: Path

    @property
    def digest(self) -> str:
        """Of the job."""
        return self.request.digest

    @property
    def state(self) -> State:
        """By the last decision."""
        return State(self.decisions[-1].state) if self.decisions else State.PENDING

    def job(self) -> JobContent:
        """The copy, which is still the job of the digest.

        Raises:
            ApprovalError: if it is not.
        """
        try:
            content = JobContent.from_folder(self.request.app, self.folder)
            if content.digest == self.digest:
                return content
            problem = "it is not the job of this digest any more"
        except (UnsafeJob, OSError) as error:
            problem = f"{error}"
        raise ApprovalError(
            f"{self.folder}: {problem}. Do not approve it: move the folder {self.folder.parent} away, and have the job "
            f"submitted again"
        )


class Approvals:
    """The store of one site. Any number of processes may use it at once.

    Args:
        folder: ``<kit>/local/fedad/approvals``; made when the first job comes.
        log: the site's compliance log.
    """

    def __init__(self, folder: str | Path, log: AuditLog) -> None:
        self.folder = Path(folder)
        self._log = log

    def entries(self) -> list[Entry]:
        """Every job, in the order in which they came first.

        Raises:
            ApprovalError: if the store is damaged, or others may write it.
        """
        if not self._usable():
            return []
        found = [_entry(path) for path in self.folder.iterdir() if _DIGEST.fullmatch(path.name)]
        return sorted(found, key=lambda entry: (entry.request.first_time, entry.digest))

    def entry(self, digest: str) -> Entry | None:
        """The job of a digest; None if it never came.

        Raises:
            ApprovalError: as :meth:`entries`.
        """
        folder = self.folder / digest
        return _entry(folder) if self._usable() and os.path.lexists(folder) else None

    def find(self, what: str, *, digest_only: bool = False) -> Entry:
        """The job of a digest, of its first characters, or of a FLARE job id.

        The server chooses the ids, and may give a job's id to another: so a digest goes before an id that looks like
        one, and nothing is approved by its id.

        Raises:
            ApprovalError: if it is not exactly one; and as :meth:`entries`.
        """
        entries = self.entries()
        found = [
            entry for entry in entries if len(what) >= SHORTEST_PREFIX and entry.digest.startswith(what.lower())
        ] or [entry for entry in entries if entry.request.last_job_id == what and not digest_only]
        if len(found) != 1:
            raise ApprovalError(
                f"{what!r}: {len(found)} jobs of this site; expected {'' if digest_only else 'a job id, or '}a digest "
                f"or its first {SHORTEST_PREFIX} characters or more, as `fedad site review KIT --all` lists them"
            )
        return found[0]

    def receive(self, content: JobContent, job_id: str) -> State:
        """Take down that a job came, with a copy for the reviewer if it is new; its state.

        Raises:
            ApprovalError: if too many jobs wait, or the store is damaged.
            AuditError: if it cannot be logged.
            OSError: if it cannot be written.
        """
        make_private_dir(self.folder)
        with alone_in(self.folder):
            known = self.entry(content.digest)
            if known is None:
                pending = sum(entry.state is State.PENDING for entry in self.entries())
                if pending >= MOST_PENDING:
                    raise ApprovalError(f"{self.folder}: {pending} jobs wait: approve or reject some")
            state = known.state if known else State.PENDING
            self._log_received(state, content, job_id)
            first = known.request if known else None
            request = Request(
                digest=content.digest,
                app=content.app,
                job_name=_one_line(content.job_name)[:LONGEST_NAME],
                submitter=_one_line(content.submitter)[:LONGEST_NAME],
                first_time=first.first_time if first else now(),
                last_time=now(),
                last_job_id=job_id[:LONGEST_NAME],
                times=first.times + 1 if first else 1,
            )
            if known:
                write_atomic(known.folder.parent / _REQUEST, request.content())
            else:
                self._add(content, request)
            return state

    def log_unsafe(self, error: UnsafeJob, job_id: str, meta: Mapping[str, Any]) -> None:
        """The event that a job came about which no reviewer is asked.

        Raises:
            AuditError: if it was not written.
        """
        submitter = _word(meta.get("submitter_name"))
        self._log.write(
            Kind.JOB_APPROVAL,
            Outcome.REFUSED,
            actor=Actor(name=submitter) if submitter else None,
            job_id=_word(job_id),
            job_name=_word(meta.get("name")),
            reason=f"refused: {error.problem}",
        )

    def _log_received(self, state: State, content: JobContent, job_id: str) -> None:
        """The event that this job met this state when it was to be deployed."""
        reasons = {
            State.PENDING: "held: no reviewer of this site has decided on it",
            State.APPROVED: "deployed: approved by this site's reviewer",
            State.REJECTED: "refused: rejected by this site's reviewer",
        }
        submitter = _word(content.submitter)
        self._log.write(
            Kind.JOB_APPROVAL,
            Outcome.SUCCESS if state is State.APPROVED else Outcome.REFUSED,
            actor=Actor(name=submitter) if submitter else None,
            job_id=_word(job_id),
            job_name=_word(content.job_name),
            job_digest=content.digest,
            reason=reasons[state],
        )

    def decide(self, entry: Entry, state: Literal["approved", "rejected"], *, by: str = "", note: str = "") -> Decision:
        """A reviewer's decision; it replaces an earlier one, which stays on file.

        Args:
            entry: from :meth:`find`.
            state: the decision.
            by: the reviewer's name; by default the account's.
            note: the reviewer's words, at most ``LONGEST_NOTE`` characters. They stay at the site, in this store.

        Raises:
            ApprovalError: if the copy is not the digest's job any more, another decision came meanwhile or is the
                same, or a text is too long.
            AuditError: if it cannot be logged. Nothing is decided, then.
            OSError: if it cannot be written.
        """
        content = entry.job()
        account = account_name()
        try:
            decision = Decision(
                digest=entry.digest,
                state=state,
                time=now(),
                account=account,
                by=_one_line(by) or account,
                note=_one_line(note),
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise ApprovalError(f"{first['loc'][0]}: {first['msg']}") from None
        with alone_in(self.folder):
            current = self.entry(entry.digest)
            if current is None or current.decisions != entry.decisions:
                raise ApprovalError(f"{entry.digest[:12]}…: somebody else has just decided: review it again")
            if entry.decisions and entry.state is State(state):
                last = entry.decisions[-1]
                raise ApprovalError(f"{entry.digest[:12]}…: already {state}, by {last.by!r} at {last.time}")
            name = f"decision-{len(entry.decisions) + 1:04d}.json"
            self._log.write(
                Kind.JOB_APPROVAL,
                Outcome.SUCCESS if state == "approved" else Outcome.REFUSED,
                actor=Actor(name=account, role=ACCOUNT),
                job_id=_word(entry.request.last_job_id),
                job_name=_word(content.job_name),
                job_digest=entry.digest,
                reason=f"{state} by {decision.by}; SHA-256 of {name}: {_sha256(decision.content())}",
            )
            write_atomic(entry.folder.parent / name, decision.content())
        return decision

    def _add(self, content: JobContent, request: Request) -> None:
        """A new job's folder, all of it or nothing."""
        for leftover in self.folder.glob(f"{_NEW}*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(leftover)
        new = make_private_dir(self.folder / f"{_NEW}{request.digest}")
        content.write(new / _JOB)
        write_atomic(new / _REQUEST, request.content())
        os.replace(new, self.folder / request.digest)
        sync_folder(self.folder)

    def _usable(self) -> bool:
        """Whether the store is there."""
        if not os.path.lexists(self.folder):
            return False
        status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            raise ApprovalError(f"{self.folder}: expected a folder, no link, that only its owner may use: chmod 700 it")
        return True


def _entry(folder: Path) -> Entry:
    request = _load(Request, folder / _REQUEST)
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := _DECISION.fullmatch(path.name)))
    if numbers != list(range(1, len(numbers) + 1)):
        _damaged(folder, "a decision is missing")
    decisions = tuple(_load(Decision, folder / f"decision-{number:04d}.json") for number in numbers)
    if {request.digest, *(decision.digest for decision in decisions)} != {folder.name}:
        _damaged(folder, "files of another digest")
    return Entry(request, decisions, folder / _JOB)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_Loaded = TypeVar("_Loaded", Request, Decision)


def _load(kind: type[_Loaded], path: Path) -> _Loaded:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return kind.model_validate_json(file.read(1 << 20))
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        _damaged(path, str(problem))


def _damaged(path: Path, problem: str) -> NoReturn:
    raise ApprovalError(
        f"{path}: {problem}: jobs are refused until this is resolved: restore local/fedad/approvals from a "
        f"backup, or move the digest's folder away and have its job submitted and reviewed again"
    )
