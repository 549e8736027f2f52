"""An authority with its leaves, a small federation that writes real logs, and a slow verifier of one log's chain."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedad_components.audit.checkpoint import accept_peer, write_checkpoint
from fedad_components.audit.event import Kind, Outcome
from fedad_components.audit.keys import Signer
from fedad_components.audit.log import AuditLog
from fedad_components.audit.payload import describe

KeyKind = Literal["rsa", "ec", "ed25519"]
DAY = timedelta(days=1)


def now() -> datetime:
    return datetime.now(timezone.utc)


def _key(kind: KeyKind) -> Any:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else ed25519.Ed25519PrivateKey.generate()


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """A root certificate, and leaves under it."""

    def __init__(self, name: str = "project") -> None:
        self.name, self.key = name, _key("ec")
        self.pem = self._issue(name, self.key, now() - 900 * DAY, now() + 900 * DAY, authority=True)

    def _issue(self, name: str, key: Any, begins: datetime, ends: datetime, authority: bool) -> str:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM).decode("ascii")

    def leaf(
        self, name: str, kind: KeyKind = "ec", begins: datetime | None = None, ends: datetime | None = None
    ) -> Signer:
        key = _key(kind)
        return Signer(
            key, self._issue(name, key, begins or now() - 890 * DAY, ends or now() + 360 * DAY, authority=False)
        )

    def write_root(self, folder: Path) -> Path:
        path = folder / "rootCA.pem"
        path.write_text(self.pem)
        return path


def write_kit(folder: Path, signer: Signer, role: str, root_pem: str) -> Path:
    """A startup kit's part that matters here."""
    startup = folder / "startup"
    startup.mkdir(parents=True)
    traditional = not isinstance(signer._key, ed25519.Ed25519PrivateKey)  # FLARE writes this form
    form = PrivateFormat.TraditionalOpenSSL if traditional else PrivateFormat.PKCS8
    pem = signer._key.private_bytes(Encoding.PEM, form, NoEncryption())
    (startup / f"{role}.key").write_bytes(pem)
    (startup / f"{role}.crt").write_text(signer.certificate)
    (startup / "rootCA.pem").write_text(root_pem)
    return folder


class Federation:
    """A server and two sites that write real logs and exchange checkpoints as tasks and results do."""

    SITES = ("site-a", "site-b")

    def __init__(self, folder: Path, kinds: tuple[KeyKind, ...] = ("ec", "ec", "ec"), **options: Any) -> None:
        self.folder = folder
        self.authority = Authority()
        names = ("server", *self.SITES)
        self.signers = {name: self.authority.leaf(name, kind) for name, kind in zip(names, kinds, strict=True)}
        self.logs = {name: AuditLog(folder / name, name, **options) for name in names}
        for name, log in self.logs.items():
            log.write(Kind.SYSTEM_STARTED, certificate=self.signers[name].certificate, durable=False)

    def write(self, site: str, kind: Kind, outcome: Outcome = Outcome.SUCCESS, **fields: Any) -> None:
        self.logs[site].write(kind, outcome, durable=False, **fields)

    def checkpoint(self, site: str, peers: tuple[str, ...]) -> None:
        signed = write_checkpoint(self.logs[site], self.signers[site])
        for peer in peers:
            accept_peer(self.logs[peer], signed, self.authority.pem, site)

    def round(
        self,
        number: int,
        counted: tuple[str, ...] = SITES,
        sent: tuple[str, ...] = SITES,
        counts: dict[str, str] | None = None,
        received: dict[str, str] | None = None,
    ) -> None:
        """``counts`` are those that sites send beside an update, ``received`` what the server has of site-a's."""
        of = {"job_id": "job-1", "round": number}
        self.checkpoint("server", self.SITES)
        for site in self.SITES:
            payload = describe({"w": ("float32", (2,), bytes([number, *site.encode()[-1:], *range(6)]))})
            self.write("server", Kind.TASK_SENT, peer=site, lambda_t=0.85, **of)
            self.write(site, Kind.TASK_RECEIVED, peer="server", **of)
            if site in sent:
                self.write(site, Kind.RESULT_SENT, peer="server", payload=payload, counts=counts, **of)
            self.checkpoint(site, ("server",))
            if site in counted:
                had = received if site == "site-a" and received is not None else counts
                self.write("server", Kind.UPDATE_RECEIVED, peer=site, payload=payload, counts=had, **of)
        self.write("server", Kind.AGGREGATED, participants=dict.fromkeys(counted, 10), **of)

    def close(self) -> None:
        for name, log in self.logs.items():
            log.write(Kind.SYSTEM_STOPPED, durable=False)
            write_checkpoint(log, self.signers[name])

    def root(self) -> Path:
        return self.authority.write_root(self.folder.parent)

    def file(self, site: str, number: int = 1) -> Path:
        return self.folder / site / f"audit-{number:06d}.jsonl"


def slow_chain(files: list[Path]) -> list[dict[str, Any]]:
    """Every event, if each line is canonical JSON that names the one before; written without our code."""
    events, prev = [], "0" * 64
    for file in files:
        for line in file.read_bytes().splitlines(keepends=True):
            assert line.endswith(b"\n")
            event = json.loads(line)
            assert rfc8785.dumps(event) + b"\n" == line
            assert (event["seq"], event["prev"]) == (len(events), prev)
            events.append(event)
            prev = hashlib.sha256(line[:-1]).hexdigest()
    return events
