"""`fedad privacy plan`: what it prints beside an epsilon, its figure, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedad_components.cli import app

COMMAND = ["privacy", "plan", "--units", "625", "--rounds", "40", "--epochs", "3", "--delta", "1e-5"]


def test_the_command_prints_what_stands_beside_an_epsilon(tmp_path: Path) -> None:
    figure = tmp_path / "plan.svg"
    options = ["--units-per-step", "8", "--noise-multiplier", "1", "--figure", str(figure), "--json"]
    result = CliRunner().invoke(app, [*COMMAND, *options])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert (plan["steps"], plan["sample_rate"]) == (9360, pytest.approx(0.0128, rel=1e-5))
    assert plan["epsilon_unit"] == pytest.approx(7.96, rel=0.02)
    assert plan["epsilon_record"] == pytest.approx(14.3, rel=0.02)
    assert plan["adjacency_unit"] == "adding or removing one bundle"
    assert plan["accountant_record"] == "replace-one PRV accountant"
    assert "<svg" in figure.read_text()


def test_a_target_gives_its_sigma_and_the_table_is_for_people() -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--units-per-step", "32", "--target-epsilon", "8"])
    assert result.exit_code == 0, result.output
    assert "sigma = 1.6" in result.stdout
    for word in ("delta = 1e-05", "PRV accountant", "2280 steps"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--units-per-step", "700", "--target-epsilon", "8"], "declared units"),
        (["--noise-multiplier", "2", "--target-epsilon", "8"], "either a noise multiplier or a target"),
        (["--noise-multiplier", "nan"], "noise_multiplier = nan"),
        (["--noise-multiplier", "2", "--rounds", "1", "--figure", "plan.docx"], "docx"),
        (["--noise-multiplier", "2", "--figure", "/tmp"], "--figure /tmp: expected the name of a file"),
        (["--noise-multiplier", "2", "--figure", str(Path(__file__).parent)], "expected the name of a file"),
        (
            ["--target-epsilon", "1e-9"],
            "target epsilon = 1e-09 for adding or removing one bundle (delta = 1e-05, PRV accountant): ",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(options: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, [*COMMAND, *options])
    assert refused.exit_code == 1
    assert message in refused.stderr
    assert refused.stdout == ""


def test_a_folder_is_no_figure_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "plan.svg"
    folder.mkdir()
    refused = CliRunner().invoke(app, [*COMMAND, "--noise-multiplier", "2", "--figure", str(folder)])
    assert refused.exit_code == 1
    assert "expected the name of a file" in refused.stderr
