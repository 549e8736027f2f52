"""FLARE's distributed provisioning with the participants' files that come with FedAD: no private key ever travels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedad_components.flare.preflight import check
from fedad_components.resources import resource_dir

pytestmark = pytest.mark.federation


def _nvflare(home: Path, folder: Path, *arguments: str) -> None:
    """Run FLARE's command line as on a machine of its own: it keeps a record below HOME."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home)}
    command = [sys.executable, "-m", "nvflare.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["server", "hospital", "lead"])
def test_kit_is_made_and_hardened_where_its_key_was_made(tmp_path: Path, name: str) -> None:
    files = resource_dir("provisioning") / "distributed"
    authority, owner = tmp_path / "authority", tmp_path / "owner"
    for folder in (authority, owner):
        folder.mkdir()
    profile, participant = str(files / "profile.yml"), str(files / f"{name}.yml")

    _nvflare(authority, authority, "cert", "init", "--profile", profile, "-o", "ca")
    _nvflare(owner, owner, "cert", "request", "-p", participant)
    (request,) = owner.rglob("*.request.zip")
    shutil.copy(request, authority)
    _nvflare(authority, authority, "cert", "approve", "-c", "ca", "--profile", profile, request.name)
    (signed,) = authority.glob("*.signed.zip")
    shutil.copy(signed, owner)
    for travelled in (request, signed):
        with zipfile.ZipFile(travelled) as archive:
            assert all(b"PRIVATE KEY" not in archive.read(member) for member in archive.namelist())

    root = x509.load_pem_x509_certificate((authority / "ca" / "rootCA.pem").read_bytes())
    fingerprint = root.fingerprint(hashes.SHA256()).hex(":").upper()
    _nvflare(owner, owner, "package", signed.name, "--fingerprint", fingerprint)
    (kit,) = [path.parent for path in owner.glob("workspace/*/prod_*/*/startup")]

    bad = {finding.what: finding.detail for finding in check(kit, network=False) if not finding.ok}
    assert set(bad) == ({"catalogue"} if name == "hospital" else set()), bad
