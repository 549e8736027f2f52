"""Who reads or exports a live log is an event of that log (DICOM: Audit Log Used); on a copy nothing can be logged."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from fedad_components.audit.event import Actor, Kind, Outcome
from fedad_components.audit.keys import Signer
from fedad_components.audit.log import AuditLog
from fedad_components.audit.reading import find_chains

LIVE = ("local", "fedad", "audit")
"""Where a startup kit has its party's log."""
ACCOUNT = "account of the operating system"
"""Role of an actor who is known by no certificate."""


def log_access(
    paths: Sequence[str | Path], kind: Kind, command: str, outcome: Outcome = Outcome.SUCCESS, reason: str | None = None
) -> list[Path]:
    """Write the event into each live log among the paths, before anybody reads it.

    Returns:
        The folders of the logs that are copies: no startup kit with its key is around them.

    Raises:
        ReadError: if a path holds no log.
        AuditError, KeysError: if a live log cannot be written. It must not be read in place, then.
    """
    actor = Actor(name=account_name(), role=ACCOUNT)
    copies = []
    for chain in find_chains(paths):
        kit = live_kit(chain.folder)
        if kit is None:
            copies.append(chain.folder)
        else:
            log = AuditLog(chain.folder, Signer.from_kit(kit).name)
            log.write(kind, outcome, actor=actor, command=command, reason=reason)
    return copies


def live_kit(folder: Path) -> Path | None:
    """The startup kit whose log is written in this folder; None for a copy."""
    folder = folder.resolve()
    if folder.parts[-len(LIVE) :] != LIVE:
        return None
    kit = folder.parents[len(LIVE) - 1]
    keys = (kit / "startup" / f"{role}.key" for role in ("server", "client"))
    return kit if any(key.is_file() for key in keys) else None


def account_name() -> str:
    """Of the operating system, whoever the environment says it is."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # an account without a name, as in some containers
        return f"uid {os.getuid()}"
