"""The store of approvals: what holds after each step, after a crash at any moment, and after somebody's hand."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from approval_jobs import FILES, LEAD, META, archive, renewed

from fedad_components.approval import store
from fedad_components.approval.content import JobContent
from fedad_components.approval.store import ApprovalError, Approvals, State
from fedad_components.audit.event import Actor, Event, Outcome
from fedad_components.audit.log import AuditError, AuditLog
from fedad_components.audit.reading import read

SITE = "hospital-a"


@pytest.fixture
def approvals(tmp_path: Path) -> Approvals:
    return opened(tmp_path)


def opened(folder: Path) -> Approvals:
    """The store as another process opens it."""
    return Approvals(folder / "approvals", AuditLog(folder / "audit", SITE))


def job(number: int = 0, **meta: Any) -> JobContent:
    return JobContent.from_archive("app", archive(FILES), {**META, "name": f"job-{number}", **renewed(number), **meta})


def events(folder: Path) -> list[Event]:
    return [located.event for located in read([folder / "audit"])] if (folder / "audit").exists() else []


def receive(approvals: Approvals, content: JobContent) -> State:
    return approvals.receive(content, content.meta["job_id"])


def test_a_job_waits_runs_when_approved_and_not_when_rejected(approvals: Approvals, tmp_path: Path) -> None:
    assert approvals.entries() == []
    assert receive(approvals, job()) is State.PENDING
    assert receive(approvals, job()) is State.PENDING
    (entry,) = approvals.entries()
    assert (entry.request.times, entry.request.submitter, entry.state) == (2, LEAD, State.PENDING)
    assert entry.job().digest == job().digest == entry.digest

    decision = approvals.decide(entry, "approved", by="A. Reviewer", note="protocol 12")
    assert receive(opened(tmp_path), job()) is State.APPROVED
    assert receive(approvals, job(1)) is State.PENDING
    assert decision.by == "A. Reviewer"

    approvals.decide(approvals.find(entry.digest), "rejected", note="no vote")
    assert receive(approvals, job()) is State.REJECTED
    assert [old.state for old in approvals.find(entry.digest).decisions] == ["approved", "rejected"]


def test_every_step_is_an_event_without_the_reviewers_words(approvals: Approvals, tmp_path: Path) -> None:
    receive(approvals, job())
    approvals.decide(approvals.entries()[0], "approved", by="A. Reviewer", note="DOE^JANE said so")
    receive(approvals, job())
    told = events(tmp_path)
    assert [event.outcome for event in told] == [Outcome.REFUSED, Outcome.SUCCESS, Outcome.SUCCESS]
    assert {event.job_digest for event in told} == {job().digest}
    assert told[0].actor == Actor(name=LEAD)
    decision = approvals.folder / job().digest / "decision-0001.json"
    digest = hashlib.sha256(decision.read_bytes()).hexdigest()
    assert told[1].reason == f"approved by A. Reviewer; SHA-256 of decision-0001.json: {digest}"
    assert "DOE" not in "".join(path.read_text() for path in (tmp_path / "audit").iterdir())


def test_names_from_outside_cannot_write_sentences_into_the_log(approvals: Approvals, tmp_path: Path) -> None:
    content = job(name="Jane Doe\n[E:forged", submitter_name="Jane Doe")
    receive(approvals, content)
    (event,) = events(tmp_path)
    assert (event.job_name, event.actor) == (None, None)
    assert approvals.entries()[0].request.job_name == "Jane Doe [E:forged"


def test_everything_is_private(approvals: Approvals) -> None:
    receive(approvals, job())
    approvals.decide(approvals.entries()[0], "approved")
    for path in [approvals.folder, *approvals.folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("what", ["", "ab", "0" * 64, "no such job"])
def test_what_is_not_exactly_one_job_is_not_found(approvals: Approvals, what: str) -> None:
    receive(approvals, job())
    with pytest.raises(ApprovalError, match="0 jobs"):
        approvals.find(what)


def test_jobs_are_found_by_digest_its_beginning_and_job_id(approvals: Approvals) -> None:
    receive(approvals, job(1))
    receive(approvals, job(2))
    for content in (job(1), job(2)):
        for what in (content.digest, content.digest[:12], content.digest[:12].upper(), content.meta["job_id"]):
            assert approvals.find(what).digest == content.digest


def test_a_job_id_that_looks_like_another_jobs_digest_does_not_stand_for_it(approvals: Approvals) -> None:
    """A server chooses the ids of jobs."""
    wanted, other = job(1), job(2)
    receive(approvals, wanted)
    for what in (wanted.digest, wanted.digest[:12]):
        approvals.receive(other, what)
        assert approvals.find(what).digest == wanted.digest
    with pytest.raises(ApprovalError, match="0 jobs of this site; expected a digest or"):
        approvals.find(wanted.meta["job_id"], digest_only=True)


def test_a_copy_that_was_changed_is_not_approved(approvals: Approvals) -> None:
    receive(approvals, job())
    (entry,) = approvals.entries()
    config = entry.folder / "app" / "config" / "config_fed_client.json"
    config.write_bytes(config.read_bytes() + b" ")
    with pytest.raises(ApprovalError, match="not the job of this digest any more"):
        approvals.decide(entry, "approved")
    assert approvals.entries()[0].state is State.PENDING


def test_a_decision_on_what_somebody_else_has_decided_is_refused(approvals: Approvals) -> None:
    receive(approvals, job())
    (seen,) = approvals.entries()
    approvals.decide(seen, "rejected")
    with pytest.raises(ApprovalError, match="somebody else"):
        approvals.decide(seen, "approved")
    with pytest.raises(ApprovalError, match="already rejected"):
        approvals.decide(approvals.entries()[0], "rejected")


@pytest.mark.parametrize("texts", [{"note": "x" * 501}, {"by": "x" * 257}])
def test_texts_are_bounded(approvals: Approvals, texts: dict[str, str]) -> None:
    receive(approvals, job())
    with pytest.raises(ApprovalError, match="at most"):
        approvals.decide(approvals.entries()[0], "approved", **texts)


def test_nobody_fills_the_disk(approvals: Approvals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_PENDING", 2)
    receive(approvals, job(1))
    receive(approvals, job(2))
    with pytest.raises(ApprovalError, match="2 jobs wait"):
        receive(approvals, job(3))
    approvals.decide(approvals.find(job(1).digest), "rejected")
    assert receive(approvals, job(3)) is State.PENDING


class PowerCut(BaseException):
    """Nothing catches it."""


@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_any_step_leaves_a_usable_store_and_approves_nothing(
    approvals: Approvals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Of arrival and approval; a step is a file that gets its name."""
    left = step
    replace = os.replace

    def counted(*paths: Any) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1
        replace(*paths)

    monkeypatch.setattr(os, "replace", counted)
    done = False
    try:
        receive(approvals, job())
        approvals.decide(approvals.entries()[0], "approved")
        done = True
    except PowerCut:
        pass
    monkeypatch.setattr(os, "replace", replace)
    again = opened(tmp_path)
    assert receive(again, job()) is (State.APPROVED if done else State.PENDING)
    if not done:
        again.decide(again.entries()[0], "approved")
    assert receive(again, job()) is State.APPROVED
    assert {path.name for path in again.folder.iterdir()} == {job().digest}


def test_the_crash_test_reaches_the_end(approvals: Approvals, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its steps are all there are."""
    names: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (names.append(str(target)), replace(source, target)))
    receive(approvals, job())
    approvals.decide(approvals.entries()[0], "approved")
    assert 0 < len(names) < 12


def test_what_cannot_be_logged_does_not_happen(approvals: Approvals, monkeypatch: pytest.MonkeyPatch) -> None:
    receive(approvals, job())
    (entry,) = approvals.entries()

    def fail(*arguments: Any, **fields: Any) -> None:
        raise AuditError("no room")

    monkeypatch.setattr(AuditLog, "write", fail)
    with pytest.raises(AuditError):
        approvals.decide(entry, "approved")
    with pytest.raises(AuditError):
        receive(approvals, job(1))
    assert [(known.digest, known.state) for known in approvals.entries()] == [(job().digest, State.PENDING)]


def _remove_decision(folder: Path) -> None:
    (folder / "decision-0001.json").unlink()


def _approve_by_hand(folder: Path) -> None:
    content = json.loads((folder / "decision-0002.json").read_text())
    (folder / "decision-0003.json").write_text(json.dumps({**content, "state": "yes"}))


def _take_anothers(folder: Path) -> None:
    content = json.loads((folder / "decision-0001.json").read_text())
    (folder / "decision-0003.json").write_text(json.dumps({**content, "digest": "0" * 64}))


def _cut(folder: Path) -> None:
    path = folder / "decision-0002.json"
    path.write_bytes(path.read_bytes()[:40])


def _link(folder: Path) -> None:
    (folder / "decision-0003.json").symlink_to(folder / "decision-0001.json")


def _open(folder: Path) -> None:
    folder.parent.chmod(0o755)


@pytest.mark.parametrize("damage", [_remove_decision, _approve_by_hand, _take_anothers, _cut, _link, _open])
def test_a_damaged_store_runs_nothing_and_names_the_place(approvals: Approvals, damage: Any) -> None:
    receive(approvals, job())
    approvals.decide(approvals.entries()[0], "approved")
    approvals.decide(approvals.entries()[0], "rejected")
    damage(approvals.folder / job().digest)
    with pytest.raises(ApprovalError, match="approvals"):
        receive(approvals, job())
