from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedad_components.atsa import ATSA, instability
from fedad_components.config import ATSAConfig

deltas = st.floats(0, 10, allow_nan=False)


def test_instability_by_hand() -> None:
    old = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]]), "bn.running_mean": torch.tensor([1e6])}
    new = {"a": torch.tensor([3.0, 0.75]), "b": torch.tensor([[5.0]]), "bn.running_mean": torch.tensor([0.0])}
    assert instability(new, old, ["a", "b"]) == pytest.approx(1.25 / 5.0, rel=1e-8)


def test_instability_accumulates_in_float64() -> None:
    """In float32 a sum of squares above 2^24 would swallow the ones that follow."""
    for large, small in (("a", "b"), ("a", "a")):  # in two tensors, and in one
        old = {large: torch.tensor([2.0**13])}
        old[small] = torch.cat([old.get(small, torch.empty(0)), torch.ones(1003)])
        new = {name: torch.where(tensor == 1, 0.0, tensor) for name, tensor in old.items()}
        expected = math.sqrt(1003) / math.sqrt(2.0**26 + 1003)
        assert instability(new, old, old) == pytest.approx(expected, rel=1e-11)


def test_instability_from_nothing_is_finite() -> None:
    assert instability({"a": torch.ones(1)}, {"a": torch.zeros(1)}, ["a"]) == pytest.approx(1e8)


def test_schedule_against_a_table_by_hand() -> None:
    """alpha .5, k ln 2, lambda in [0, 1]: e^{-k Delta} is 2^{-Delta}, so every entry is a dyadic fraction."""
    atsa = ATSA(ATSAConfig(lambda_min=0.0, lambda_max=1.0, alpha=0.5, k=math.log(2)))
    assert atsa.lambda_t == 0.0
    table = [(1.0, 0.25), (2.0, 0.25), (0.0, 0.625), (3.0, 0.375)]
    for delta, expected in table:
        assert atsa.update(delta) == pytest.approx(expected, rel=1e-12)
    assert atsa.history == [1.0, 2.0, 0.0, 3.0]


def test_defaults_reach_the_papers_figure() -> None:
    """Delta falling from 0.195 to 0.05 over 27 rounds gives lambda of about 0.67 (Figures 9-11)."""
    atsa = ATSA(ATSAConfig())
    assert atsa.lambda_t == 0.1
    for t in range(27):
        atsa.update(0.195 + (0.05 - 0.195) * t / 26)
    assert atsa.lambda_t == pytest.approx(0.67, abs=0.07)


@given(st.lists(deltas, min_size=1, max_size=8), deltas)
def test_lambda_never_grows_with_instability(history: list[float], other: float) -> None:
    """Two runs that differ in the last Delta only: the less stable one gets the smaller or equal lambda."""
    low, high = sorted((history[-1], other))
    runs = []
    for last in (low, high):
        atsa = ATSA(ATSAConfig())
        for delta in [*history[:-1], last]:
            atsa.update(delta)
        runs.append(atsa.lambda_t)
    assert runs[0] >= runs[1]


@given(st.lists(deltas, max_size=40), st.sampled_from(["absolute", "relative"]))
def test_lambda_stays_in_its_range(history: list[float], scale: str) -> None:
    config = ATSAConfig(instability_scale=scale)
    atsa = ATSA(config)
    for delta in history:
        assert config.lambda_min - 1e-12 <= atsa.update(delta) <= config.lambda_max + 1e-12


def test_relative_scale_forgets_the_unit_of_delta() -> None:
    small, large = ATSA(ATSAConfig(instability_scale="relative")), ATSA(ATSAConfig(instability_scale="relative"))
    for delta in (0.03, 0.02, 0.01):
        assert small.update(delta) == pytest.approx(large.update(1000 * delta), rel=1e-5)


def test_fixed_schedule_only_records() -> None:
    atsa = ATSA(ATSAConfig(schedule="fixed", lambda_fixed=0.5))
    assert [atsa.lambda_t, atsa.update(0.2), atsa.update(0.0)] == [0.5, 0.5, 0.5]
    assert atsa.history == [0.2, 0.0]
    assert atsa.warning() is None


def test_phase_follows_the_threshold() -> None:
    atsa = ATSA(ATSAConfig(stability_threshold=0.05))
    phases = [atsa.phase]
    for delta in (0.2, 0.05, 0.06):
        atsa.update(delta)
        phases.append(atsa.phase)
    assert phases == ["exploration", "exploration", "enforcement", "exploration"]


def test_warns_only_when_nothing_adapted() -> None:
    still, moving = ATSA(ATSAConfig()), ATSA(ATSAConfig())
    for t in range(27):
        still.update(0.029 - 0.007 * t / 26)  # as measured in the prototype
        moving.update(0.195 - 0.145 * t / 26)
    assert "did not adapt" in (still.warning() or "")
    assert moving.warning() is None


@pytest.mark.parametrize(("variation", "warns"), [(0.049, True), (0.051, False)])
def test_the_warning_begins_at_five_per_cent(variation: float, warns: bool) -> None:
    atsa = ATSA(ATSAConfig(k=5.0))
    for delta in (0.0, -math.log(1 - variation) / 5.0):
        atsa.update(delta)
    assert bool(atsa.warning()) == warns


def test_continues_from_json() -> None:
    first, second = ATSA(ATSAConfig(instability_scale="relative")), ATSA(ATSAConfig(instability_scale="relative"))
    first.update(0.2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert first.update(0.1) == second.update(0.1)
    assert first.history == second.history


@pytest.mark.parametrize("delta", [math.nan, math.inf, -0.1])
def test_refuses_an_unusable_delta(delta: float) -> None:
    with pytest.raises(ValueError, match="instability"):
        ATSA(ATSAConfig()).update(delta)
