"""The server's jobs in its log: who submitted which content, signed by whom, and how it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kits import SERVER, break_log, context, make_kit, written
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from parties import Authority

from fedad_components.approval.content import JobContent
from fedad_components.audit.event import Kind, Outcome
from fedad_components.audit.log import AuditError
from fedad_components.flare.audit import hashed
from fedad_components.flare.audit_jobs import RecordedJobs

META = {
    "name": "fedad_job",
    "job_id": "8dc93276-ba81-427a-b95b-659f14598f17",
    "deploy_map": {"app": ["@ALL"]},
    "submitter_name": "lead@a.org",
    "submitter_org": "Hospital A",
    "submitter_role": "lead",
}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return make_kit(tmp_path, Authority(), SERVER)


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    config = tmp_path / "app" / "config"
    config.mkdir(parents=True)
    (config / "config_fed_server.json").write_text(json.dumps({"format_version": 2}))
    (config / "DOE_JANE.json").write_text("{}")
    return zip_directory_to_bytes(str(tmp_path / "app"), "")


@pytest.fixture
def jobs(tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> RecordedJobs:
    kept: dict[str, Any] = {}

    def create(self: Any, meta: dict[str, Any], content: Any, fl_ctx: FLContext) -> dict[str, Any]:
        kept[meta["job_id"]] = meta
        return meta

    monkeypatch.setattr(SimpleJobDefManager, "create", create)
    monkeypatch.setattr(SimpleJobDefManager, "clone", lambda self, jid, meta, fl_ctx: create(self, meta, None, fl_ctx))
    monkeypatch.setattr(SimpleJobDefManager, "get_job", lambda self, jid, fl_ctx: kept.get(jid))
    monkeypatch.setattr(SimpleJobDefManager, "get_app", lambda self, job, app, fl_ctx: archive)
    monkeypatch.setattr(SimpleJobDefManager, "delete", lambda self, jid, fl_ctx: kept.pop(jid))
    monkeypatch.setattr(SimpleJobDefManager, "set_status", lambda self, jid, status, fl_ctx: None)
    manager = RecordedJobs(uri_root=str(tmp_path / "jobs"))
    manager.kept = kept  # type: ignore[attr-defined]
    return manager


def test_a_submitted_job(jobs: RecordedJobs, server: Path, archive: bytes) -> None:
    jobs.create(dict(META), "upload", context(server))
    (event,) = written(server)
    assert (event.event, event.job_id, event.job_name) == (Kind.JOB_SUBMITTED, META["job_id"], "fedad_job")
    assert event.actor
    assert (event.actor.name, event.actor.org, event.actor.role) == ("lead@a.org", "Hospital A", "lead")
    content = JobContent.from_archive("app", archive, META)
    assert event.job_digest == content.digest  # by which a site approves it
    assert event.reason == "not signed throughout under the consortium's root"
    assert event.files
    assert event.files.keys() == {"config/config_fed_server.json", hashed("config/DOE_JANE.json")}
    assert set(event.files.values()) == set(content.file_digests.values())


@pytest.mark.parametrize("name", ["DOE^JANE 4711", "", "x\n[E:"])
def test_a_name_that_is_not_plain_is_a_hash(jobs: RecordedJobs, server: Path, name: str) -> None:
    jobs.create({**META, "name": name}, "upload", context(server))
    assert written(server)[0].job_name == hashed(name)


def test_a_job_that_cannot_be_written_is_not_accepted(jobs: RecordedJobs, server: Path) -> None:
    break_log(server)
    with pytest.raises(AuditError):
        jobs.create(dict(META), "upload", context(server))
    assert jobs.kept == {}  # type: ignore[attr-defined]


def test_a_clone_says_of_what(jobs: RecordedJobs, server: Path) -> None:
    jobs.clone(META["job_id"], dict(META), context(server))  # type: ignore[arg-type]
    assert written(server)[0].reason == f"a clone of {META['job_id']}"


def test_content_that_no_site_takes(jobs: RecordedJobs, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimpleJobDefManager, "get_app", lambda self, job, app, fl_ctx: b"no archive")
    jobs.create(dict(META), "upload", context(server))
    (event,) = written(server)
    assert (event.reason, event.files) == ("content that no site takes", None)


@pytest.mark.parametrize(
    ("status", "kind", "outcome", "reason"),
    [
        (RunStatus.DISPATCHED, Kind.JOB_DEPLOYED, Outcome.SUCCESS, None),
        (RunStatus.FINISHED_COMPLETED, Kind.JOB_ENDED, Outcome.SUCCESS, None),
        (RunStatus.FINISHED_ABORTED, Kind.JOB_ENDED, Outcome.FAILED, "FINISHED:ABORTED"),
        (RunStatus.FAILED_TO_RUN, Kind.JOB_ENDED, Outcome.FAILED, "FINISHED:FAILED_TO_RUN"),
        (RunStatus.ABANDONED, Kind.JOB_ENDED, Outcome.FAILED, "FINISHED:ABANDONED"),
    ],
)
def test_how_it_went_on(
    jobs: RecordedJobs, server: Path, status: RunStatus, kind: Kind, outcome: Outcome, reason: str | None
) -> None:
    jobs.set_status(META[JobMetaKey.JOB_ID.value], RunStatus.RUNNING, context(server))  # type: ignore[arg-type]
    jobs.set_status(META[JobMetaKey.JOB_ID.value], status, context(server))  # type: ignore[arg-type]
    (event,) = written(server)
    assert (event.event, event.outcome, event.reason) == (kind, outcome, reason)
