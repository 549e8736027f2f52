"""What FedAD puts into a startup kit: one function over a kit's folder, and the FLARE builder that calls it.

Centrally, ``provisioning/project.yml`` lists FedADBuilder and ``nvflare provision`` calls it. In the distributed flow
``nvflare package`` calls it on the owner's machine, where the participant's file lists it; for any other kit,
`fedad provision harden KIT` applies the same function.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from nvflare.apis.fl_constant import SystemComponents
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder, Project, ProvisionContext

from fedad_components.config import check_name
from fedad_components.files import make_private_dir, write_atomic
from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, SERVER_CLASS_ALLOW_LIST, class_path
from fedad_components.flare.approval import JobApproval
from fedad_components.flare.audit import JOB_AUDIT_ID, JobAudit
from fedad_components.flare.audit_jobs import RecordedJobs
from fedad_components.flare.audit_parent import RECORDER_ID, AuditRecorder
from fedad_components.flare.channels import JOB_CHANNELS_ID, JobChannels, SiteChannels
from fedad_components.flare.egress import StrictEgress
from fedad_components.flare.ingress import StrictIngress
from fedad_components.flare.recovery import AbandonedJobs
from fedad_components.flare.site import SitePaths
from fedad_components.flare.storage import KitStorage
from fedad_components.resources import resource_dir

Kind = Literal["server", "client", "admin"]

STRICT_EGRESS = class_path(StrictEgress)
STRICT_INGRESS = class_path(StrictIngress)
JOB_CHANNELS = {"id": JOB_CHANNELS_ID, "path": class_path(JobChannels), "args": {}}
SITE_CHANNELS = {"id": "site_channels", "path": class_path(SiteChannels), "args": {}}
JOB_APPROVAL = {"id": SystemComponents.APP_DEPLOYER, "path": class_path(JobApproval), "args": {}}
JOB_AUDIT = {"id": JOB_AUDIT_ID, "path": class_path(JobAudit), "args": {}}
AUDIT_RECORDER = {"id": RECORDER_ID, "path": class_path(AuditRecorder), "args": {}}
RECORDED_JOBS = class_path(RecordedJobs)
PRIVACY_SCOPE = "fedad"
PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
JOB_STORAGE = "storage/jobs"
SNAPSHOT_STORAGE = "storage/snapshots"

_INTERNAL_LISTENER = {
    # FLARE's parent listens for its job processes on a random loopback port from 1025 up: sooner or later the server's.
    "allow_adhoc_conns": False,
    "internal": {
        "scheme": "tcp",
        "resources": {"host": "localhost", "ports": ["20000-32000"], "connection_security": "clear"},
    },
}
_KIT_STORAGE = class_path(KitStorage)
_LOG_STREAMING = {"site_log_streamer", "log_receiver"}
STARTUP_FILES: dict[Kind, str] = {"server": "fed_server.json", "client": "fed_client.json", "admin": "fed_admin.json"}


class KitError(ValueError):
    """A folder that is not a usable startup kit; the message names it and what was expected."""


def kit_kind(kit: str | Path) -> Kind:
    """Whether a startup kit is a server's, a site's (``client``) or a person's (``admin``).

    Raises:
        KitError: if the folder is no startup kit.
    """
    for kind, name in STARTUP_FILES.items():
        if (Path(kit) / "startup" / name).is_file():
            return kind
    raise KitError(f"{kit}: no startup kit: expected startup/ with one of {', '.join(STARTUP_FILES.values())}")


def harden(kit: str | Path) -> Kind:
    """Apply FedAD's policy to a kit, in place; running it again changes nothing.

    Everybody: mutual TLS, private keys 0600, folders 0700. Server and sites: signed jobs only, exact class allow list,
    authorization policy (what a kit's own denies stays denied), no log streaming, a private folder. the
    compliance log. Server: storage in the kit. Sites: the guards of ``channels.py`` and the deployer of
    ``approval.py``; in the privacy policy StrictIngress before and StrictEgress behind the site's own filters; an empty
    catalogue and the policy template (existing ones are kept).

    FLARE reads ``resources.json`` and ``authorization.json`` only where they exist, and else their ``.default``; it
    runs *without* any authorization when both are missing. So the defaults are what is rewritten.

    Raises:
        KitError: if the folder is no kit, is signed as a whole, or has a file that would override the policy.
    """
    kit = Path(kit)
    kind = kit_kind(kit)
    local = kit / "local"
    if (local / "signature.json").exists():
        raise KitError(f"{local}: signed: list FedADBuilder before SignatureBuilder in the project instead")
    _edit_json(kit / "startup" / STARTUP_FILES[kind], lambda startup: _startup(kind, startup))
    if kind != "admin":
        for name in ("resources.json", "authorization.json"):
            if (local / name).exists():
                raise KitError(
                    f"{local / name}: overrides the policy of {name}.default; move its settings and remove it"
                )
        _edit_json(local / "resources.json.default", _server_resources if kind == "server" else _client_resources)
        _authorize(local / "authorization.json.default")
        if not (local / "comm_config.json").exists():  # FLARE writes one for a participant with `listening_host`
            write_atomic(local / "comm_config.json", _as_json(_INTERNAL_LISTENER))
        (local / "privacy.json.sample").unlink(missing_ok=True)  # its example filters let everything through
        site = SitePaths.of_kit(kit).create()  # the server's holds its experiments
    if kind == "client":
        make_private_dir(local / "custom")  # FLARE searches it only if it is there when the site starts
        if not (local / "privacy.json").exists():
            write_atomic(local / "privacy.json", _as_json(privacy_policy()))
        _edit_json(local / "privacy.json", _strict)
        for path in (site.catalogue, site.policy):
            if not path.exists():
                write_atomic(path, _template(path.name))
    tighten(kit)
    return kind


def tighten(kit: Path) -> None:
    """Nobody but the kit's owner reads it: folders 0700, private keys 0600."""
    for folder in (kit, kit / "startup", kit / "local"):
        folder.chmod(PRIVATE_DIR)
    for key in (kit / "startup").glob("*.key"):
        key.chmod(PRIVATE_FILE)


def privacy_policy() -> dict[str, Any]:
    """A site's ``privacy.json``: one scope, in which every task passes StrictIngress and every result StrictEgress.

    Neither they nor the guard of the other channels can be removed by a job; a job that names another scope is refused.
    """
    policy = {"scopes": [{"name": PRIVACY_SCOPE, "properties": {}}], "default_scope": PRIVACY_SCOPE}
    _strict(policy)
    return policy


def _strict(policy: dict[str, Any]) -> None:
    """StrictIngress before the filters that the site has added, StrictEgress behind them; those stay."""
    for scope in policy["scopes"]:
        scope["task_data_filters"] = [_filter(STRICT_INGRESS), *_others(scope, "task_data_filters", STRICT_INGRESS)]
        scope["task_result_filters"] = [*_others(scope, "task_result_filters", STRICT_EGRESS), _filter(STRICT_EGRESS)]
    if policy["default_scope"] not in [scope["name"] for scope in policy["scopes"]]:
        raise ValueError(f"default_scope {policy['default_scope']!r} is none of its scopes")
    ours = [JOB_CHANNELS, JOB_AUDIT]
    policy["components"] = [*ours, *_without(policy.get("components", []), ours)]


def _without(components: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = {own["id"] for own in ours}
    return [item for item in components if item["id"] not in ids]


def _filter(path: str) -> dict[str, Any]:
    return {"path": path, "args": {}}


def _others(scope: dict[str, Any], chain: str, path: str) -> list[dict[str, Any]]:
    return [item for item in scope.get(chain, []) if item["path"] != path]


def _authorize(path: Path) -> None:
    """FedAD's authorization policy; a right that the kit's own policy denies to a role stays denied."""
    policy = json.loads(_template("authorization.json"))
    if path.exists():

        def keep_denials(own: dict[str, Any]) -> None:
            for role, rights in own["permissions"].items():
                for right, value in rights.items() if isinstance(rights, dict) else ():
                    if value == "none" and right in policy["permissions"].get(role, {}):
                        policy["permissions"][role][right] = "none"

        _edit_json(path, keep_denials)
    write_atomic(path, _as_json(policy))


def _startup(kind: Kind, startup: dict[str, Any]) -> None:
    section = startup["servers"][0] if kind == "server" else startup[kind]
    section["connection_security"] = "mtls"
    if kind != "admin":
        startup["require_signed_jobs"] = True


def _client_resources(resources: dict[str, Any]) -> None:
    _common_resources(resources, CLASS_ALLOW_LIST)
    # Top-level keys beyond FLARE's own are sent to the server at registration: nothing of FedAD's belongs here.
    resources["allow_log_streaming"] = False
    ours = [SITE_CHANNELS, JOB_APPROVAL, AUDIT_RECORDER]
    resources["components"] = [*_without(resources["components"], ours), *ours]


def _server_resources(resources: dict[str, Any]) -> None:
    _common_resources(resources, SERVER_CLASS_ALLOW_LIST)
    server = resources["servers"][0]
    server["heart_beat_timeout"] = 120  # seconds until a silent site counts as gone (a beat every 10)
    resources["snapshot_persistor"]["args"]["storage"] = {"path": _KIT_STORAGE, "args": {"folder": SNAPSHOT_STORAGE}}
    replacements = {
        # One job at a time: a site has one trainer. A job that lacks sites is tried again for about ten minutes.
        "job_scheduler": {
            "max_jobs": 1,
            "min_schedule_interval": 1.0,
            "max_schedule_interval": 10.0,
            "max_schedule_count": 60,
        },
        "job_manager": {"uri_root": JOB_STORAGE, "job_store_id": "job_store"},
    }
    for component in resources["components"]:
        component["args"] = replacements.get(component["id"], component.get("args", {}))
        if component["id"] == "job_store":
            component.update(path=_KIT_STORAGE, args={})
        if component["id"] == "job_manager":
            component["path"] = RECORDED_JOBS
    ours = [{"id": "abandoned_jobs", "path": class_path(AbandonedJobs), "args": {}}, AUDIT_RECORDER]
    resources["components"] = [*_without(resources["components"], ours), *ours]


def _common_resources(resources: dict[str, Any], allow_list: Sequence[str]) -> None:
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = list(allow_list)
    resources["components"] = [item for item in resources["components"] if item["id"] not in _LOG_STREAMING]


def _edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        edit(content)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise KitError(f"{path}: not what FLARE 2.9 writes into a kit: {error!r}") from error
    write_atomic(path, _as_json(content))


def _as_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode("utf-8")


def _template(name: str) -> bytes:
    return (resource_dir("provisioning") / "site" / name).read_bytes()


class FedADBuilder(Builder):
    """Harden every kit of a project. List it after StaticFileBuilder and before CertBuilder.

    FLARE finalizes builders in reverse order, so this one closes the state folder before CertBuilder writes every
    private key into it, and tightens the file afterwards.
    """

    def initialize(self, project: Project, ctx: ProvisionContext) -> None:
        for folder in (ctx.get_workspace(), ctx.get_state_dir(), ctx.get_wip_dir()):
            Path(folder).chmod(PRIVATE_DIR)

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        for participant in project.get_all_participants():
            harden(ctx.get_ws_dir(participant))

    def finalize(self, project: Project, ctx: ProvisionContext) -> None:
        for participant in project.get_all_participants():
            tighten(Path(ctx.get_ws_dir(participant)))
        for path in Path(ctx.get_state_dir()).iterdir():
            path.chmod(PRIVATE_DIR if path.is_dir() else PRIVATE_FILE)


def read_project(path: str | Path | None = None) -> dict[str, Any]:
    """A project file as a mapping; by default the one that comes with FedAD.

    Raises:
        KitError: if it is not YAML with ``participants`` and ``builders``, or does not list FedADBuilder.
    """
    path = Path(path) if path else resource_dir("provisioning") / "project.yml"
    try:
        project = yaml.safe_load(path.read_text(encoding="utf-8"))
        builders = [builder["path"] for builder in project["builders"]]
        project["participants"], project["name"]
    except OSError as error:
        raise KitError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        problem = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise KitError(
            f"{path}: not a FLARE project: expected YAML with name, participants, builders: {problem}"
        ) from error
    ours = f"{FedADBuilder.__module__}.{FedADBuilder.__qualname__}"
    if ours not in builders:
        raise KitError(f"{path}: builders lack {ours}: its kits would not be hardened")
    return project


def provision(project: dict[str, Any], workspace: str | Path) -> Path:
    """Run FLARE's provisioning; returns the folder that holds one kit a participant.

    Raises:
        KitError: with what FLARE says is wrong.
    """
    definition = copy.deepcopy(project)  # FLARE writes into it
    try:
        check_name(str(project["name"]), "project name")  # it becomes a folder below the workspace
        make_private_dir(workspace)
        provisioner = Provisioner(str(workspace), prepare_builders(definition))
        ctx = provisioner.provision(prepare_project(definition), logger=logging.getLogger(__name__))
    except (ValueError, RuntimeError, OSError) as error:
        raise KitError(f"project {project['name']!r}: {error}") from error
    if ctx.get(CtxKey.BUILD_ERROR):
        raise KitError(f"project {project['name']!r}: " + "; ".join(ctx.get_errors()))
    return Path(ctx[CtxKey.CURRENT_PROD_DIR])
