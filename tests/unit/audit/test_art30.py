"""The draft of the Art. 30 record says what kits and logs say, and marks every other place as a blank."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from eventful import privacy
from parties import Authority
from typer.testing import CliRunner, Result

from fedad_components.audit.art30 import RecordError, draft
from fedad_components.audit.event import Kind
from fedad_components.audit.log import AuditLog
from fedad_components.audit.reading import read
from fedad_components.cli import app

AT = datetime(2030, 1, 31, tzinfo=timezone.utc)
BLANK = re.compile(r"`\[to be filled in: [^\]]+\]`")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", "record", *map(str, words)])


def make_kit(folder: Path, authority: Authority, kind: str, name: str, org: str, role: str | None = None) -> Path:
    """What FLARE writes into a kit, as far as the record reads it."""
    base = "server" if kind == "server" else "client"
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = {NameOID.COMMON_NAME: name, NameOID.ORGANIZATION_NAME: org, NameOID.UNSTRUCTURED_NAME: role}
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes.items() if value])
    builder = x509.CertificateBuilder(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority.name)]), subject, key.public_key()
    )
    now = datetime.now(timezone.utc)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
    certificate = builder.not_valid_after(datetime(2040, 5, 6, tzinfo=timezone.utc)).sign(authority.key, SHA256())
    section = {"connection_security": "mtls"}
    settings = {
        "server": ("fed_server.json", {"servers": [section], "require_signed_jobs": True}),
        "client": ("fed_client.json", {"client": section, "require_signed_jobs": True}),
        "admin": ("fed_admin.json", {"admin": section}),
    }
    startup = folder / "startup"
    startup.mkdir(parents=True)
    (folder / "local" / "fedad").mkdir(parents=True)
    (startup / settings[kind][0]).write_text(json.dumps(settings[kind][1]))
    (startup / f"{base}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (startup / f"{base}.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    (startup / "rootCA.pem").write_text(authority.pem)
    return folder


@pytest.fixture
def kits(tmp_path: Path) -> list[Path]:
    authority = Authority("chest-consortium")
    site = make_kit(tmp_path / "a", authority, "client", "hospital-a", "Hospital <A> | *co*")
    catalogue = {"chest-xray": {"folder": "images", "units": 900}, "bones": {"folder": "images"}}
    (site / "local/fedad/catalogue.yaml").write_text(yaml.safe_dump({"version": 1, "data_sets": catalogue}))
    policy = {
        "allow_aggregated_head": True,
        "data_sets": {"chest-xray": {"required_mode": "dp_sgd", "max_epsilon": 4.0}},
    }
    (site / "local/fedad/policy.yaml").write_text(yaml.safe_dump(policy))
    log = AuditLog(site / "local/fedad/audit", "hospital-a")
    job = {"job_id": "job-1", "job_name": "fedad_job", "experiment": "chest"}
    log.write(Kind.DATA_SET_OPENED, data_set="chest-xray", images=5216, **job)
    log.write(Kind.LEDGER_CHARGED, data_set="chest-xray", privacy=privacy(0.0, 1.25), **job)
    return [
        site,
        make_kit(tmp_path / "s", authority, "server", "fl.example.org", "consortium"),
        make_kit(tmp_path / "l", authority, "admin", "lead@example.org", "consortium", "lead"),
    ]


def rows(text: str) -> list[list[str]]:
    return [re.split(r"(?<!\\) \| ", line[2:-2]) for line in text.splitlines() if line.startswith("| ")]


def test_it_says_what_kits_and_logs_say(kits: list[Path]) -> None:
    text = draft(kits, AT)
    table = rows(text)
    assert "**chest-consortium**" in text
    assert ["fl.example.org", "server", "consortium", "–", "2040-05-06"] in [row[:5] for row in table]
    assert ["lead@example.org", "person", "consortium", "lead"] in [row[:4] for row in table]
    assert ["hospital-a", "chest-xray", "5216", "900", "no"] in [row[:5] for row in table]
    assert ["hospital-a", "bones", "never opened in these logs", "none", "no"] in [row[:5] for row in table]
    assert ["hospital-a", "on", "yes", "required", "yes", "no"] in table
    assert ["hospital-a", "chest-xray", "dp\\_sgd", "1.0", "4.0", "1e-05", "0"] in table
    assert ["hospital-a", "bones", "none", "1.0", "10.0", "1e-05", "0"] in table
    assert ["hospital-a", "chest-xray", "dp\\_sgd", "patient", "1e-05", "1.25", "8.0"] in table
    assert ["fedad\\_job", "chest"] in [row[:2] for row in table]


def test_it_claims_nothing(kits: list[Path]) -> None:
    text = draft(kits, AT)
    assert "A draft, not a finished record" in text
    assert not re.search(r"\bcompliant|anonym|\bcertif(y|ied)", text, re.IGNORECASE)
    for letter in "abcdefg":
        section = text.partition(f"(Art. 30(1)({letter})")[2].partition("\n## ")[0]
        assert BLANK.search(section), f"Art. 30(1)({letter}) has a blank"
    assert text.count("[to be filled in:") == len(BLANK.findall(text))


def test_text_from_outside_stays_text(kits: list[Path]) -> None:
    text = draft(kits, AT)
    assert "Hospital \\<A\\> \\| \\*co\\*" in text
    widths = [len(row) for row in rows(text)]
    assert set(widths) <= {5, 6, 7}


def test_fewer_kits_leave_more_blanks(kits: list[Path]) -> None:
    assert "operator of the server" in draft(kits[:1], AT)
    assert "sites of which no kit was given" in draft(kits[1:], AT)


def test_the_command_logs_that_it_read_a_live_log(kits: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "art30.md"
    result = run("--gdpr-art30", *kits, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"a draft with {out.read_text().count('[to be filled in:')} blanks" in result.stdout
    *_, last = read([kits[0] / "local/fedad/audit"])
    assert (last.event.event, last.event.command) == (Kind.LOG_READ, "audit record")
    assert "exists" in run("--gdpr-art30", *kits, "--out", out).stderr
    assert "which record?" in run(*kits, "--out", tmp_path / "b.md").stderr


def test_what_is_no_kit_is_named(kits: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no startup kit"):
        draft([tmp_path], AT)
    (kits[0] / "local/fedad/policy.yaml").write_text("nonsense: 1")
    with pytest.raises(RecordError, match=r"policy\.yaml"):
        draft(kits, AT)
    (kits[1] / "startup/fed_server.json").write_text("{}")
    with pytest.raises(RecordError, match="take the kit anew"):
        draft(kits[1:], AT)
    other = make_kit(tmp_path / "other", Authority("other"), "client", "hospital-z", "Z")
    with pytest.raises(RecordError, match="several consortia: 'chest-consortium', 'other'"):
        draft([kits[2], other], AT)


def test_nothing_of_audit_loads_flare_or_torch() -> None:
    modules = "art30, packet, report, retention"
    code = f"import sys; from fedad_components.audit import {modules}; print({{'torch', 'nvflare'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "set()\n"
