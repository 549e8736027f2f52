from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from fedad_components.privacy.weight_noise import add_weight_noise


@pytest.mark.parametrize("name", ["conv1.weight", "bn1.bias", "bn1.running_mean"])
def test_noise_is_alpha_times_the_tensors_own_deviation(name: str) -> None:
    weights = torch.randn(50_000, generator=torch.Generator().manual_seed(0)) * 3 + 1
    theta = {name: weights.clone(), "other": torch.tensor([0.0, 1e-3])}
    noised = add_weight_noise(theta, 0.1, torch.Generator().manual_seed(1))
    noise = (noised[name] - weights) / (0.1 * float(weights.double().std(correction=0)))
    assert kstest(noise.numpy(), "norm").pvalue > 1e-6
    assert torch.equal(theta[name], weights)
    assert (noised["other"] - theta["other"]).abs().max() < 1e-3
    assert noised[name].dtype == torch.float32


def test_a_tensor_without_spread_gets_none() -> None:
    ones = {"bn1.weight": torch.ones(64)}
    assert torch.equal(add_weight_noise(ones, 0.5, torch.Generator())["bn1.weight"], ones["bn1.weight"])


def test_variances_stay_variances() -> None:
    variances = {"bn1.running_var": torch.cat([torch.full((500,), 1e-6), torch.tensor([50.0])])}
    noised = add_weight_noise(variances, 1.0, torch.Generator().manual_seed(0))["bn1.running_var"]
    assert (noised >= 0).all()
    assert (noised == 0).any()
