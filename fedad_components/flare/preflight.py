"""Preflight of a startup kit: what an owner should know before starting it. Changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fedad_components.audit.keys import common_name
from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, SERVER_CLASS_ALLOW_LIST
from fedad_components.flare.audit_parent import kit_name
from fedad_components.flare.provision import (
    AUDIT_RECORDER,
    JOB_APPROVAL,
    JOB_AUDIT,
    JOB_CHANNELS,
    RECORDED_JOBS,
    SITE_CHANNELS,
    STARTUP_FILES,
    STRICT_EGRESS,
    STRICT_INGRESS,
    Kind,
    kit_kind,
)
from fedad_components.flare.site import SiteError, SitePaths, SitePolicy
from fedad_components.imaging.catalogue import Catalogue, CatalogueError

HARDEN = "run `fedad provision harden KIT`"
_RENEW_DAYS = 30


@dataclass(frozen=True)
class Finding:
    """One point of a preflight: what was looked at, whether it holds, and what to do if not (or what was seen)."""

    what: str
    ok: bool
    detail: str


def check(kit: str | Path, *, network: bool = True) -> list[Finding]:
    """Look at a kit.

    Args:
        kit: the folder that holds ``startup/`` and ``local/``.
        network: whether to connect to the server (sites and people only).

    Raises:
        KitError: if the folder is no startup kit.
    """
    kit = Path(kit)
    kind = kit_kind(kit)
    findings = [*_certificate(kit, kind), *_modes(kit), *_found("startup", _startup, kit, kind)]
    if kind != "admin":
        findings += _found("class allow list", _allow_list, kit, kind)
        findings += [*_found("authorization", _authorization, kit), _custom_code(kit)]
        findings += _found("compliance log", _audit, kit, kind)
    if kind == "client":
        findings += [*_found("egress", _privacy, kit), *_found("channels", _channels, kit), *_site(kit)]
    if network and kind != "server":
        findings += _found("server", _server, kit, kind)
    return findings


def interpreter() -> Finding:
    """Whether the ``python3`` that a kit's scripts would start from this shell has this FedAD and its FLARE."""
    what, path = "python3", shutil.which("python3")
    activate = "activate FedAD's virtual environment in the shell that starts the kit, else start.sh runs nothing"
    if path is None:
        return Finding(what, False, f"not on PATH: {activate}")
    asked = "from importlib.metadata import version; print(version('fedad'), version('nvflare'))"
    try:
        answer = subprocess.run([path, "-c", asked], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(what, False, f"{path} does not run ({error}): {activate}")
    if answer.returncode:
        return Finding(what, False, f"{path} has no FedAD with FLARE: {activate}")
    found, own = answer.stdout.split(), [version("fedad"), version("nvflare")]
    if found != own:
        theirs = f"{path} has FedAD and FLARE {' and '.join(found)}, not {' and '.join(own)}"
        return Finding(what, False, f"{theirs}: {activate}")
    return Finding(what, True, f"{path}, FedAD {own[0]}, FLARE {own[1]}")


def _found(what: str, look: Callable[..., Iterator[Finding]], *where: Any) -> list[Finding]:
    """The findings of one look at a kit's JSON; a file of another shape than FLARE's is one that does not hold."""
    try:
        return list(look(*where))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return [
            Finding(what, False, f"not what FLARE 2.9 writes into a kit ({error!r}): {HARDEN}, or take the kit anew")
        ]


def _certificate(kit: Path, kind: Kind) -> Iterator[Finding]:
    base = "server" if kind == "server" else "client"
    startup = kit / "startup"
    try:
        certificate = x509.load_pem_x509_certificate((startup / f"{base}.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        key = load_pem_private_key((startup / f"{base}.key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        yield Finding("certificate", False, f"unreadable: {error}")
        return
    try:
        certificate.verify_directly_issued_by(root)
        yield Finding("certificate's issuer", True, root.subject.rfc4514_string())
    except (ValueError, TypeError, InvalidSignature):
        yield Finding("certificate's issuer", False, "not the consortium's rootCA.pem: ask the lead for a new kit")
    holder, name = common_name(certificate), kit_name(kit)
    if name is not None:
        theirs = (
            f"issued to {holder!r}, and the kit is of {name!r}: the site would not start; ask the lead for a new kit"
        )
        yield Finding("certificate's name", holder == name, holder if holder == name else theirs)
    same = _public(key) == _public(certificate)
    yield Finding("private key", same, "belongs to the certificate" if same else "of another certificate")
    days = (certificate.not_valid_after_utc - datetime.now(timezone.utc)).days
    yield Finding("validity", days >= _RENEW_DAYS, f"{days} days left" + ("" if days >= _RENEW_DAYS else ": renew now"))


def _public(holder: Any) -> bytes:
    content: bytes = holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return content


def _modes(kit: Path) -> Iterator[Finding]:
    private = [kit / "startup", kit / "local", *(kit / "startup").glob("*.key"), kit / "local" / "fedad"]
    open_ones = [path for path in private if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    names = ", ".join(str(path.relative_to(kit)) for path in open_ones)
    yield Finding("file modes", not open_ones, f"others can read {names}: {HARDEN}" if open_ones else "owner only")


def _startup(kit: Path, kind: Kind) -> Iterator[Finding]:
    startup = _read(kit / "startup" / STARTUP_FILES[kind])
    section = startup.get("servers", [{}])[0] if kind == "server" else startup.get(kind, {})
    mutual = section.get("connection_security") == "mtls"
    yield Finding("mutual TLS", mutual, "on" if mutual else f"off: {HARDEN}")
    if kind != "admin":
        signed = startup.get("require_signed_jobs") is True
        yield Finding("signed jobs", signed, "required" if signed else f"not required: {HARDEN}")


def _allow_list(kit: Path, kind: Kind) -> Iterator[Finding]:
    resources = _effective(kit, "resources.json")
    ours = set(SERVER_CLASS_ALLOW_LIST if kind == "server" else CLASS_ALLOW_LIST)
    listed = set(resources.get("class_allow_list") or ["(FLARE's default)"])
    difference = ", ".join(
        [f"+{name}" for name in sorted(listed - ours)] + [f"-{name}" for name in sorted(ours - listed)]
    )
    enforced = resources.get("class_list_enforcement_mode", "enforce") == "enforce"
    exact = enforced and not difference
    detail = f"exactly this release's {len(ours)} classes" if exact else f"{difference or 'not enforced'}: {HARDEN}"
    yield Finding("class allow list", exact, detail)


def _authorization(kit: Path) -> Iterator[Finding]:
    permissions = _effective(kit, "authorization.json").get("permissions")
    if not isinstance(permissions, dict) or not permissions:
        yield Finding("authorization", False, f"no policy, so FLARE would allow everything: {HARDEN}")
        return
    for right, meaning in (("byoc", "code inside a job"), ("shell_commands", "shell commands")):
        # A role with one string ("any") has every right; a right that a role does not list is denied.
        holders = [
            role
            for role, rights in permissions.items()
            if (rights if isinstance(rights, str) else rights.get(right, "none")) != "none"
        ]
        detail = f"allowed to {', '.join(holders)}: {HARDEN}" if holders else "nobody"
        yield Finding(meaning, not holders, detail)


def _privacy(kit: Path) -> Iterator[Finding]:
    policy = _read(kit / "local" / "privacy.json")
    scopes = policy.get("scopes") or []
    known = bool(scopes) and policy.get("default_scope") in {scope.get("name") for scope in scopes}
    for what, chain, place, strict, word in (
        ("egress", "task_result_filters", -1, STRICT_EGRESS, "last result"),
        ("ingress", "task_data_filters", 0, STRICT_INGRESS, "first data"),
    ):
        name = strict.rpartition(".")[2]
        direction = "out" if what == "egress" else "in"
        ok = known and all(_stands(scope.get(chain) or [{}], place, strict, direction) for scope in scopes)
        detail = (
            f"{name} is the {word} filter of every scope" if ok else f"{name} is not the {word} filter of every scope"
        )
        yield Finding(what, ok, detail if ok else f"{detail}: {HARDEN}")


def _stands(filters: list[dict[str, Any]], place: int, path: str, direction: str) -> bool:
    """Also that it filters this way: FLARE's default, which a ``direction`` would override."""
    return filters[place].get("path") == path and filters[place].get("direction", direction) in (direction, "inout")


def _channels(kit: Path) -> Iterator[Finding]:
    """A kit of an earlier release has none of them, and its results would all be refused."""
    policy, resources = _read(kit / "local" / "privacy.json"), _effective(kit, "resources.json")
    found = {"a job's process": JOB_CHANNELS in (policy.get("components") or [])}
    found["the site's process"] = SITE_CHANNELS in (resources.get("components") or [])
    bare = [where for where, guarded in found.items() if not guarded]
    yield Finding(
        "channels",
        not bare,
        f"{' and '.join(bare)}: unguarded: {HARDEN}" if bare else "every message needs to be listed",
    )


def _audit(kit: Path, kind: Kind) -> Iterator[Finding]:
    """That all of it is written; without any of it, a kit of an earlier release would run without a record."""
    components = _effective(kit, "resources.json").get("components") or []
    found = {"the parent process": AUDIT_RECORDER in components}
    if kind == "client":
        found["a job's process"] = JOB_AUDIT in (_read(kit / "local" / "privacy.json").get("components") or [])
    else:
        found["submitted jobs"] = RECORDED_JOBS in [item.get("path") for item in components]
    silent = [what for what, written in found.items() if not written]
    folder = SitePaths.of_kit(kit).audit
    writable = not folder.exists() or os.access(folder, os.W_OK | os.X_OK)
    detail = f"{folder}: cannot be written by this account" if not writable else "every event is written"
    yield Finding(
        "compliance log",
        not silent and writable,
        f"nothing of {' and of '.join(silent)} is written: {HARDEN}" if silent else detail,
    )


def _custom_code(kit: Path) -> Finding:
    files = [path for path in (kit / "local" / "custom").rglob("*") if path.is_file()]
    return Finding("local/custom", True, f"{len(files)} files of this site's own code" if files else "empty")


def _site(kit: Path) -> Iterator[Finding]:
    site = SitePaths.of_kit(kit)
    ids: list[str] | None = None
    try:
        ids = list(Catalogue.load(site.catalogue).data_sets)
        yield Finding("catalogue", bool(ids), ", ".join(ids) or f"no data set yet: add one to {site.catalogue}")
    except CatalogueError as error:
        yield Finding("catalogue", False, str(error))
    try:
        policy = SitePolicy.load(site.policy)
    except SiteError as error:
        yield Finding("site policy", False, str(error))
        return
    yield _approval(kit, policy)
    named = {*policy.data_sets, *policy.public_data_sets}
    if unknown := sorted(named - set(ids)) if ids is not None else []:
        yield Finding("site policy", False, f"it names data sets that the catalogue lacks: {', '.join(unknown)}")
    else:
        yield Finding("site policy", True, "valid")


def _approval(kit: Path, policy: SitePolicy) -> Finding:
    components = _effective(kit, "resources.json").get("components")
    if not isinstance(components, list) or JOB_APPROVAL not in components:
        detail = "required" if policy.require_approval else "not required, and nobody compares signer and submitter"
        return Finding("approval", False, f"{detail}: the component that sees to it is missing: {HARDEN}")
    detail = "each job waits for this site's reviewer" if policy.require_approval else "not required"
    return Finding("approval", True, detail)


def _server(kit: Path, kind: Kind) -> Iterator[Finding]:
    startup = _read(kit / "startup" / STARTUP_FILES[kind])
    if kind == "admin":
        host, port = startup["admin"]["host"], int(startup["admin"]["port"])
    else:
        host, _, text = startup["servers"][0]["service"]["target"].rpartition(":")
        port = int(text)
    yield _connection(kit, host, port)


def _connection(kit: Path, host: str, port: int) -> Finding:
    where = f"{host}:{port}"
    context = ssl.create_default_context(cafile=str(kit / "startup" / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(str(kit / "startup" / "client.crt"), str(kit / "startup" / "client.key"))
        with (
            socket.create_connection((host, port), timeout=5.0) as connection,
            context.wrap_socket(connection, server_hostname=host) as secure,
        ):
            secure.recv(1)  # with TLS 1.3 the server's refusal of our certificate only arrives now
    except ssl.SSLCertVerificationError as error:
        return Finding(
            "server", False, f"{where} shows a certificate that is not the consortium's: {error.verify_message}"
        )
    except ssl.SSLError as error:
        return Finding("server", False, f"{where} refuses this kit's certificate: {error.reason}")
    except OSError as error:
        return Finding("server", False, f"{where} cannot be reached: {error}; check name, firewall and that it runs")
    return Finding("server", True, f"{where} answers and accepts this kit's certificate")


def _effective(kit: Path, name: str) -> dict[str, Any]:
    """What FLARE reads: the file, or else its default."""
    path = kit / "local" / name
    return _read(path if path.exists() else path.with_name(f"{name}.default"))


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, so that each check fails closed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
