"""The server's jobs with the compliance log: who submitted and signed what, and how it ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import JobMetaKey, RunStatus

from fedad_components.approval.content import JobContent, UnsafeJob
from fedad_components.audit.event import Actor, Kind, Outcome
from fedad_components.config import NAME_PATTERN
from fedad_components.flare.approval import signers_of
from fedad_components.flare.audit import actor, audit, hashed, word

_PATHS = re.compile(r"(?:(?:config/)?config_fed_(?:server|client)\.json)|meta\.json")
"""Files that every job has, or may have; names of others can say anything."""


def submitter(meta: dict[str, Any]) -> Actor | None:
    """Who submitted a job, from its meta."""
    keys = (JobMetaKey.SUBMITTER_NAME, JobMetaKey.SUBMITTER_ORG, JobMetaKey.SUBMITTER_ROLE)
    return actor(*(meta.get(key.value) for key in keys))


def job_fields(meta: dict[str, Any]) -> dict[str, Any]:
    """What an event says of a job, from its meta; a name that is not plain, by its hash."""
    name = str(meta.get(JobMetaKey.JOB_NAME.value) or "")
    return {
        "actor": submitter(meta),
        "job_id": word(meta.get(JobMetaKey.JOB_ID.value)),
        "job_name": name if re.fullmatch(NAME_PATTERN, name) else hashed(name),
    }


def content_fields(app: str, archive: bytes, meta: dict[str, Any], root: Path) -> dict[str, Any]:
    """An app's digest, as a site approves it, the digest of each file, and whose signature it has.

    Args:
        app: its name in the job.
        archive: a ZIP file of it.
        meta: the job's.
        root: the consortium's root certificate.
    """
    try:
        content = JobContent.from_archive(app, archive, meta)
    except UnsafeJob:
        return {"reason": "content that no site takes"}
    files = {path if _PATHS.fullmatch(path) else hashed(path): sha for path, sha in content.file_digests.items()}
    return {"job_digest": content.digest, "files": files, "reason": _signers(archive, meta, root)}


def _signers(archive: bytes, meta: dict[str, Any], root: Path) -> str:
    names = signers_of(archive, root)
    if not names:
        return "not signed throughout under the consortium's root"
    if names == [meta.get(JobMetaKey.SUBMITTER_NAME.value)]:
        return "signed by its submitter"
    return f"signed by {', '.join(map(word, names[:5]))}, not by its submitter"


class RecordedJobs(SimpleJobDefManager):
    """FLARE's job manager; a job that the compliance log does not have is not accepted.

    It stands where FLARE knows who submits: its event SUBMIT_JOB comes before that.
    """

    def create(self, meta: dict[str, Any], uploaded_content: str | bytes, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a job, and write who submitted what."""
        created: dict[str, Any] = super().create(meta, uploaded_content, fl_ctx)
        self._write_submitted(created, fl_ctx)
        return created

    def clone(self, from_jid: str, meta: dict[str, Any], fl_ctx: FLContext) -> dict[str, Any]:
        """Store a copy of a job, and write who copied which."""
        cloned: dict[str, Any] = super().clone(from_jid, meta, fl_ctx)
        self._write_submitted(cloned, fl_ctx, reason=f"a clone of {word(from_jid)}")
        return cloned

    def _write_submitted(self, meta: dict[str, Any], fl_ctx: FLContext, **fields: str) -> None:
        job_id = meta[JobMetaKey.JOB_ID.value]
        try:
            record = audit(fl_ctx)
            if record.party:
                about = self._content(meta, record.party.kit, fl_ctx)
                record.write(Kind.JOB_SUBMITTED, **{**about, **fields, **job_fields(meta)})
        except Exception:
            self.delete(job_id, fl_ctx)  # FLARE tells the submitter that it was not accepted
            raise

    def _content(self, meta: dict[str, Any], kit: Path, fl_ctx: FLContext) -> dict[str, Any]:
        apps = list(meta.get(JobMetaKey.DEPLOY_MAP.value) or {})
        if len(apps) != 1:
            return {"reason": f"{len(apps)} apps: their digests are in the events of the sites"}
        job = self.get_job(meta[JobMetaKey.JOB_ID.value], fl_ctx)
        archive = self.get_app(job, apps[0], fl_ctx)
        return content_fields(apps[0], archive, meta, kit / "startup" / "rootCA.pem")

    def set_status(self, jid: str, status: RunStatus, fl_ctx: FLContext) -> None:
        """Store a job's status, and write that it was deployed, or how it ended."""
        super().set_status(jid, status, fl_ctx)
        value = RunStatus(status).value
        ended = value.startswith("FINISHED")
        if not ended and value != RunStatus.DISPATCHED.value:
            return
        completed = not ended or value == RunStatus.FINISHED_COMPLETED.value
        audit(fl_ctx).note(
            Kind.JOB_ENDED if ended else Kind.JOB_DEPLOYED,
            Outcome.SUCCESS if completed else Outcome.FAILED,
            job_id=word(jid),
            reason=None if completed else value,
        )
