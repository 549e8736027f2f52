"""The built wheel works alone: installed in another environment and run in another folder, without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from fedad_components import __version__

ROOT = Path(__file__).parents[2]
WRITTEN_FOR_PEOPLE = ("provisioning", "custom")


def run(command: list[str | Path], cwd: Path, timeout: float = 120) -> str:
    """Standard output of a command that must succeed, without the variables that could lead it back to the checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    result = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index"]
    run([*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", out, ROOT], cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of a new environment with the wheel; its dependencies are those of this environment.

    They are reached through a path file. Path files inside a folder reached so are not read, so this environment's link
    to the checkout is not followed.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"]
    run([*pip, "--no-index", "--no-deps", wheel], cwd=folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python.parent


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_holds_what_it_needs_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "fedad_components").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    resources = {
        f"fedad_components/_resources/{top}/{name}" for top in WRITTEN_FOR_PEOPLE for name in files(ROOT / top)
    }
    metadata = {name for name in names if name.startswith(f"fedad-{__version__}.dist-info/")}
    assert names - metadata == package | resources
    assert {name.rpartition("/")[2] for name in metadata} >= {"METADATA", "LICENSE", "NOTICE", "entry_points.txt"}
    assert any(name.startswith("fedad_components/demo/assets/") for name in names)


def test_the_package_is_imported_from_the_wheel(environment: Path, elsewhere: Path) -> None:
    code = "import fedad_components as f; from fedad_components.resources import resource_dir as r; "
    code += f"print(f.__file__, f.__version__, *[r(name) for name in {WRITTEN_FOR_PEOPLE}], sep='\\n')"
    package, version, *resources = run([environment / "python", "-c", code], cwd=elsewhere).split()
    assert version == __version__
    for path in (package, *resources):
        assert Path(path).is_relative_to(environment.parent)


@pytest.mark.parametrize(
    "words", [[], ["demo"], ["data", "check"], ["job", "export"], ["provision", "init"], ["config"]]
)
def test_help(environment: Path, elsewhere: Path, words: list[str]) -> None:
    assert "Usage: fedad" in run([environment / "fedad", *words, "--help"], cwd=elsewhere)


def test_job_export(environment: Path, elsewhere: Path) -> None:
    run([environment / "fedad", "job", "export", "--out", "jobs"], cwd=elsewhere)
    written = files(elsewhere / "jobs" / "fedad_job")
    assert {"meta.json"} <= written.keys()
    assert {Path(name).suffix for name in written} == {".json"}
    assert written == files(ROOT / "jobs" / "fedad_job")


def test_provision_init(environment: Path, elsewhere: Path) -> None:
    run([environment / "fedad", "provision", "init", "consortium"], cwd=elsewhere)
    for top in WRITTEN_FOR_PEOPLE:
        assert files(elsewhere / "consortium" / top) == files(ROOT / top)


@pytest.mark.federation
@pytest.mark.slow
def test_demo(environment: Path, elsewhere: Path) -> None:
    command = [environment / "fedad", "demo", "--out", "out", "--rounds", "1", "--image-size", "32"]
    run(command, cwd=elsewhere, timeout=540)
    summary = json.loads((elsewhere / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "FINISHED:COMPLETED"
    assert len(summary["sites"]) == 4
    assert summary["rounds"] == 1
    assert (elsewhere / "out" / "extractor.safetensors").is_file()
    assert (elsewhere / "out" / "report.html").is_file()
