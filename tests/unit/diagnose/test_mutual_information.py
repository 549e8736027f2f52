"""MINE against the closed form of correlated Gaussians: -1/2 ln(1 - rho^2) nats a dimension.

Tolerance 0.15 nats: the estimate is a mean over 300 held-out pairs, whose standard deviation is about 0.06 here, and a
bound that the critic does not quite reach.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedad_components.evaluation.mutual_information import (
    MutualInformationError,
    donsker_varadhan,
    mutual_information,
)


def gaussians(n: int, rho: float, dimension: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(n, dimension))
    return x, rho * x + math.sqrt(1 - rho**2) * generator.normal(size=(n, dimension))


@pytest.mark.parametrize(("rho", "dimension"), [(0.0, 3), (0.9, 2)])
def test_correlated_gaussians(rho: float, dimension: int) -> None:
    x, y = gaussians(1500, rho, dimension)
    got = mutual_information(x, y)
    assert got.nats == pytest.approx(-dimension / 2 * math.log(1 - rho**2), abs=0.15)
    assert got.null == pytest.approx(0, abs=0.1)
    assert got.held_out == 300
    assert got.ceiling == pytest.approx(math.log(300))


def test_a_dependence_without_correlation_is_found() -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(600, 1))
    y = x**2 + 0.05 * generator.normal(size=(600, 1))
    assert abs(np.corrcoef(x[:, 0], y[:, 0])[0, 1]) < 0.1
    assert mutual_information(x, y).nats > 0.5


def test_the_bound_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0], [0.0, math.log(3.0)]])  # pairs, then mismatches
    assert donsker_varadhan(scores).item() == pytest.approx(2 - math.log((1 + 3) / 2))


def test_scale_does_not_matter_and_a_constant_tells_nothing() -> None:
    x, y = gaussians(200, 0.9)
    assert mutual_information(1e-3 * x + 7, y, steps=40).nats == pytest.approx(
        mutual_information(x, y, steps=40).nats, abs=1e-3
    )
    assert mutual_information(np.ones_like(x), y).nats == 0


@pytest.mark.parametrize(("n", "value", "message"), [(59, 0.0, "at least 60 pairs"), (60, np.nan, "not finite")])
def test_what_cannot_be_estimated_is_refused(n: int, value: float, message: str) -> None:
    with pytest.raises(MutualInformationError, match=message):
        mutual_information(np.full((n, 2), value), np.zeros((n, 2)))
