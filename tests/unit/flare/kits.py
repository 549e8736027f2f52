"""Startup kits without FLARE's provisioning: a server's and a site's, with real certificates of one authority."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from parties import Authority, write_kit

from fedad_components.audit.event import Event, Kind
from fedad_components.audit.reading import read
from fedad_components.config import FedADConfig
from fedad_components.flare.channels import JOB_CHANNELS_ID, JobChannels
from fedad_components.flare.context import set_configuration
from fedad_components.flare.site import SitePaths

SERVER, SITE = "fl.example.org", "hospital-a"
JOB = "0b1ee0d2-0000-4000-8000-000000000000"


def make_kit(folder: Path, authority: Authority, name: str, *, ends: datetime | None = None) -> Path:
    """A kit of :data:`SERVER` or of a site."""
    role = "server" if name == SERVER else "client"
    kit = write_kit(folder / name, authority.leaf(name, ends=ends), role, authority.pem)
    startup: dict[str, Any] = {"servers": [{"identity": SERVER}]}
    if role == "client":
        startup["client"] = {"fqsn": name}
    (kit / "startup" / f"fed_{role}.json").write_text(json.dumps(startup))
    SitePaths.of_kit(kit).create()
    return kit


class Guard(JobChannels):
    """As if it stood at a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[dict[str, Any]] = []

    def holds(self) -> bool:
        return True

    def let_out(self, names: Any, meta: dict[str, Any], payload_bytes: int) -> None:
        self.passed.append(meta)


class Workspace:
    def __init__(self, kit: Path) -> None:
        self.kit = kit

    def get_root_dir(self) -> str:
        return str(self.kit)

    def get_run_dir(self, job_id: str) -> str:
        return str(self.kit / job_id)

    def get_app_dir(self, job_id: str) -> str:
        return str(self.kit / job_id / "app")


class Engine:
    """Of FLARE's engine, what knows the kit and the guard."""

    def __init__(self, kit: Path) -> None:
        self.workspace, self.guard = Workspace(kit), Guard()
        self.fired: list[str] = []

    def get_workspace(self) -> Workspace:
        return self.workspace

    def get_component(self, component_id: str) -> object:
        return self.guard if component_id == JOB_CHANNELS_ID else None

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.fired.append(event_type)


def context(kit: Path, config: FedADConfig | None = None) -> FLContext:
    """Of a process of the kit's party, for a job if there is a configuration."""
    fl_ctx = FLContext()
    fl_ctx.set_prop(ReservedKey.ENGINE, Engine(kit), private=True)
    if config is not None:
        fl_ctx.set_prop(ReservedKey.RUN_NUM, JOB, private=True)
        set_configuration(fl_ctx, config)
    return fl_ctx


def written(kit: Path, *kinds: Kind) -> list[Event]:
    """The kit's log, or its events of some kinds."""
    folder = SitePaths.of_kit(kit).audit
    events = [located.event for located in read([folder])] if any(folder.iterdir()) else []
    return [event for event in events if not kinds or event.event in kinds]


def break_log(kit: Path) -> None:
    """Nobody, root included, can write where the folder is a file."""
    folder = SitePaths.of_kit(kit).audit
    folder.rename(kit / "aside")
    folder.touch()
