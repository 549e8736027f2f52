"""`fedad demo` as a person runs it: what it writes, and that nothing is left when it ends or is stopped."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from support import heed_interrupts
from torchvision.models import resnet18

from fedad_components.demo.slides import planted_share
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.slides.catalogue import load_catalogue

pytestmark = pytest.mark.federation

FEDAD = str(Path(sys.executable).parent / "fedad")


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that work on a demo: their command line or folder names it."""
    found = []
    for process in psutil.process_iter():
        try:
            places = [*process.cmdline(), process.cwd()]
        except psutil.Error:
            continue
        if any(str(folder) in place for place in places) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_the_demo_writes_what_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [FEDAD, "demo", "--out", str(out), "--rounds", "2", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(out / "report.html") in done.stdout
    assert "Traceback" not in done.stderr
    assert processes_in(out) == []

    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "FINISHED:COMPLETED"
    assert summary["rounds"] == 2
    assert len(summary["sites"]) == 4
    assert summary["participants"] == [sorted(summary["sites"])] * 2
    assert summary["lambda_t"][0] == pytest.approx(0.1)
    assert summary["lambda_t"][1] > summary["lambda_t"][0]
    assert all(delta > 0 for delta in summary["instability"])
    for losses in summary["losses"]:
        assert losses.keys() == set(summary["sites"])
        for loss in losses.values():
            assert loss["total"] == pytest.approx(sum(loss[term] for term in loss if term != "total"), abs=1e-4)
    exported = load_file(out / "extractor.safetensors")
    size = sum(4 * tensor.numel() for tensor in exported.values() if tensor.is_floating_point())
    assert summary["bytes_sent"] == dict.fromkeys(summary["sites"], 2 * size)
    probe = summary["probe"]
    assert 0 <= probe["f1"] <= 1
    assert probe["n_train"] > 0
    assert probe["n_test"] > 0
    assert probe["label"] == "dab_above_median"
    assert summary["wall_s"] > 0

    model = resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(load_file(out / "extractor.safetensors"), strict=True)
    report = (out / "report.html").read_text()
    assert "<svg" in report or "data:image" in report
    assert 'src="http' not in report
    assert 'href="http' not in report


def test_the_private_demo_states_its_guarantee(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [FEDAD, "demo", "--out", str(out), "--rounds", "3", "--image-size", "32", "--privacy", "dp_sgd"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    strict = summary["sites"][-1]
    assert summary["participants"] == [sorted(summary["sites"][:-1])] * 3
    assert all("policy-refused: min_noise_multiplier" in refused[strict] for refused in summary["refused"])
    assert summary["privacy"]["mode"] == "dp_sgd"
    assert summary["privacy"]["sites"].keys() == set(summary["sites"][:-1])
    charge = [Charge(1.0, 4 / 16, 3 * 4)]
    for claim in summary["privacy"]["sites"].values():
        assert (claim["unit"], claim["delta"], claim["steps"]) == ("bundle", 1e-5, 12)
        assert claim["epsilon_unit"] == pytest.approx(epsilon_unit(charge, 1e-5))
        assert claim["epsilon_record"] == pytest.approx(epsilon_record(charge, 1e-5))
    assert summary["n_samples"] == {}
    assert summary["losses"] == [{}, {}, {}]
    assert "adding or removing one bundle (delta = 1e-05, PRV accountant)" in done.stdout
    assert f"[{strict}: the site reports EXECUTION_EXCEPTION (policy-refused: min_noise_multiplier)]" in done.stdout
    assert "Privacy: dp_sgd" in (out / "report.html").read_text()


def test_the_slides_demo_finds_what_was_planted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [FEDAD, "demo", "--job", "histofl", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The labels are made up" in done.stdout
    assert "validation AUC" in done.stdout
    assert "Traceback" not in done.stderr
    assert processes_in(out) == []

    summary = json.loads((out / "summary.json").read_text())
    assert summary["participants"] == [sorted(summary["sites"])] * summary["rounds"]
    assert summary["config"]["counts"]["min_cell"] == 2
    assert all(validation["patients"] == 12 for validation in summary["validation"])
    best = max(validation["auc"] for validation in summary["validation"])
    assert summary["validation"][summary["best_round"]]["auc"] == best
    assert summary["test"]["federated"]["all sites"]["AUC within sites"] > 0.85
    assert len(summary["planted"]) == 6
    planted = np.mean([slide["percentile_planted"] for slide in summary["planted"]])
    assert planted > np.mean([slide["percentile_others"] for slide in summary["planted"]]) + 10

    site = summary["sites"][0]
    files = {entry.slide: entry.path for entry in load_catalogue(out / "data" / site / "slides.csv")}
    rows = list(csv.DictReader((out / "heatmaps" / "scores.csv").read_text().splitlines()))
    ranks: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        mask = out / "data" / site / "planted" / f"{files[row['slide']].stem}.npy"
        inside = planted_share(mask, np.array([[int(row["x"]), int(row["y"])]]), 128)[0] >= 0.5
        ranks[bool(inside)].append(float(row["percentile"]))
    assert len({row["slide"] for row in rows}) == 2
    assert np.mean(ranks[True]) > np.mean(ranks[False]) + 10
    report = (out / "report.html").read_text()
    assert "The labels are made up" in report
    assert 'src="http' not in report


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = subprocess.run(
        [FEDAD, "demo", "--out", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_the_slides_demo_says_what_to_install_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "openslide.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [FEDAD, "demo", "--job", "histofl", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "pip install 'fedad[wsi]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ["--rounds", "50", "--image-size", "32"]),
        (signal.SIGTERM, ["--rounds", "50", "--image-size", "32"]),
        (signal.SIGINT, ["--job", "histofl"]),
    ],
)
def test_a_stopped_demo_leaves_no_process(tmp_path: Path, number: int, words: list[str]) -> None:
    out = tmp_path / "out"
    command = [FEDAD, "demo", "--out", str(out), *words]
    with open(tmp_path / "console", "w") as console:
        demo = subprocess.Popen(
            command,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
    try:
        deadline = time.monotonic() + 400  # of slides, which are prepared first
        while "submitted" not in (tmp_path / "console").read_text():
            assert demo.poll() is None, (tmp_path / "console").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        time.sleep(8)  # job processes and trainers are starting
        assert len(processes_in(out)) > 5
        demo.send_signal(number)
        assert demo.wait(timeout=60) != 0
        assert processes_in(out) == []
    finally:
        demo.kill()
        demo.wait()
