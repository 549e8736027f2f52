"""The examples run as they stand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
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


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["vit", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_another_backbone_trains(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One step of each site on images of 32 px."""
    arguments = ["--backbone", name, "--side", "32", "--images", "8", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["another_backbone.py", *arguments])
    load("another_backbone").main()
    shown = re.findall(r"round 0, (\w+): loss ([\d.]+), NT-Xent ([\d.]+)", capsys.readouterr().out)
    assert [site for site, _, _ in shown] == ["pathology", "ophthalmology"]


@pytest.mark.slow
def test_the_two_vit_s_are_the_same_network() -> None:
    pytest.importorskip("timm")
    example = load("another_backbone")
    ours, timms = (example.backbone(name, 224) for name in ("vit_s", "timm"))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in timms.parameters())
    assert timms.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 512)


def test_a_missing_timm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SystemExit, match=r"pip install 'fedad\[backbones\]'"):
        load("another_backbone").backbone("timm", 224)
