"""The compliance log of a parent process, at a site and at the server: what starts, with which files, and its jobs."""

from __future__ import annotations

import atexit
import json
import platform
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes

from fedad_components.audit.checkpoint import EVERY_SECONDS, due, write_checkpoint
from fedad_components.audit.ending import AuditError
from fedad_components.audit.event import Event, EventError, Kind, Outcome, Policy, parse
from fedad_components.audit.keys import check_certificate
from fedad_components.audit.reading import lines_backwards, log_files
from fedad_components.files import sha256_of
from fedad_components.flare.audit import Party, Record, party_of, word
from fedad_components.flare.audit_access import record_commands, record_sign_ins, record_sites
from fedad_components.flare.audit_jobs import content_fields, job_fields
from fedad_components.flare.site import SitePaths

RECORDER_ID = "fedad_audit"
POLL_SECONDS = 15.0
"""Between two looks whether a checkpoint is due."""
_PACKAGES = ("nvflare", "torch", "torchvision", "cryptography", "grpcio", "pydantic", "opacus")


class BadCertificate(RuntimeError):
    """A kit whose own certificate nobody in the consortium will accept; the message says why and what to do."""


class AuditRecorder(FLComponent):
    """Keeps the compliance log of the parent process; a component of ``resources.json``, at sites and at the server.

    FLARE builds it before it connects, in the kit's folder. A certificate that no peer would accept ends the process
    there, with an event and a message: FLARE would try to connect for ever without a word.

    Raises:
        BadCertificate: if the kit's certificate has expired, is not under its root, or names somebody else.
        AuditError: if the kit has no usable key: it has no log, so nothing may happen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()
        kit = SitePaths.of_kit(Path.cwd()).kit
        self._party = party_of(kit) if kit is not None else None
        self._record = Record(self._party, {})
        if self._party:
            _check_certificate(self._party)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE swallows what is raised here: what must not happen without the log is refused elsewhere."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._start(fl_ctx)
        elif event_type == EventType.SYSTEM_END:
            self._stop()
        elif event_type == EventType.BEFORE_JOB_LAUNCH and self._party and self._party.is_site:
            self._job_deployed(self._party, fl_ctx.get_prop(FLContextKey.JOB_META) or {})
        elif event_type == EventType.JOB_COMPLETED and self._party:
            if self._party.is_site:  # the server's jobs are written by RecordedJobs
                job_id = word(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID))
                self._record.note(Kind.JOB_ENDED, Outcome.SUCCESS, job_id=job_id)
            self._sign(self._party)

    def _start(self, fl_ctx: FLContext) -> None:
        if self._party is None:
            return
        record_commands(self._record)
        if not self._party.is_site:
            record_sign_ins(self._record)
            record_sites(fl_ctx.get_prop(FLContextKey.SITE_OBJ).client_manager, self._record)
        atexit.register(self._stop)
        try:
            write_start(self._party)
        except AuditError as error:
            self.logger.critical(f"{error}. Until then commands, tasks and results are refused")
        threading.Thread(target=self._keep_checkpoints, args=(self._party,), daemon=True).start()

    def _stop(self) -> None:
        if self._party and not self._ended.is_set():
            self._ended.set()
            self._record.note(Kind.SYSTEM_STOPPED, Outcome.SUCCESS)
            self._sign(self._party)

    def _keep_checkpoints(self, party: Party) -> None:
        """Sign the log every five minutes while it moves."""
        while not self._ended.wait(POLL_SECONDS):
            self._sign(party, every_seconds=EVERY_SECONDS)

    def _sign(self, party: Party, every_seconds: float = 0.0) -> None:
        """Sign the log as it is, unless that was done within the last ``every_seconds``."""
        try:
            if due(party.log, every_seconds):
                write_checkpoint(party.log, party.signer)
        except (AuditError, OSError) as error:
            self.logger.error(f"no checkpoint of the compliance log: {error}")

    def _job_deployed(self, party: Party, meta: dict[str, Any]) -> None:
        apps = list(meta.get(JobMetaKey.DEPLOY_MAP.value) or {})
        about: dict[str, Any] = {}
        if len(apps) == 1:
            workspace = Workspace(str(party.kit), party.signer.name)
            archive = zip_directory_to_bytes(workspace.get_app_dir(meta[JobMetaKey.JOB_ID.value]), "")
            about = content_fields(apps[0], archive, meta, party.kit / "startup" / "rootCA.pem")
        self._record.write(Kind.JOB_DEPLOYED, **about, **job_fields(meta))


# -- the party's own certificate --------------------------------------------------------------------------------------


def _check_certificate(party: Party) -> None:
    name = kit_name(party.kit) or party.signer.name
    problems = check_certificate(party.signer.certificate, party.root, datetime.now(timezone.utc), name)
    if not problems:
        return
    text = "; ".join(problem.detail for problem in problems)
    reason = "its own certificate " + ("has expired" if all(p.expired for p in problems) else "is not the consortium's")
    Record(party, {}).note(Kind.CONNECTION_REFUSED, reason=f"{reason}: it did not start")
    raise BadCertificate(
        f"{party.kit / 'startup'}: this kit's own certificate: {text}. No peer would accept it: ask the lead for a new "
        f"kit, and `fedad provision check KIT` says what else is wrong"
    )


def kit_name(kit: Path) -> str | None:
    """A site's name as its kit has it; a server's certificate may have another than its address."""
    try:
        client = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))["client"]
        return str(client["fqsn"]).rpartition(".")[2]
    except (OSError, ValueError, KeyError, TypeError):
        return None


# -- what runs --------------------------------------------------------------------------------------------------------


def write_start(party: Party) -> None:
    """That the system starts, with what; and what has changed since it started last.

    Raises:
        AuditError: if it cannot be written.
    """
    record, last = Record(party, {}), last_start(party)
    policy = SitePaths.of_kit(party.kit).policy
    digest = sha256_of(policy) if policy.is_file() else None
    certificate = party.signer.certificate
    if last and last.certificate != certificate:
        record.write(Kind.CERTIFICATE_CHANGED, certificate=certificate)
    if last and (last.policy.digest if last.policy else None) != digest:
        record.write(Kind.POLICY_CHANGED, policy=Policy(digest=digest))
    record.write(
        Kind.SYSTEM_STARTED,
        software=software(),
        files=dict(kit_files(party.kit)),
        policy=Policy(digest=digest),
        certificate=certificate,
    )


def last_start(party: Party) -> Event | None:
    """The start before this one; None if there was none, or it cannot be read."""
    folder = party.log.folder
    for file in reversed(log_files(folder) if folder.is_dir() else []):
        for line in lines_backwards(file):
            if b'"event":"system_started"' in line:
                try:
                    return parse(line).event
                except EventError:
                    continue
    return None


def software() -> dict[str, str]:
    """Versions of what runs, and ``digest`` over FedAD's own files."""
    versions = {"python": platform.python_version()}
    for package in ("fedad", *_PACKAGES):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions | {"digest": package_digest()}


def package_digest() -> str:
    """SHA-256 over FedAD's modules: of each its path and its own SHA-256, in order."""
    root = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()


def kit_files(kit: Path) -> Iterator[tuple[str, str]]:
    """The kit's files that decide what may happen, by path, with SHA-256; never a key."""
    kit, site = kit.resolve(), SitePaths.of_kit(kit)
    local = kit / "local"
    found = [path for path in (kit / "startup").iterdir() if path.suffix != ".key"]
    found += [*local.glob("*.json"), *local.glob("*.json.default"), site.policy, site.catalogue]
    for path in sorted(found):
        if path.is_file():
            yield path.relative_to(kit).as_posix(), sha256_of(path)
