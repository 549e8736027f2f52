"""A signed job as FLARE sends it to a site: made with FLARE's own functions and a certificate authority of the test."""

from __future__ import annotations

import datetime
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

LEAD = "lead@example.org"
FILES = {"config/config_fed_client.json": b'{"format_version": 2}', "config/config_fed_server.json": b"{}"}
META: dict[str, Any] = {
    "name": "fedad_job",
    "resource_spec": {},
    "min_clients": 2,
    "deploy_map": {"app": ["@ALL"]},
    "study": "default",
    "submitter_name": LEAD,
    "submitter_org": "consortium",
    "submitter_role": "lead",
    "job_folder_name": "fedad_job",
    "data_storage_format": 2,
}
"""What the server keeps of a job, but for what it writes anew each time."""


def renewed(number: int) -> dict[str, Any]:
    """The entries that a submission has of its own."""
    return {
        "job_id": f"00000000-0000-4000-8000-{number:012d}",
        "submit_time": 1.8e9 + number + 0.25,
        "submit_time_iso": f"2027-01-01T00:00:{number % 60:02d}+00:00",
        "start_time": "",
        "duration": "N/A",
        "status": "SUBMITTED",
        "schedule_count": number,
        "last_schedule_time": 1.8e9 + number,
        "schedule_history": [f"2027-01-01 00:00:{number % 60:02d}: scheduled"],
    }


def archive(files: Mapping[str, bytes | None]) -> bytes:
    """A ZIP file; no content for a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, content in files.items():
            opened.writestr(name if content is not None else f"{name}/", content or b"")
    return buffer.getvalue()


def member(name: str, mode: int, content: bytes = b"") -> bytes:
    """A ZIP file with one entry of this Unix mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        opened.writestr(info, content)
    return buffer.getvalue()


class Authority:
    """A certificate authority with a root certificate in a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "consortium")])
        builder = self._builder(name, name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._name, self.root = name, folder / "rootCA.pem"
        root = builder.sign(self._key, hashes.SHA256())
        self.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )

    def person(self, name: str, role: str = "lead") -> tuple[rsa.RSAPrivateKey, Path]:
        """Key and certificate, as FLARE provisions a person."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, name),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "consortium"),
                x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role),
            ]
        )
        builder = self._builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        path = self.folder / f"{name}.crt"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return key, path


def signed(person: tuple[rsa.RSAPrivateKey, Path], folder: Path, files: Mapping[str, bytes] = FILES) -> bytes:
    """The archive that FLARE's server sends of an app that a person has signed."""
    from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
    from nvflare.lighter.utils import sign_folders

    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    key, certificate = person
    sign_folders(str(folder), key, str(certificate))
    return bytes(zip_directory_to_bytes(str(folder), ""))


def kit(folder: Path, site: str, authority: Authority) -> Path:
    """As much of a site's startup kit as approvals need."""
    startup = folder / "startup"
    startup.mkdir(parents=True)
    key, certificate = authority.person(site)
    (startup / "client.crt").write_bytes(certificate.read_bytes())
    (startup / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (startup / "rootCA.pem").write_bytes(authority.root.read_bytes())
    (startup / "fed_client.json").write_text(json.dumps({"client": {}, "servers": [{"identity": "server"}]}))
    (folder / "local" / "fedad").mkdir(parents=True, mode=0o700)
    return folder
