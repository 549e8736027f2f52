"""``fedad dataset``: what it prints, its exit codes, and that a subset and an assumption are said loudly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from downloads import LAYOUTS
from typer.testing import CliRunner

from fedad_components.cli.datasets import app
from fedad_components.datasets import SPECS

RUNNER = CliRunner()


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    LAYOUTS["ham10000"](tmp_path / "download")
    return ["prepare", "ham10000", "--from", str(tmp_path / "download"), "--out", str(tmp_path / "out")]


def test_list() -> None:
    result = RUNNER.invoke(app, ["list"])
    assert result.exit_code == 0
    assert all(spec.name in result.stdout and spec.url in result.stdout for spec in SPECS.values())


def test_list_as_json() -> None:
    listed = json.loads(RUNNER.invoke(app, ["list", "--json"]).stdout)["data_sets"]
    assert [row["name"] for row in listed] == list(SPECS)
    assert listed[0]["images"] == "112,120"


def test_a_download_that_is_not_whole(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 1
    assert "images: expected 10,015, found 10" in result.stderr
    assert "ISIC" not in result.output


def test_a_subset_is_said_loudly(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, [*arguments, "--partial", "--json", "--id", "skin"])
    assert result.exit_code == 0, result.output
    assert result.stderr.lstrip().startswith("PARTIAL: 10 of the 10,015 published images")
    report = json.loads(result.stdout)
    assert report["partial"] is True
    assert report["entries"] == {
        "skin": {"images": 8, "patients": 4, "labelled": None},
        "ham10000-train": {"images": 8, "patients": 4, "labelled": 8},
        "ham10000-test": {"images": 2, "patients": 1, "labelled": 2},
    }


def test_a_table_for_people(arguments: list[str], tmp_path: Path) -> None:
    result = RUNNER.invoke(app, [*arguments, "--partial"])
    assert "CC BY-NC 4.0" in result.stdout
    assert f"fedad data check images --catalogue {tmp_path / 'out/catalogue.yaml'}" in result.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({1: "ham1000"}, "NAME = 'ham1000': expected one of chestxray14"),
        ({3: "/no/such/folder"}, "not a folder"),
        ({5: "/proc/no"}, "/proc"),
    ],
)
def test_what_cannot_be_used(arguments: list[str], changes: dict[int, str], message: str) -> None:
    result = RUNNER.invoke(app, [changes.get(number, word) for number, word in enumerate(arguments)])
    assert result.exit_code == 1
    assert message in result.stderr


def test_an_id_that_is_no_name(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, [*arguments, "--id", "../x"])
    assert result.exit_code == 1
    assert "--id '../x'" in result.stderr


def test_cost_without_a_measurement_says_so() -> None:
    result = RUNNER.invoke(app, ["cost"])
    assert result.exit_code == 0, result.output
    assert "40 rounds of 4 of 6 sites" in result.stdout
    assert result.stderr.startswith("ASSUMED: the time of a step is not measured")


def test_cost_as_json() -> None:
    result = RUNNER.invoke(app, ["cost", "--json", "--step-ms", "250"])
    figures = json.loads(result.stdout)
    # 40 rounds · 4/6 · 3 epochs · (1352 + 3491 + 4608 + 99 + 126 + 134) steps · 0.25 s
    assert figures["steps"] == pytest.approx(80 * 9_810)
    assert figures["gpu_hours"] == pytest.approx(80 * 9_810 * 0.25 / 3600)
    assert figures["wire_bytes"] == 40 * 4 * 2 * figures["weight_bytes"]
    assert figures["step_ms_is"] == "given by the user"


def test_cost_of_other_sites() -> None:
    result = RUNNER.invoke(app, ["cost", "--json", "--site", "a=640", "--site", "b=640", "--sites-per-round", "1"])
    figures = json.loads(result.stdout)
    assert (figures["images"], figures["sites_per_round"], figures["steps"]) == ({"a": 640, "b": 640}, 1, 40 * 3 * 10)


def test_cost_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"federation": {"rounds": 2}, "training": {"epochs": 1}}', encoding="ascii")
    result = RUNNER.invoke(app, ["cost", "--json", "--config", str(tmp_path / "c.json")])
    figures = json.loads(result.stdout)
    assert (figures["rounds"], figures["epochs"], figures["sites_per_round"]) == (2, 1, 6)


@pytest.mark.parametrize(
    "words", [["--site", "a"], ["--site", "a=x"], ["--site", "a=9", "--site", "a=9"], ["--sites-per-round", "7"],
              ["--config", "/no/such/file"]]
)  # fmt: skip
def test_cost_of_what_cannot_be(words: list[str]) -> None:
    result = RUNNER.invoke(app, ["cost", *words])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
