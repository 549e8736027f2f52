"""The packet verifies elsewhere, is the same for the same copies, describes each of its files, and holds no key."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from audit_events import NASTY
from eventful import eventful
from parties import Federation, write_kit
from typer.testing import CliRunner, Result

from fedad_components.audit.event import Kind
from fedad_components.audit.keys import Signer
from fedad_components.audit.log import AuditLog
from fedad_components.audit.packet import PacketError, write_packet
from fedad_components.audit.sbom import sbom
from fedad_components.cli import app

KEY = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return eventful(tmp_path_factory.mktemp("eventful") / "logs")


@pytest.fixture(scope="module")
def unzipped(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packet with all that can be in one, elsewhere."""
    folder = tmp_path_factory.mktemp("packet")
    job, result = folder / "job", folder / "result"
    (job / "app" / "config").mkdir(parents=True)
    for name in ("meta.json", "app/config/config_fed_client.json", ".__nvfl_sig.json", "app/.__nvfl_submitter.crt"):
        (job / name).write_text("{}")
    result.mkdir()
    for name in ("model_card.md", "config.json", "rounds.jsonl", "extractor.safetensors"):
        (result / name).write_text(name)
    words = ("--job", "job-1", "--root-ca", federation.root(), "--result", result, "--job-folder", job)
    made = run("packet", federation.folder, *words, "--out", folder / "packet.zip")
    assert made.exit_code == 0, made.output
    assert "meta.json: not the file that the log says was submitted" in made.stderr
    with zipfile.ZipFile(folder / "packet.zip") as archive:
        archive.extractall(folder / "elsewhere")
    return folder / "elsewhere"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


def test_it_verifies_elsewhere(unzipped: Path, federation: Federation) -> None:
    result = run("verify", unzipped, "--root-ca", unzipped / "rootCA.pem", "--json")
    assert result.exit_code == 0, result.output
    elsewhere, told = json.loads(result.stdout), json.loads((unzipped / "verification.json").read_text())
    assert told["files"] == [str(Path(path).relative_to(unzipped)) for path in elsewhere["files"]]
    assert (elsewhere["events"], elsewhere["checkpoints"]) == (told["events"], told["checkpoints"])
    for site in ("server", *federation.SITES):
        copied = unzipped / "logs" / site / "audit-000001.jsonl"
        assert copied.read_bytes() == federation.file(site).read_bytes()


def test_a_change_elsewhere_is_found(unzipped: Path, tmp_path: Path) -> None:
    shutil.copytree(unzipped, tmp_path / "changed")
    file = tmp_path / "changed" / "logs" / "site-a" / "audit-000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"result_sent", b"result_rent", 1))
    assert run("verify", tmp_path / "changed").exit_code == 1


def test_what_is_in_it(unzipped: Path) -> None:
    files = {path.relative_to(unzipped).as_posix() for path in unzipped.rglob("*") if path.is_file()}
    certificates = {name for name in files if name.startswith("certificates/")}
    assert len(certificates) == 4, "three parties, of which one changed its own"
    assert files - certificates == {
        "README.md",
        "checkpoints.jsonl",
        "job/events.jsonl",
        "job/job.json",
        "job/files/meta.json",
        "job/files/.__nvfl_sig.json",
        "job/files/app/.__nvfl_submitter.crt",
        "job/files/app/config/config_fed_client.json",
        "logs/server/audit-000001.jsonl",
        "logs/site-a/audit-000001.jsonl",
        "logs/site-b/audit-000001.jsonl",
        "report.html",
        "result/config.json",
        "result/model_card.md",
        "result/rounds.jsonl",
        "ro-crate-metadata.json",
        "rootCA.pem",
        "sbom.cdx.json",
        "sha256sums.txt",
        "verification.json",
    }
    job = json.loads((unzipped / "job/job.json").read_text())
    assert job["submitter"]["name"] == "lead@example.org"
    assert job["files_here"]["meta.json"] == hashlib.sha256(b"{}").hexdigest()
    lines = (unzipped / "job/events.jsonl").read_bytes().splitlines(keepends=True)
    logs = b"".join(path.read_bytes() for path in sorted((unzipped / "logs").rglob("*.jsonl")))
    assert sorted(lines) == sorted(line for line in logs.splitlines(keepends=True) if b'"job_id":"job-1"' in line)
    held = [json.loads(line) for line in (unzipped / "checkpoints.jsonl").read_bytes().splitlines()]
    assert len(held) == logs.count(b'"signature":')


def test_the_crate_describes_every_file(unzipped: Path) -> None:
    """RO-Crate 1.1: the descriptor, the root, and a data entity for each file, whose facts are true."""
    crate = json.loads((unzipped / "ro-crate-metadata.json").read_text())
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    assert crate["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert (descriptor["@type"], descriptor["about"]) == ("CreativeWork", {"@id": "./"})
    assert root["@type"] == "Dataset"
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    parts = {part["@id"] for part in root["hasPart"]}
    files = {path.relative_to(unzipped).as_posix() for path in unzipped.rglob("*") if path.is_file()}
    assert parts == files - {"ro-crate-metadata.json"}
    for name in parts:
        content = (unzipped / name).read_bytes()
        assert entities[name]["@type"] == "File"
        assert entities[name]["contentSize"] == str(len(content))
        assert entities[name]["sha256"] == hashlib.sha256(content).hexdigest()
    listed = dict(reversed(line.split("  ")) for line in (unzipped / "sha256sums.txt").read_text().splitlines())
    assert listed == {name: entities[name]["sha256"] for name in parts - {"sha256sums.txt"}}


def test_a_library_reads_the_crate(unzipped: Path) -> None:
    rocrate = pytest.importorskip("rocrate.rocrate")
    crate = rocrate.ROCrate(str(unzipped))
    assert crate.name == "Audit packet of job job-1"
    files = {path.relative_to(unzipped).as_posix() for path in unzipped.rglob("*") if path.is_file()}
    assert {entity.id for entity in crate.data_entities} == files - {"ro-crate-metadata.json"}


def test_the_bill_of_materials_lists_what_is_installed(unzipped: Path) -> None:
    bill = json.loads((unzipped / "sbom.cdx.json").read_text())
    assert bill == sbom()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert bill["metadata"]["component"]["name"] == "fedad"
    installed = {one.metadata["Name"].lower().replace("_", "-").replace(".", "-") for one in distributions()}
    assert {component["name"] for component in bill["components"]} == installed - {"fedad"}
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(set(references)) == len(references)
    for component in bill["components"]:
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version'].replace('+', '%2B')}"


def test_the_bill_of_materials_is_valid_cyclonedx() -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_5)
    assert validator.validate_str(json.dumps(sbom())) is None


def test_the_same_copies_give_the_same_bytes(federation: Federation, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        shutil.copytree(federation.folder, tmp_path / name / "logs")
        write_packet(tmp_path / f"{name}.zip", "job-1", [tmp_path / name / "logs"], root_ca=federation.root())
        contents.append((tmp_path / f"{name}.zip").read_bytes())
    assert contents[0] == contents[1]
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == sorted(archive.namelist())
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_no_key_gets_in(federation: Federation, tmp_path: Path) -> None:
    """A whole kit is given: only its log is taken, and what was asked for is an event of that log."""
    kit = write_kit(tmp_path / "kit", federation.signers["site-a"], "client", federation.authority.pem)
    live = kit / "local" / "fedad" / "audit"
    shutil.copytree(federation.folder / "site-a", live)
    out = tmp_path / "packet.zip"
    assert run("packet", kit, "--job", "job-1", "--out", out).exit_code == 0
    key = (kit / "startup" / "client.key").read_bytes()
    assert b"PRIVATE KEY-----" in key
    with zipfile.ZipFile(out) as archive:
        assert not [name for name in archive.namelist() if "key" in name]
        for name in archive.namelist():
            assert key.splitlines()[1] not in archive.read(name), name
            assert b"PRIVATE KEY" not in archive.read(name), name
        assert b'"command":"audit packet"' in archive.read("logs/site-a/audit-000001.jsonl")


@pytest.mark.parametrize("where", ["path", "log", "torn", "job", "result", "link"])
def test_a_key_is_refused_wherever_it_stands(federation: Federation, tmp_path: Path, where: str) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(federation.folder / "site-a", logs)
    (tmp_path / "client.key").write_bytes(KEY)
    options: dict[str, Path] = {}
    paths = [logs]
    if where == "path":
        paths = [logs, tmp_path / "client.key"]
    elif where == "log":
        with (logs / "audit-000001.jsonl").open("ab") as file:
            file.write(b"x" * (2**20 - 11 - file.tell()) + KEY)  # over the end of a block
    elif where == "torn":
        (logs / "torn-1.bin").write_bytes(KEY)
    else:
        folder = tmp_path / where
        folder.mkdir()
        options = {"result" if where == "result" else "job_folder": folder}
        (folder / "meta.json").write_text("{}")
        if where == "link":
            (folder / "app.json").symlink_to(tmp_path / "client.key")
        else:
            (folder / "config.json").write_bytes(KEY)
    with pytest.raises(PacketError, match=r"private key|no event in it|no file of a job"):
        write_packet(tmp_path / "packet.zip", "job-1", paths, **options)
    assert [path.name for path in tmp_path.iterdir() if "packet" in path.name] == []


def test_names_in_a_log_are_no_paths(federation: Federation, tmp_path: Path) -> None:
    for number, name in enumerate(("../../evil", "..", NASTY)):
        log = AuditLog(tmp_path / "logs" / str(number), name)
        log.write(Kind.SYSTEM_STARTED, certificate=federation.signers["site-a"].certificate)
        log.write(Kind.JOB_ENDED, job_id="j")
    write_packet(tmp_path / "packet.zip", "j", [tmp_path / "logs"])
    with zipfile.ZipFile(tmp_path / "packet.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("logs/")]
        assert len(names) == 3
        assert all(".." not in name.split("/") and name.count("/") == 2 and name.isprintable() for name in names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job_id": "job-9"}, r"no event of job 'job-9' in these logs; they name: 'job-1'"),
        ({"result": "nothing"}, r"none of model_card\.md"),
        ({"job_folder": "kit"}, r"startup/client\.crt: no file of a job"),
    ],
)
def test_what_cannot_be_packed_is_named(
    federation: Federation, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    (tmp_path / "nothing").mkdir()
    signer: Signer = federation.signers["site-a"]
    write_kit(tmp_path / "kit", signer, "client", federation.authority.pem)
    job = change.pop("job_id", "job-1")
    with pytest.raises(PacketError, match=message):
        write_packet(tmp_path / "p.zip", job, [federation.folder], **{k: tmp_path / v for k, v in change.items()})
    assert not (tmp_path / "p.zip").exists()
