"""The deployer of a site's parent process: a job whose digest no reviewer of this site has approved is not deployed.

FLARE 2.9 sends a job's content to a site only with the command that deploys it, waits seconds for the answer, and does
not ask again. So a job that needs approval is refused once, with a copy for the reviewer; the operator submits the same
job again after the approval.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobLauncherSpec, add_launcher
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.fed.utils.app_deployer import AppDeployer

from fedad_components.approval.content import JobContent, UnsafeJob
from fedad_components.approval.store import ApprovalError, Approvals, State
from fedad_components.audit.log import AuditError
from fedad_components.flare.audit import party_of
from fedad_components.flare.site import SiteError, SitePaths, SitePolicy
from fedad_components.wire import shown

UNUSABLE = "this site could not look into its approvals, and runs nothing meanwhile: its log says why"
REPLIES = {
    State.PENDING: "held until this site's reviewer approves job digest {digest}; submit the same job again then",
    State.REJECTED: "this site's reviewer has rejected job digest {digest}",
}
"""What the operator reads of a job that is not deployed."""


def approvals_of(kit: str | Path) -> Approvals:
    """The store of a site's kit, which logs to the site's compliance log.

    Raises:
        AuditError: if the kit has no usable key and certificate.
    """
    return Approvals(SitePaths.of_kit(kit).approvals, party_of(Path(kit).resolve()).log)


class JobApproval(FLComponent, AppDeployer):
    """FLARE's deployer with two questions before it, and one of them again before the job's process starts.

    Is the job signed by whom the server names as its submitter? Has a reviewer of this site approved exactly it, where
    the site's policy requires that? A component of ``resources.json``, by the id under which FLARE seeks a deployer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._deployed: dict[str, JobContent] = {}
        """By job id, since the site started."""

    def deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str | None:
        """FLARE's hook; what it returns is the reason of a refusal, which the operator reads."""
        kit = Path(workspace.get_root_dir())
        self._deployed.pop(job_id, None)
        try:
            refusal = self._refusal(kit, job_id, job_meta, app_name, app_data)
        except (ApprovalError, AuditError, SiteError, OSError) as error:
            self.logger.error(f"job {shown(job_id)} is not deployed: {error}")
            return UNUSABLE
        if refusal:
            self.logger.warning(f"job {shown(job_id)} is not deployed: {refusal}")
            return refusal
        answer: str | None = super().deploy(workspace, job_id, job_meta, app_name, app_data, fl_ctx)
        return answer

    def _refusal(self, kit: Path, job_id: str, meta: dict[str, Any], app: str, archive: bytes) -> str:
        required = SitePolicy.load(SitePaths.of_kit(kit).policy).require_approval
        approvals = approvals_of(kit)
        try:
            content = JobContent.from_archive(app, archive, meta) if required else None
            _check_signer(archive, meta, kit / "startup" / "rootCA.pem")
            digest = content.digest if content else ""
        except UnsafeJob as error:
            approvals.log_unsafe(error, job_id, meta)
            return f"refused: {error}"
        if content is None:
            return ""
        state = approvals.receive(content, job_id)
        if state is State.APPROVED:
            self._deployed[job_id] = content
            return ""
        return REPLIES[state].format(digest=digest)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """The server starts a job with a command of its own, and with the meta anew.

        FLARE swallows what a handler raises, but it starts nothing where two launchers offer to.
        """
        if event_type == EventType.BEFORE_JOB_LAUNCH:
            try:
                refusal = self._launch_refusal(fl_ctx)
            except Exception as error:  # whatever it is, nothing may start
                refusal = f"{error}"
            if refusal:
                self.logger.error(f"a job is not started: {refusal}")
                add_launcher(_NoLauncher(), fl_ctx)

    def _launch_refusal(self, fl_ctx: FLContext) -> str:
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT))
        if not SitePolicy.load(SitePaths.of_kit(kit).policy).require_approval:
            return ""
        meta = fl_ctx.get_prop(FLContextKey.JOB_META)
        job_id = meta.get(JobMetaKey.JOB_ID.value)
        content = self._deployed.get(job_id)
        if content is None:
            return f"job {shown(job_id)} was not deployed since this site started"
        if dataclasses.replace(content, meta=meta).digest != content.digest:
            return f"job {shown(job_id)}: its meta is not that with which it was deployed"
        entry = approvals_of(kit).entry(content.digest)
        if entry is None or entry.state is not State.APPROVED:
            return f"job {shown(job_id)}: its approval was withdrawn"
        return ""


class _NoLauncher(JobLauncherSpec):
    """Starts nothing, and keeps FLARE from asking another."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        raise RuntimeError("this site does not start the job: its log says why")


def signers_of(archive: bytes, root: Path) -> list[str]:
    """Who signed an app throughout, under the consortium's root, by name; nobody if a file is not signed.

    Raises:
        UnsafeJob: if the archive cannot be unpacked.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            unzip_all_from_bytes(archive, folder)
        except Exception as error:  # as in FLARE's own deployer
            raise UnsafeJob("an archive that cannot be read whole", type(error).__name__) from None
        verified, signers = verify_folder_signature_and_get_signers(folder, str(root))
    return sorted({name for name, *_ in signers}) if verified else []


def _check_signer(archive: bytes, meta: dict[str, Any], root: Path) -> None:
    """FLARE only asks whether somebody of the consortium has signed.

    Raises:
        UnsafeJob: if it is not one signer, or another one than the submitter.
    """
    signers = signers_of(archive, root)
    if len(signers) != 1:
        raise UnsafeJob("not signed, throughout and by one person, with a certificate of this consortium")
    signer, submitter = signers[0], meta.get(JobMetaKey.SUBMITTER_NAME.value)
    if signer != submitter:
        raise UnsafeJob(
            "signed by somebody else than its submitter", f"signer {shown(signer)}, submitter {shown(submitter)}"
        )
