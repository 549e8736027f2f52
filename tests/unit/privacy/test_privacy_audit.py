"""The audit on the real trainer: it passes what is right, and sees what was broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from torch import Tensor

from fedad_components.config import FedADConfig
from fedad_components.privacy import audit, audit_canaries, mechanism, trainer
from fedad_components.privacy.audit import AuditError, AuditPlan, AuditReport, run_audit
from fedad_components.privacy.audit_bound import Reading
from fedad_components.privacy.audit_canaries import ORDINARY_UNITS, CanaryTrainer, attack
from fedad_components.privacy.audit_sampling import Sampling

CONFIG = FedADConfig.parse({"privacy": {"trainable": "affine_and_head"}, "training": {"device": "cpu"}})
REFERENCE = {"noise_multiplier": 2.0, "steps": 1, "surfaces": ("mechanism",)}
"""As far from privacy as sigma 4 in 4 steps, whose epsilon is 2.00 at delta 1e-5, in a quarter of the time."""
INDEPENDENT = Sampling(sample_rate=0.1, steps=20, units=200, rate_p_value=0.5, step_p_value=0.5, unit_p_value=0.5)


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Known coins and noise, so that a test's outcome is not a matter of luck; and one thread, for the small steps."""
    seeds, threads = count(), torch.get_num_threads()

    def seeded(device: str | torch.device = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(next(seeds))

    monkeypatch.setattr(mechanism, "secure_generator", seeded)
    monkeypatch.setattr(trainer, "secure_generator", seeded)
    monkeypatch.setattr(audit, "flip_coins", lambda m: np.random.default_rng(0).random(m) < 0.5)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def scale_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    drawn = opacus_optimizer._generate_noise
    monkeypatch.setattr(
        opacus_optimizer, "_generate_noise", lambda std, *rest, **more: factor * drawn(std, *rest, **more)
    )


def clip_three_times_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are clipped to 3 C, and the noise stays that of C."""

    class Broken(mechanism.GroupGaussian):
        def __init__(self, *rest: Any, max_grad_norm: float, noise_multiplier: float, **more: Any) -> None:
            super().__init__(*rest, max_grad_norm=3 * max_grad_norm, noise_multiplier=noise_multiplier / 3, **more)

    monkeypatch.setattr(trainer, "GroupGaussian", Broken)


def shuffle_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unit once an epoch, in batches of one size."""
    waiting: list[int] = []

    def broken(units_present: int, sample_rate: float, generator: torch.Generator) -> list[int]:
        batch = round(units_present * sample_rate)
        if len(waiting) < batch:
            waiting[:] = torch.randperm(units_present, generator=generator).tolist()
        drawn, waiting[:] = waiting[:batch], waiting[batch:]
        return drawn

    monkeypatch.setattr(trainer, "sample_units", broken)


def canary_trainer(included: np.ndarray, steps: int = 1, **plan: object) -> CanaryTrainer:
    prepared = AuditPlan(CONFIG, canaries=len(included), steps=steps, **plan)  # type: ignore[arg-type]
    return CanaryTrainer(prepared.run_config, included, steps)


def test_the_claim_is_that_of_the_reference() -> None:
    assert AuditPlan(CONFIG, noise_multiplier=4.0, steps=4).claim.epsilon_unit == pytest.approx(2.00, abs=0.02)
    assert AuditPlan(CONFIG, **REFERENCE).claim.epsilon_unit == pytest.approx(2.00, abs=0.02)  # type: ignore[arg-type]


def test_correct_code_passes() -> None:
    report = run_audit(AuditPlan(CONFIG, canaries=1000, **REFERENCE))  # type: ignore[arg-type]
    assert report.verdict == "no violation found"
    assert report.violations == []
    assert 0.2 < report.strongest.epsilon < 1.2, "an attack that sees nothing would pass anything"
    assert report.sampling.independent


@pytest.mark.parametrize(
    ("canaries", "plant", "at_least"),
    [
        (400, lambda patch: scale_noise(patch, 0.0), 3.5),
        (1000, lambda patch: scale_noise(patch, 1 / 4), 2.6),
        (2000, clip_three_times_too_late, 2.2),
    ],
    ids=["no noise", "a quarter of the noise", "clipped to 3 C"],
)
def test_broken_mechanisms_fail(
    monkeypatch: pytest.MonkeyPatch, canaries: int, plant: Callable[[pytest.MonkeyPatch], None], at_least: float
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(audit, "_check_draws", lambda plan, listener: INDEPENDENT)
    report = run_audit(AuditPlan(CONFIG, canaries=canaries, **REFERENCE))  # type: ignore[arg-type]
    assert report.verdict == "FAIL"
    assert report.strongest.epsilon > max(at_least, report.plan.claim.epsilon_unit)
    assert "mechanism: at 95 % confidence, epsilon is at least" in report.violations[0]


def test_shuffled_batches_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle_units(monkeypatch)
    report = run_audit(AuditPlan(CONFIG, canaries=100, **REFERENCE))  # type: ignore[arg-type]
    assert report.verdict == "FAIL"
    assert not report.sampling.independent
    assert "not drawn independently" in report.violations[0]


@pytest.mark.slow
def test_the_update_that_leaves_shows_less_than_the_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    right = run_audit(AuditPlan(CONFIG, canaries=3000, steps=4)).readings
    assert right["mechanism"].epsilon < 2.0
    assert right["update"].epsilon < 2.0
    scale_noise(monkeypatch, 0.0)
    broken = run_audit(AuditPlan(CONFIG, canaries=1000, steps=4)).readings
    assert broken["mechanism"].epsilon > 4.0
    assert broken["update"].epsilon < broken["mechanism"].epsilon


def test_a_canary_is_a_unit_of_exactly_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, and with ordinary units that have no gradient, an included canary adds C, and no other."""
    scale_noise(monkeypatch, 0.0)
    monkeypatch.setattr(
        trainer.PrivateTrainer, "_unit_loss", lambda self, student, *_: (0 * next(student.head.parameters())).sum()
    )
    included = np.arange(100) % 3 == 0
    run = canary_trainer(included, steps=2)
    scores = attack(run)
    np.testing.assert_allclose(run.noised_sums, np.tile(included.astype(float), (2, 1)), atol=1e-5)
    assert (run.drawn == included).all()
    step = CONFIG.training.learning_rate
    np.testing.assert_allclose(scores["update"][included], 2 * step, rtol=0.01)
    # Adam's weight decay alone moves the others, in its own direction
    assert np.abs(scores["update"][~included]).max() <= 2 * step * 1.01


def test_coordinates_are_distinct_and_spread_over_what_is_trained() -> None:
    run = canary_trainer(np.ones(2000, dtype=bool))
    places = set(zip(run._owners.tolist(), run._offsets.tolist(), strict=True))
    assert len(places) == 2000
    trained = {name for name, weight in run.extractor.named_parameters() if weight.requires_grad}
    assert {run._names[owner] for owner, _ in places} == trained


def test_coordinates_are_read_where_the_gradient_was_put() -> None:
    """Whatever a tensor's layout: convolutions are kept channels-last."""
    config = AuditPlan(CONFIG, canaries=100, steps=1).run_config
    every = config.model_copy(update={"privacy": config.privacy.model_copy(update={"trainable": "all"})})
    run = CanaryTrainer(every, np.ones(100, dtype=bool), 1)
    weights = dict(run.extractor.named_parameters())
    for canary in range(100):
        student = type("Student", (), {"extractor": run.extractor})
        loss: Tensor = run._unit_loss(student, 0.0, ORDINARY_UNITS + canary, torch.empty(0), 0, 0, None)  # type: ignore[arg-type]
        name = run._names[run._owners[canary]]
        (gradient,) = torch.autograd.grad(loss, [weights[name]])
        zeros = {other: torch.zeros_like(weight) for other, weight in weights.items()}
        seen = run.at_canaries(zeros | {name: gradient})
        assert seen[canary] == 10.0
        assert np.count_nonzero(seen) == 1


def test_likelihood_ratio_of_a_subsampled_step() -> None:
    """Against the two densities written out."""
    run = canary_trainer(np.arange(100) % 2 == 0, steps=3, sample_rate=0.25, noise_multiplier=1.5)
    scores = attack(run)
    q, x = run.sample_rate, torch.from_numpy(run.noised_sums)
    present, absent = (torch.distributions.Normal(mean, 1.5).log_prob(x).exp() for mean in (1.0, 0.0))
    expected = torch.log((q * present + (1 - q) * absent) / absent).sum(0)
    np.testing.assert_allclose(scores["mechanism"], expected.numpy(), rtol=1e-9, atol=1e-12)


def test_coins_are_fair_and_never_the_same() -> None:
    first, second = audit_canaries.flip_coins(10_000), audit_canaries.flip_coins(10_000)
    assert abs(first.mean() - 0.5) < 0.03
    assert (first != second).any()


def test_configurations_are_audited_as_they_train() -> None:
    config = FedADConfig.parse(
        {
            "privacy": {"max_grad_norm": 0.5, "delta": 1e-6, "unit": "patient", "trainable": "affine_and_head"}
            | {"negatives": "public", "public_data_set": "open"},
            "loss": {"head": "aggregated"},
            "training": {"batch_size": 2},
        }
    )
    plan = AuditPlan(config, canaries=100, steps=2, sample_rate=0.5)
    assert plan.run_config.privacy.max_grad_norm == 0.5
    assert (plan.claim.unit, plan.claim.delta, plan.claim.steps, plan.claim.sample_rate) == ("patient", 1e-6, 2, 0.5)
    assert plan.claim.units == 100 + ORDINARY_UNITS
    assert set(run_audit(plan).readings) == {"mechanism", "update"}


def test_a_bound_above_the_claim_is_a_violation_and_one_at_it_is_not() -> None:
    plan = AuditPlan(CONFIG, canaries=100)

    def report(epsilon: float) -> AuditReport:
        return AuditReport(plan, {"mechanism": Reading(epsilon, 50, 40)}, INDEPENDENT, 1.0)

    assert report(plan.claim.epsilon_unit).verdict == "no violation found"
    assert report(plan.claim.epsilon_unit + 1e-3).verdict == "FAIL"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise multiplier 0.0: expected a finite number above 0"),
        ({"noise_multiplier": float("nan")}, "noise multiplier nan"),
        ({"sample_rate": 1.5}, r"sample rate 1.5: expected a number within \(0, 1\]"),
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"canaries": 99}, "canaries 99: expected at least 100"),
        ({"surfaces": ("images",)}, "surfaces"),
    ],
)
def test_impossible_plans_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        AuditPlan(CONFIG, **wrong)  # type: ignore[arg-type]


def test_a_configuration_that_does_not_go_with_dp_is_refused() -> None:
    with pytest.raises(AuditError, match="domain_target 'style'"):
        AuditPlan(FedADConfig.parse({"loss": {"domain_target": "style"}}))


def test_more_canaries_than_weights_are_refused() -> None:
    with pytest.raises(AuditError, match="20000 canaries on 9600 trained weights"):
        run_audit(AuditPlan(CONFIG, canaries=20_000, **REFERENCE))  # type: ignore[arg-type]
