"""`fedad privacy audit`: what it says, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from typer.testing import CliRunner, Result

from fedad_components.cli import app
from fedad_components.privacy import audit

QUICK = ["--canaries", "100", "--steps", "1", "--set", "privacy.trainable=affine_and_head"]
QUICK += ["--set", "training.device=cpu", "--surface", "mechanism"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short check of the draws, and one thread, for the small steps."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(audit, "SAMPLING_STEPS", 3)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(*options: str) -> Result:
    return CliRunner().invoke(app, ["privacy", "audit", *QUICK, *options])


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opacus_optimizer, "_generate_noise", lambda std, reference, **_: torch.zeros_like(reference))


def test_json_says_what_is_claimed_and_what_was_found() -> None:
    result = run("--json")
    assert result.exit_code == 0
    assert result.stderr.strip() == "", "no warning"
    report = json.loads(result.stdout)
    assert report["verdict"] == "no violation found"
    assert report["violations"] == []
    assert report["note"].startswith("A pass is no proof")
    # The Gaussian mechanism's exact epsilon at sigma 4, by Balle and Wang 2018, is 0.9263
    assert report["claimed_epsilon"] == pytest.approx(0.9263, abs=0.02)
    assert [report[key] for key in ("unit", "delta", "accountant", "adjacency")] == [
        "bundle",
        1e-5,
        "PRV",
        "adding or removing one bundle",
    ]
    assert (report["noise_multiplier"], report["sample_rate"], report["steps"]) == (4.0, 1.0, 1)
    assert (report["canaries"], report["confidence"]) == (100, 0.95)
    assert 0 <= report["lower_bound"] <= report["claimed_epsilon"] < report["ceiling"]
    assert report["correct"] <= report["guesses"] <= 50
    assert set(report["surfaces"]) == {"mechanism"}
    assert report["sampling"]["independent"] is True
    assert report["seconds"] > 0


def test_text_sets_the_bound_beside_the_claim() -> None:
    result = run("--set", "privacy.unit=patient")
    assert result.exit_code == 0
    assert "claimed: epsilon = 0.9" in result.stdout
    assert "adding or removing one patient (delta = 1e-05, PRV accountant)" in result.stdout
    assert "no violation found" in result.stdout
    assert "A pass is no proof" in result.stdout


def test_a_violation_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    result = run()
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "violation: mechanism: at 95 % confidence, epsilon is at least" in result.stderr
    assert "A pass" not in result.stdout
    machine = run("--json")
    assert machine.exit_code == 1
    assert json.loads(machine.stdout)["verdict"] == "FAIL"


def test_warns_of_a_claim_that_the_canaries_cannot_contradict() -> None:
    result = run("--noise-multiplier", "0.5")
    assert result.exit_code == 0
    assert "a pass will say next to nothing" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise-multiplier", "0"], "noise multiplier 0.0: expected a finite number above 0"),
        (["--sample-rate", "2"], "sample rate 2.0: expected a number within"),
        (["--set", "loss.domain_target=style"], "domain_target 'style'"),
        (["--canaries", "20000"], "20000 canaries on 9600 trained weights"),
    ],
)
def test_says_what_it_cannot_audit(options: list[str], message: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)
