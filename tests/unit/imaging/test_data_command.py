"""``fedad data``: tables, JSON, exit codes, and no patient text or file name in what is printed."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pydicom
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from fedad_components.cli.data import app

RUNNER = CliRunner()
SECRETS = ("Zebedee", "Quasimodo", "PAT-4711")


@pytest.fixture
def kit(tmp_path: Path, pydicom_files: Path) -> Path:
    """A kit whose images carry a patient's name in tags and file names, some of them unusable."""
    local = tmp_path / "kit" / "local" / "fedad"
    images = tmp_path / "images" / "Zebedee^Quasimodo"
    local.mkdir(parents=True)
    images.mkdir(parents=True)
    dataset = pydicom.dcmread(pydicom_files / "MR_small.dcm")
    dataset.PatientName, dataset.PatientID = "Zebedee^Quasimodo", "PAT-4711"
    dataset.save_as(images / "Quasimodo.dcm")
    data = (images / "Quasimodo.dcm").read_bytes()
    (images / "Zebedee cut.dcm").write_bytes(data[:-999])
    (images / "Zebedee\nnotes.txt").write_text("PAT-4711", encoding="ascii")
    rng = np.random.default_rng(0)
    for index in range(18):
        Image.fromarray(rng.integers(0, 256, (40, 40), dtype=np.uint8)).save(images / f"PAT-4711-{index}.png")
    (tmp_path / "t.csv").write_text("file,who\nZebedee^Quasimodo/Quasimodo.dcm,PAT-4711\n", encoding="ascii")
    (local / "catalogue.yaml").write_text(
        f"version: 1\ndata_sets:\n  strict: {{folder: {tmp_path / 'images'}}}\n"
        f"  lenient:\n    folder: {tmp_path / 'images'}\n    max_rejected: 0.2\n"
        f"    table: {{file: {tmp_path / 't.csv'}, patient: who}}\n"
        f"  misread: {{folder: {tmp_path / 'images'}, reader: 'absent_module:Reader'}}\n"
        f"  gone: {{folder: {tmp_path / 'no'}}}\n",
        encoding="utf-8",
    )
    return tmp_path / "kit"


@pytest.mark.usefixtures("build_here")
def test_check(kit: Path) -> None:
    result = RUNNER.invoke(app, ["check", "lenient", "--kit", str(kit), "--json", "--side", "48"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["accepted"]
    assert (report["files"], report["used"], report["frames"], report["rejected_files"]) == (21, 19, 19, 2)
    assert report["rejected"] == {"not an image": 1, "truncated": 1}
    assert (report["patients"], report["frames_without_patient"]) == (1, 18)
    details = Path(report["details"])
    assert stat.S_IMODE(details.stat().st_mode) == 0o600
    assert "Zebedee cut.dcm" in details.read_text(encoding="utf-8")
    table = RUNNER.invoke(
        app, ["check", "lenient", "--catalogue", str(kit / "local/fedad/catalogue.yaml"), "--side", "48"]
    )
    assert table.exit_code == 0
    assert "truncated" in table.stdout
    refused = RUNNER.invoke(app, ["check", "strict", "--kit", str(kit), "--side", "48"])
    assert refused.exit_code == 1
    assert "9.5% of the files were rejected" in refused.output
    in_json = RUNNER.invoke(app, ["ingest", "strict", "--kit", str(kit), "--side", "48", "--json", "--again"])
    assert in_json.exit_code == 1
    assert not json.loads(in_json.stdout)["accepted"]
    for outcome in (result, table, refused, in_json):
        for secret in SECRETS:
            assert secret not in outcome.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other"], "no data set 'other'"),
        (["gone"], "expected a readable folder"),
        (["misread"], "absent_module:Reader"),
    ],
)
@pytest.mark.usefixtures("build_here")
def test_unusable(kit: Path, arguments: list[str], message: str) -> None:
    result = RUNNER.invoke(app, ["check", *arguments, "--kit", str(kit)])
    assert result.exit_code == 2
    assert message in result.output
    assert not any(secret in result.output for secret in SECRETS)


def test_needs_one_catalogue(kit: Path) -> None:
    assert RUNNER.invoke(app, ["check", "strict"]).exit_code == 2
    both = ["check", "strict", "--kit", str(kit), "--catalogue", str(kit)]
    assert "expected one of --catalogue FILE and --kit KITDIR" in RUNNER.invoke(app, both).output


@pytest.mark.slow
def test_as_the_operator_runs_it(kit: Path) -> None:
    """In processes of its own, so that what decoders and libraries write from C is seen too."""
    program = "import sys; from fedad_components.cli.data import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", program, "check", "lenient", "--kit", str(kit), "--side", "48", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["used"] == 19
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)


def test_help_is_fast_and_complete() -> None:
    root = typer.Typer()
    root.add_typer(app, name="data")
    for command in ("check", "ingest"):
        text = RUNNER.invoke(root, ["data", command, "--help"]).output
        for part in ("Example", "Exit codes", "--catalogue", "--kit", "--side", "--json"):
            assert part in text
    program = "import sys, fedad_components.cli.data; sys.exit(any(name in sys.modules for name in ('monai', 'torch')))"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
