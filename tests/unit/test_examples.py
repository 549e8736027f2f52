"""The examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision.models import resnet18

from fedad_components.fedsd.state import load_extractor

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sixty_lines_are_no_more_than_sixty() -> None:
    assert len((EXAMPLES / "fedad_in_60_lines.py").read_text().splitlines()) <= 60


@pytest.mark.slow
def test_fedad_in_sixty_lines_leaves_an_extractor(tmp_path: Path) -> None:
    shown = run("fedad_in_60_lines.py", tmp_path)
    lambdas = [float(text) for text in re.findall(r"next lambda_t ([\d.]+)", shown)]
    assert len(lambdas) == 3
    assert lambdas == sorted(lambdas)  # it warms up from lambda_min
    extractor = load_extractor(tmp_path / "extractor.safetensors")
    assert (
        sum(parameter.numel() for parameter in extractor.parameters())
        == sum(parameter.numel() for parameter in resnet18().parameters()) - 512 * 1000 - 1000
    )


@pytest.mark.slow
def test_a_method_of_ones_own_trains(tmp_path: Path) -> None:
    shown = run("add_a_method.py", tmp_path)
    losses = [
        [float(text) for text in re.findall(r"(?:pathology|ophthalmology) ([\d.]+)", line)]
        for line in shown.splitlines()
    ]
    assert [len(line) for line in losses] == [2, 2, 2]


@pytest.mark.slow
def test_another_backbone_trains(tmp_path: Path) -> None:
    shown = run("another_backbone.py", tmp_path, "--rounds", "1")
    assert re.findall(r"round 0, (\w+): loss", shown) == ["pathology", "ophthalmology"]
