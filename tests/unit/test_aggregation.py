"""The streaming mean against numpy's weighted average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedad_components.aggregation import StreamingMean


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=8), st.integers(0, 2**31))
def test_equals_numpys_weighted_average(weights: list[int], seed: int) -> None:
    updates = np.random.default_rng(seed).standard_normal((len(weights), 7)).astype(np.float32)
    mean = StreamingMean()
    for update, weight in zip(updates, weights, strict=True):
        mean.add({"w": torch.from_numpy(update)}, weight)
    expected = np.average(updates.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(mean.result()["w"].numpy(), expected, rtol=1e-6, atol=1e-7)
    assert (mean.weight, mean.count) == (sum(weights), len(weights))


def test_the_order_of_answers_does_not_show() -> None:
    updates = torch.randn(6, 1000, generator=torch.Generator().manual_seed(1))
    means = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        mean = StreamingMean()
        for index in order:
            mean.add({"w": updates[index]}, 10 + index)
        means.append(mean.result()["w"])
    assert torch.equal(*means)


def test_memory_does_not_grow_with_the_sites() -> None:
    mean = StreamingMean()
    for _ in range(20):
        mean.add({"w": torch.ones(10)}, 1)
    assert sum(total.numel() for total in mean._sums.values()) == 10


def test_impossible_updates_are_errors() -> None:
    mean = StreamingMean()
    with pytest.raises(ValueError, match="no update"):
        mean.result()
    with pytest.raises(ValueError, match="positive, got 0"):
        mean.add({"w": torch.ones(1)}, 0)
    mean.add({"w": torch.ones(1)}, 1)
    with pytest.raises(ValueError, match=r"names differ.*'v'"):
        mean.add({"v": torch.ones(1)}, 1)
