from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, kstest
from torch import Tensor, nn

import fedad_components
from fedad_components.privacy.mechanism import GroupGaussian, sample_units, secure_generator

C = 2.0


def weights(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def mechanism(
    parameters: list[nn.Parameter], noise_multiplier: float = 0.0, expected_units: float = 1.0
) -> GroupGaussian:
    """On SGD with learning rate 1: a step subtracts the noised mean from the parameters."""
    return GroupGaussian(
        parameters,
        torch.optim.SGD(parameters, lr=1.0),
        noise_multiplier=noise_multiplier,
        max_grad_norm=C,
        expected_units=expected_units,
    )


def linear(parameters: list[nn.Parameter], gradient: list[list[float]]) -> Callable[[], Tensor]:
    """A loss with that gradient."""
    return lambda: sum((p * torch.tensor(g)).sum() for p, g in zip(parameters, gradient, strict=True))  # type: ignore[return-value]


@settings(max_examples=30, deadline=None)
@given(
    gradients=st.lists(st.lists(st.floats(-10, 10, width=32), min_size=5, max_size=5), max_size=4),
    expected_units=st.floats(0.5, 8),
)
def test_a_step_is_the_sum_of_jointly_clipped_gradients(gradients: list[list[float]], expected_units: float) -> None:
    parameters = weights(2, 3)
    losses = [linear(parameters, [gradient[:2], gradient[2:]]) for gradient in gradients]
    mechanism(parameters, expected_units=expected_units).step(losses)
    expected = np.zeros(5)
    for gradient in gradients:
        norm = np.linalg.norm(gradient)
        expected += np.array(gradient) * (min(1.0, C / norm) if norm else 1.0)
    found = -torch.cat([parameter.detach() for parameter in parameters]).numpy() * expected_units
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_millions_of_entries_are_clipped_as_exactly_as_few() -> None:
    """In float32, PyTorch's norm of these is 4e-4 too short, and clipping by it lets that much more than C through."""
    (parameter,) = parameters = weights(10_000_000)
    gradient = torch.randn(10_000_000, generator=torch.Generator().manual_seed(0))
    assert gradient.norm() < gradient.double().norm() * (1 - 1e-4)
    mechanism(parameters).step([lambda: (parameter * gradient).sum()])
    assert 1 - 1e-5 < parameter.detach().double().norm() / C < 1 + 1e-6


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_a_non_finite_gradient_counts_as_zero(bad: float) -> None:
    """1e30 has a square that float32 cannot hold, and is clipped like any other."""
    parameters = weights(2, 1)
    good = linear(parameters, [[0.5, 0.0], [1.0]])
    mechanism(parameters).step([linear(parameters, [[bad, 0.0], [1.0]]), good])
    expected = [-2.5, 0.0, -1.0] if bad == 1e30 else [-0.5, 0.0, -1.0]
    assert torch.cat(parameters).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_parameter_without_gradient_counts_as_zero() -> None:
    parameters = weights(1, 1)
    mechanism(parameters).step([lambda: parameters[0].sum() * 3])
    assert torch.cat(parameters).tolist() == pytest.approx([-2.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("draw", [0, 1, 2, 5])
def test_noise_has_the_stated_deviation_whatever_was_drawn(draw: int) -> None:
    """Sigma C over the expected units: a denominator of the draw's size would show here as another variance."""
    sigma, expected_units, n = 1.5, 4.0, 100_000
    parameters = weights(n // 2, n // 2)
    zero = linear(parameters, [[0.0], [0.0]])
    mechanism(parameters, sigma, expected_units).step([zero] * draw)
    noise = torch.cat(parameters).detach().double() * expected_units / (sigma * C)
    assert 1e-6 < chi2(n).cdf(float(noise.square().sum())) < 1 - 1e-6
    assert kstest(noise.numpy(), "norm").pvalue > 1e-6


def test_each_step_has_new_noise() -> None:
    parameters = weights(50_000)
    group = mechanism(parameters, 1.0)
    group.step([])
    first = parameters[0].detach().clone()
    group.step([])
    second = parameters[0].detach() - first
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / 50_000**0.5


def test_nothing_is_kept_between_steps() -> None:
    parameters = weights(2)
    group = mechanism(parameters)
    group.step([linear(parameters, [[1.0, 0.0]])])
    group.step([])
    assert parameters[0].tolist() == pytest.approx([-1.0, 0.0])


def test_layouts_of_gradients_follow_their_weights() -> None:
    """Fused Adam reads both as if they had the same strides."""
    generator = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(2, 8, 3, 3, 3, generator=generator)
    results = []
    for memory_format in (torch.channels_last, torch.contiguous_format):
        weight = nn.Parameter(start.clone().contiguous(memory_format=memory_format))
        optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
        group = GroupGaussian([weight], optimizer, noise_multiplier=0, max_grad_norm=C, expected_units=1)
        for _ in range(2):
            group.step([lambda weight=weight: (weight * gradient * weight).sum()])  # type: ignore[misc]
        results.append(weight.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("noise_multiplier", -1.0),
        ("noise_multiplier", float("nan")),
        ("noise_multiplier", float("inf")),
        ("max_grad_norm", 0.0),
        ("max_grad_norm", float("nan")),
        ("expected_units", 0),
    ],
)
def test_impossible_parameters_are_named(argument: str, value: float) -> None:
    parameters = weights(1)
    arguments = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_units": 1.0, argument: value}
    with pytest.raises(ValueError, match=argument):
        GroupGaussian(parameters, torch.optim.SGD(parameters, lr=1.0), **arguments)


def test_an_optimiser_with_other_parameters_is_refused() -> None:
    first, second = weights(1, 1)
    with pytest.raises(ValueError, match="without noise"):
        GroupGaussian(
            [first], torch.optim.SGD([first, second], lr=1.0), noise_multiplier=1, max_grad_norm=1, expected_units=1
        )


def test_the_draw_is_poisson() -> None:
    """Each unit's count over the draws, and each draw's size, are binomial; units are independent of each other."""
    n, rate, steps = 40, 0.2, 3000
    generator = secure_generator()
    drawn = np.zeros((steps, n), dtype=bool)
    for step in range(steps):
        drawn[step, sample_units(n, rate, generator)] = True
    for count in drawn.sum(axis=0):
        assert 1e-8 < binom(steps, rate).cdf(count) < 1 - 1e-8
    sizes = drawn.sum(axis=1)
    expected = binom(n, rate).pmf(np.arange(n + 1)) * steps
    common = expected > 5
    statistic = ((np.bincount(sizes, minlength=n + 1) - expected) ** 2 / expected)[common].sum()
    assert chi2(common.sum() - 1).sf(statistic) > 1e-6
    correlations = np.corrcoef(drawn.T)[np.triu_indices(n, 1)]
    assert np.abs(correlations).max() < 6 / steps**0.5


def test_draws_of_nobody_and_of_everybody() -> None:
    assert sample_units(0, 0.5, secure_generator()) == []
    assert sample_units(5, 1.0, secure_generator()) == [0, 1, 2, 3, 4]


def test_generators_differ_in_more_than_a_seed_of_32_bits() -> None:
    """PyTorch's CPU generator takes 32 bits of a seed, so that all noise of such a seed can be tried."""
    seeded = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(*(torch.rand(4, generator=generator) for generator in seeded))
    first, second = secure_generator(), secure_generator()
    assert not torch.equal(torch.rand(4, generator=first), torch.rand(4, generator=second))
    states = torch.stack([secure_generator().get_state() for _ in range(64)])
    varying = (states != states[0]).any(dim=0).sum()
    assert varying >= 4 * 624
    sample = torch.rand(100_000, generator=first)
    assert kstest(sample.numpy(), "uniform").pvalue > 1e-6


def test_opacus_engine_is_never_mentioned() -> None:
    """make_private on a contrastive loss clips the wrong thing: there must be no way to it."""
    root = Path(fedad_components.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"\bmake_private(?:_with_epsilon)?\b|PrivacyEngine", text) == [], path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opacus"):
                assert node.module.split(".")[1] in ("optimizers", "utils", "accountants"), path  # type: ignore[union-attr]
