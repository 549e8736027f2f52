"""The draw of sites, and what the controller is made from. Rounds over the wire are in tests/federation."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy.stats import chisquare

from fedad_components.config import ConfigError
from fedad_components.flare.controller import FedADController
from fedad_components.participation import draw_sites

SITES = ["a", "b", "c", "d", "e", "f"]


def test_m_of_k_without_replacement() -> None:
    for number in range(50):
        drawn = draw_sites(SITES, 4, seed=0, round_number=number)
        assert len(set(drawn)) == 4
        assert set(drawn) <= set(SITES)


def test_the_draw_is_uniform() -> None:
    counts: Counter[tuple[str, ...]] = Counter(
        tuple(draw_sites(SITES, 4, seed=7, round_number=number)) for number in range(3000)
    )
    assert len(counts) == 15  # every one of the 6 over 4 subsets
    assert chisquare(list(counts.values())).pvalue > 1e-4


def test_a_restart_draws_the_same_again_whatever_order_sites_connect_in() -> None:
    first = [draw_sites(SITES, 3, 5, number) for number in range(10)]
    assert [draw_sites(SITES[::-1], 3, 5, number) for number in range(10)] == first
    assert [draw_sites(SITES, 3, 6, number) for number in range(10)] != first


@pytest.mark.parametrize("count", [0, 6, 9])
def test_all_sites_where_none_is_left_out(count: int) -> None:
    assert draw_sites(SITES[::-1], count, 0, 0) == SITES


def test_a_wrong_configuration_stops_the_job_before_it_starts() -> None:
    with pytest.raises(ConfigError, match=r"loss\.gamma = -1"):
        FedADController({"loss": {"gamma": -1}})


def test_no_wait_is_unlimited() -> None:
    controller = FedADController({})
    assert controller._train_timeout > 0
