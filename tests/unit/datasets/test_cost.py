"""The cost estimate against values worked out by hand, and against enumeration of every draw."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fedad_components.config import FedADConfig
from fedad_components.datasets.cost import ASSUMED_STEP_MS, estimate, mean_slowest, paper_sites, steps_per_epoch
from fedad_components.fedsd.state import initial_state


def config(**sections: dict[str, Any]) -> FedADConfig:
    return FedADConfig.parse(sections)


@pytest.mark.parametrize(
    ("images", "steps"), [(2, 1), (63, 1), (64, 1), (65, 1), (66, 2), (128, 2), (129, 2), (640, 10)]
)
def test_steps_are_those_of_the_trainers_batches(images: int, steps: int) -> None:
    """A single image left over sits out, as in training."""
    assert steps == sum(len(batch) >= 2 for batch in torch.arange(images).split(64))
    assert steps_per_epoch(images, 64) == steps


@pytest.mark.parametrize("drawn", range(1, 7))
def test_the_slowest_site_is_the_mean_over_all_draws(drawn: int) -> None:
    steps = [31, 5, 5, 120, 7, 64]
    draws = list(itertools.combinations(steps, drawn))
    assert mean_slowest(steps, drawn) == pytest.approx(sum(map(max, draws)) / len(draws), rel=1e-12)


def test_by_hand() -> None:
    """Two of three sites, 10, 20 and 30 steps: 3 rounds · 2/3 · 2 epochs · 60 steps = 240 steps; 240 · 15 s = 1 h.

    The slowest of a pair is 20, 30 or 30: 3 · 2 · 80/3 = 160 steps = 2/3 h.
    """
    settings = config(
        training={"epochs": 2, "batch_size": 10}, federation={"rounds": 3, "sites_per_round": 2, "min_sites": 2}
    )
    cost = estimate({"a": 100, "b": 200, "c": 300}, settings, step_ms=15_000.0)
    assert cost.steps == pytest.approx(240.0)
    assert cost.gpu_hours == pytest.approx(1.0)
    assert cost.federation_hours == pytest.approx(2.0 / 3.0)
    assert cost.wire_bytes == 3 * 2 * 2 * cost.weight_bytes


@pytest.mark.parametrize(("norm", "dtype", "element"), [("batch", "float32", 4), ("local", "bfloat16", 2)])
def test_a_message_weighs_what_the_weights_weigh(norm: str, dtype: str, element: int) -> None:
    settings = config(model={"norm": norm}, federation={"wire_dtype": dtype})
    elements = sum(tensor.numel() for tensor in initial_state(settings).values())
    assert estimate({"a": 10, "b": 10}, settings).weight_bytes == element * elements


def test_resnet18_by_hand() -> None:
    """11,176,512 parameters without the last layer, and a mean and a variance of each of BatchNorm's 4,800 channels."""
    assert estimate({"a": 10, "b": 10}, config()).weight_bytes == 4 * (11_176_512 + 2 * 4_800)


def test_all_sites_take_part_by_default() -> None:
    cost = estimate({"a": 640, "b": 1280}, config())
    assert (cost.sites_per_round, cost.steps) == (2, 40 * 3 * 30)
    assert cost.federation_hours == pytest.approx(40 * 3 * 20 * ASSUMED_STEP_MS / 3.6e6)


def test_max_images_caps_a_site() -> None:
    assert estimate({"a": 640, "b": 1280}, config(training={"max_images": 640})).images == {"a": 640, "b": 640}


def test_an_assumption_is_called_one() -> None:
    assert estimate({"a": 10, "b": 10}, config()).step_ms_is == "assumed"
    assert estimate({"a": 10, "b": 10}, config(), ASSUMED_STEP_MS).step_ms_is == "given by the user"


def test_the_papers_sites() -> None:
    assert paper_sites() == {
        "chestxray14": 86_524,
        "chexpert": 223_414,
        "patchcamelyon": 294_912,
        "breakhis": 6_327,
        "ham10000": 8_012,
        "hyperkvasir": 8_530,
    }


def test_more_drawn_than_there_are() -> None:
    with pytest.raises(ValueError, match="sites_per_round = 4: expected at most the 2 sites"):
        estimate({"a": 10, "b": 10}, config(federation={"sites_per_round": 4}))


@pytest.mark.parametrize("images", [{}, {"a": 10, "b": 1}])
def test_sites_that_cannot_train(images: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        estimate(images, config())
