from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fedad_components.config import FedADConfig
from fedad_components.privacy.client_dp import ClientDPRefused, check_size, clip_update, noise_ratio, noise_sum

FINITE = st.floats(-100, 100, width=32)


def configuration(**privacy: object) -> FedADConfig:
    return FedADConfig.parse(
        {
            "model": {"norm": "group", "image_size": 32},
            "privacy": {"mode": "client_dp", **privacy},
            "federation": {"update": "difference"},
        }
    )


@settings(max_examples=50, deadline=None)
@given(values=st.lists(FINITE, min_size=3, max_size=3), max_norm=st.floats(0.1, 50))
def test_an_update_is_clipped_as_one_vector(values: list[float], max_norm: float) -> None:
    clipped = clip_update({"a": torch.tensor(values[:2]), "b": torch.tensor(values[2:])}, max_norm)
    found, given_ = torch.cat([clipped["a"], clipped["b"]]).double(), torch.tensor(values).double()
    norm = float(given_.norm())
    expected = given_ if norm <= max_norm else given_ * max_norm / norm
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert found.norm() <= max_norm * (1 + 1e-6)


def test_an_update_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        clip_update({"a": torch.tensor([1.0, torch.nan])}, 1.0)


def test_the_mean_has_the_number_of_sites_asked_below_it() -> None:
    """Two of five answered: the sum of two, noised as ever, over five."""
    n, z, S, sites = 100_000, 2.0, 0.5, 5
    total = {"a": torch.full((n,), 3.0, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
    mean = noise_sum(total, sites, noise_multiplier=z, max_norm=S, generator=torch.Generator().manual_seed(0))
    assert mean.keys() == total.keys()
    assert mean["a"].dtype == torch.float32
    noise = (mean["a"].double() * sites - 3.0) / (z * S)
    assert kstest(noise.numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("wrong", [{"sites": 0}, {"noise_multiplier": 0.0}, {"max_norm": math.nan}])
def test_a_sum_without_noise_is_refused(wrong: dict) -> None:
    arguments = {"sites": 3, "noise_multiplier": 1.0, "max_norm": 1.0} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        noise_sum({"a": torch.zeros(1)}, generator=torch.Generator(), **arguments)


def test_the_ratio_is_the_noises_length_over_the_longest_update() -> None:
    d, z, sites = 40_000, 2.0, 10
    zero = {"a": torch.zeros(d)}
    noise = noise_sum(zero, sites, noise_multiplier=z, max_norm=1.0, generator=torch.Generator().manual_seed(0))["a"]
    assert noise.norm().item() == pytest.approx(noise_ratio(sites, z, d), rel=0.02)


def test_a_small_federation_is_refused_with_ratio_and_fix() -> None:
    """ResNet-18 with the small stem has 11,168,832 weights: sqrt is 3342."""
    with pytest.raises(
        ClientDPRefused, match=r"5 sites: z sqrt\(d\) / M = 2 \* sqrt\(11168832\) / 5 = 1337: .*6684 sites"
    ):
        check_size(5, configuration())
    with pytest.raises(ClientDPRefused):
        check_size(6683, configuration())
    check_size(6684, configuration())
    check_size(5, configuration(force_small_federation=True))
