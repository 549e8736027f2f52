"""The hazard loss against hand values, a slow loop and pycox's formulation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mil_reference import VALUES
from torch import Tensor
from torch.nn import functional as F

from fedad_components.mil.losses import hazard_nll, risk, survival_curve

HAND = VALUES["nll"]
HAZARDS = torch.tensor(HAND["hazards"], dtype=torch.float64)
LOGITS = HAZARDS.logit()
BINS = torch.tensor(HAND["bin"])
CENSORED = torch.tensor(HAND["censored"])


def slow(logits: Tensor, bins: Tensor, censored: Tensor, beta: float) -> list[float]:
    """The spec, patient by patient, from probabilities."""
    costs = []
    for row, y, c in zip(logits.tolist(), bins.tolist(), censored.tolist(), strict=True):
        hazard = [1 / (1 + math.exp(-logit)) for logit in row]
        survival = [math.prod(1 - h for h in hazard[: r + 1]) for r in range(len(row))]
        before = survival[y - 1] if y else 1.0
        observed = 0.0 if c else -(math.log(before) + math.log(hazard[y]))
        costs.append(observed + (1 - beta) * (-math.log(survival[y]) if c else 0.0))
    return costs


def pycox(logits: Tensor, bins: Tensor, events: Tensor) -> Tensor:
    """``nll_logistic_hazard``: cross-entropy of each bin survived, and of the event's."""
    died = torch.zeros_like(logits).scatter(1, bins[:, None], events[:, None].to(logits))
    bce = F.binary_cross_entropy_with_logits(logits, died, reduction="none")
    return bce.cumsum(1).gather(1, bins[:, None]).mean()


def random_cases() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(64, 8, dtype=torch.float64), torch.randint(0, 8, (64,)), torch.randint(0, 2, (64,))


def test_hand_values() -> None:
    cost = hazard_nll(LOGITS, BINS, CENSORED, reduction="none")
    assert cost.tolist() == pytest.approx(HAND["per_sample_beta0.15"], abs=1e-6)
    for beta in (0.15, 0, 1):
        mean = hazard_nll(LOGITS, BINS, CENSORED, beta=beta).item()
        assert mean == pytest.approx(HAND[f"mean_beta{beta}"], abs=1e-6)
    assert hazard_nll(LOGITS, BINS, CENSORED, reduction="sum").item() == pytest.approx(cost.sum().item())


def test_it_is_neither_of_the_papers_two_slips() -> None:
    first = hazard_nll(LOGITS[:1], BINS[:1], CENSORED[:1]).item()
    assert abs(first - HAND["wrong_h_times_S_r_for_A"]) > 0.1
    assert abs(first - HAND["wrong_product_from_1_for_A"]) > 0.1


def test_curve_and_risk() -> None:
    assert survival_curve(LOGITS)[0].tolist() == pytest.approx(HAND["survival"], abs=1e-6)
    assert risk(LOGITS)[0].item() == pytest.approx(HAND["risk"], abs=1e-6)


def test_random_reference() -> None:
    logits, bins, censored = random_cases()
    expected = VALUES["nll_random_seed0_64x8"]
    assert hazard_nll(logits, bins, censored).item() == pytest.approx(expected["beta0.15"], abs=1e-12)
    assert hazard_nll(logits, bins, censored, beta=0).item() == pytest.approx(expected["beta0_equals_pycox"], abs=1e-12)


@given(st.integers(1, 12), st.integers(1, 9), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_slow_loop_and_pycox(n: int, r: int, beta: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, r, generator=generator, dtype=torch.float64)
    bins, censored = torch.randint(r, (n,), generator=generator), torch.randint(2, (n,), generator=generator)
    cost = hazard_nll(logits, bins, censored, beta, "none")
    assert cost.tolist() == pytest.approx(slow(logits, bins, censored, beta), rel=1e-9)
    torch.testing.assert_close(hazard_nll(logits, bins, censored, 0.0), pycox(logits, bins, 1 - censored))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logit", [-40.0, 40.0])
@pytest.mark.parametrize("censored", [0, 1])
def test_the_gradient_lives_where_a_clamp_kills_it(dtype: torch.dtype, logit: float, censored: int) -> None:
    logits = torch.full((1, 3), logit, dtype=dtype, requires_grad=True)
    cost = hazard_nll(logits, torch.tensor([1]), torch.tensor([censored]))
    (gradient,) = torch.autograd.grad(cost, logits)
    assert cost.isfinite()
    assert gradient.isfinite().all()
    assert (gradient[0, :2] != 0).all()
    hazard = torch.sigmoid(torch.tensor(logit, dtype=torch.float64)).item()
    # d/dl of -log(1 - h) is h, of -log h it is h - 1 = -sigmoid(-l).
    expected = [0.85 * hazard, 0.85 * hazard] if censored else [hazard, -1 / (1 + math.exp(logit))]
    assert gradient[0, :2].tolist() == pytest.approx(expected, rel=1e-5)
    assert gradient[0, 2] == 0


def test_gradients_by_finite_differences() -> None:
    logits, bins, censored = random_cases()
    assert torch.autograd.gradcheck(lambda x: hazard_nll(x, bins[:6], censored[:6]), logits[:6].requires_grad_())


def test_risk_rises_with_every_hazard() -> None:
    logits = random_cases()[0]
    for column in range(8):
        higher = logits.clone()
        higher[:, column] += 0.5
        assert (risk(higher) > risk(logits)).all()
    assert ((risk(logits) <= 0) & (risk(logits) >= -8)).all()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="expected"):
        hazard_nll(LOGITS, BINS[:3], CENSORED)
    with pytest.raises(ValueError, match=r"beta: 1\.5"):
        hazard_nll(LOGITS, BINS, CENSORED, beta=1.5)
    with pytest.raises(ValueError, match="reduction"):
        hazard_nll(LOGITS, BINS, CENSORED, reduction="median")  # type: ignore[arg-type]
