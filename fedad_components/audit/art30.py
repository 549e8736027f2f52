"""A draft of the record of processing activities, GDPR Art. 30, from kits and logs; what they do not know is a blank.

Of a kit, its certificate, its connection, its policy and its catalogue are read, never its key. Whether the record
suffices is for the controllers and their data protection officers to judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from cryptography.x509.oid import NameOID
from jinja2 import Environment, StrictUndefined

from fedad_components import __version__
from fedad_components.audit.access import LIVE
from fedad_components.audit.event import rfc3339
from fedad_components.audit.history import History, read_history
from fedad_components.audit.keys import KeysError, common_name, load_certificate, load_root
from fedad_components.audit.reading import BadLine, log_files
from fedad_components.audit.report import visible
from fedad_components.flare.site import SiteError, SitePaths, SitePolicy
from fedad_components.imaging.catalogue import Catalogue, CatalogueError, DataSet
from fedad_components.privacy.policy import PrivacyRules

Role = Literal["server", "site", "person"]


class RecordError(ValueError):
    """A folder that is no startup kit, or a file of it that cannot be read; the message names it and the fix."""


@dataclass(frozen=True)
class OfDataSet:
    """A data set of a site's catalogue.

    Attributes:
        images: as the log last counted them; None if it never was opened.
        rules: the site's policy for it.
    """

    data_set: DataSet
    images: int | None
    rules: PrivacyRules


@dataclass(frozen=True)
class Participant:
    """What a kit says of its owner.

    Attributes:
        project: name of the consortium's root.
        role: of a person, as the certificate has it; else server or site.
        until: end of the certificate.
    """

    kind: Role
    project: str
    name: str
    org: str | None
    role: str | None
    until: datetime
    mutual_tls: bool
    signed_jobs: bool
    policy: SitePolicy | None = None
    data_sets: tuple[OfDataSet, ...] = ()


def draft(kits: Sequence[Path], at: datetime) -> str:
    """The draft, in Markdown.

    Args:
        kits: startup kits of one consortium, hardened or not; more kits leave fewer blanks.
        at: now, with its zone.

    Raises:
        RecordError: if one is no kit, the kits are of several consortia, or a policy or catalogue cannot be used.
        ReadError: if a log cannot be read.
    """
    logs = [folder for kit in kits if (folder := kit.joinpath(*LIVE)).is_dir() and log_files(folder)]
    bad: list[BadLine] = []
    history = read_history(logs, bad) if logs else History()
    participants = [_participant(kit, history) for kit in kits]
    projects = sorted({one.project for one in participants})
    if len(projects) > 1:
        raise RecordError(f"kits of several consortia: {', '.join(map(repr, projects))}; one record is of one")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, finalize=_plain
    )
    environment.globals["blank"] = lambda what: Markdown(f"`[to be filled in: {what}]`")
    template = files("fedad_components.audit").joinpath("assets/art30.md.j2").read_text(encoding="utf-8")
    order = {"server": 0, "site": 1, "person": 2}
    return environment.from_string(template).render(
        at=rfc3339(at)[:10],
        version=__version__,
        project=projects[0] if projects else "",
        participants=sorted(participants, key=lambda one: (order[one.kind], one.name)),
        history=history,
        jobs=sorted(history.jobs.values(), key=lambda job: job.first),
        logs=len(logs),
        bad=len(bad),
    )


def _participant(kit: Path, history: History) -> Participant:
    startup = kit / "startup"
    found = [name for name in ("fed_server.json", "fed_client.json", "fed_admin.json") if (startup / name).is_file()]
    if not found:
        raise RecordError(f"{kit}: no startup kit; expected the folder with startup/ and local/ in it")
    kind: Role = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "person"}[found[0]]  # type: ignore[assignment]
    try:
        pem = (startup / ("server.crt" if kind == "server" else "client.crt")).read_text(encoding="ascii")
        certificate, root = load_certificate(pem), load_root(startup / "rootCA.pem")
        settings = json.loads((startup / found[0]).read_text(encoding="utf-8"))
        section = {"server": lambda: settings["servers"][0], "site": lambda: settings["client"]}
        connection = section.get(kind, lambda: settings["admin"])()["connection_security"]
    except KeysError as error:
        raise RecordError(f"{startup}: {error}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{startup}: not as FLARE writes a kit ({type(error).__name__}): take the kit anew") from None

    def attribute(oid: Any) -> str | None:
        values = certificate.subject.get_attributes_for_oid(oid)
        return str(values[0].value) if values else None

    name = common_name(certificate)
    try:
        policy, data_sets = _site(SitePaths.of_kit(kit), name, history) if kind == "site" else (None, ())
    except (SiteError, CatalogueError) as error:
        raise RecordError(str(error)) from None
    return Participant(
        kind,
        common_name(load_certificate(root)),
        name,
        attribute(NameOID.ORGANIZATION_NAME),
        attribute(NameOID.UNSTRUCTURED_NAME),
        certificate.not_valid_after_utc,
        connection == "mtls",
        settings.get("require_signed_jobs") is True,
        policy,
        data_sets,
    )


def _site(paths: SitePaths, site: str, history: History) -> tuple[SitePolicy, tuple[OfDataSet, ...]]:
    policy = SitePolicy.load(paths.policy)
    catalogue = Catalogue.load(paths.catalogue).data_sets if paths.catalogue.exists() else {}
    images = {
        data_set: count
        for job in sorted(history.jobs.values(), key=lambda job: job.last)
        for (where, data_set), count in job.data_sets.items()
        if where == site
    }
    return policy, tuple(
        OfDataSet(one, images.get(name), policy.rules(name)) for name, one in sorted(catalogue.items())
    )


class Markdown(str):
    """Text of ours, with its own mark-up."""


_MARKS = re.compile(r"([\\`*_{}\[\]<>#|!~])")


def _plain(value: Any) -> Any:
    """Text from outside on one line, with nothing that Markdown or HTML would take for its own."""
    if type(value) is not str:
        return value
    return _MARKS.sub(r"\\\1", visible(value).replace("\n", " "))
