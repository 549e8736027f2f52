"""A signed job as FLARE sends it to a site: made with FLARE's own functions and a certificate authority of the test."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_pri_key, sign_folders

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
    """A certificate authority; what it issues is what FLARE provisions."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._issuer = folder, Identity("consortium")
        self._key, public = generate_keys()
        root = generate_cert(self._issuer, self._issuer, self._key, public, ca=True)
        self.root = folder / "rootCA.pem"
        self.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))

    def person(self, name: str) -> tuple[Any, Path]:
        """Key, and the certificate's file."""
        key, public = generate_keys()
        certificate = generate_cert(Identity(name, "consortium", "lead"), self._issuer, self._key, public)
        path = self._folder / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return key, path


def signed(person: tuple[Any, Path], folder: Path, files: Mapping[str, bytes] = FILES) -> bytes:
    """The archive that FLARE's server sends of an app that a person has signed."""
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
    (startup / "client.key").write_bytes(serialize_pri_key(key))
    (startup / "rootCA.pem").write_bytes(authority.root.read_bytes())
    (startup / "fed_client.json").write_text(json.dumps({"client": {}, "servers": [{"identity": "server"}]}))
    (folder / "local" / "fedad").mkdir(parents=True, mode=0o700)
    return folder
