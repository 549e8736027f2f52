"""Patients stay on one side of every split, and an image of unknown patient is one of its own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedad_components.evaluation.folds import folds
from fedad_components.evaluation.images import (
    LabelledFeatures,
    LabelledImages,
    refuse_shared_pixels,
    shuffled_batches,
    unit_numbers,
)
from fedad_components.evaluation.probe import ProbeError


def features(labels: list[str], groups: list[str | None], name: str = "site") -> LabelledFeatures:
    return LabelledFeatures(name, np.arange(len(labels), dtype=float)[:, None], labels, unit_numbers(groups))


@given(st.lists(st.sampled_from([None, "p", "q", "r"]), min_size=1, max_size=12))
def test_units(groups: list[str | None]) -> None:
    numbers = unit_numbers(groups)
    assert sorted(set(numbers)) == list(range(len(set(groups) - {None}) + groups.count(None)))
    for first, second in zip(range(len(groups)), range(1, len(groups)), strict=False):
        same = groups[first] == groups[second] and groups[first] is not None
        assert (numbers[first] == numbers[second]) == same


def test_no_patient_is_on_both_sides_and_every_image_is_tested_once() -> None:
    generator = np.random.default_rng(0)
    groups: list[str | None] = [f"p{number}" for number in generator.integers(0, 17, 120)]
    data = features(generator.choice(["x", "y"], 120).tolist(), groups)
    tested: list[int] = []
    for train, test in folds(data, 5, seed=0, purpose="test"):
        assert not {groups[row] for row in train} & {groups[row] for row in test}
        assert sorted([*train, *test]) == list(range(120))
        tested += test.tolist()
    assert sorted(tested) == list(range(120))


def test_classes_are_in_proportion_where_no_patient_is_known() -> None:
    data = features(["x"] * 40 + ["y"] * 10, [None] * 50)
    for _, test in folds(data, 5, seed=0, purpose="test"):
        assert Counter(data.labels[row] for row in test) == {"x": 8, "y": 2}


def test_splits_differ_by_seed_and_purpose_only() -> None:
    data = features(["x", "y"] * 20, [None] * 40)

    def first(seed: int, purpose: str) -> list[int]:
        return next(folds(data, 2, seed, purpose))[1].tolist()

    assert first(0, "a") == first(0, "a")
    assert first(0, "a") != first(1, "a")
    assert first(0, "a") != first(0, "b")


def test_fewer_folds_than_asked_for_where_there_are_fewer_patients() -> None:
    data = features(["x", "y"] * 6, ["p", "p", "q", "q", "r", "r"] * 2)
    assert len(list(folds(data, 5, 0, "test"))) == 3
    with pytest.raises(ProbeError, match="'site': 4 images of 1 patients"):
        next(folds(features(["x", "y"] * 2, ["p"] * 4), 5, 0, "test"))


def test_pooled_sites_do_not_share_patients() -> None:
    pooled = LabelledFeatures.pooled(
        [features(["x", "y"], ["1", "1"], "a"), features(["x"], ["1"], "b"), features(["y", "x"], ["1", "2"], "c")]
    )
    assert pooled.units.tolist() == [0, 0, 1, 2, 3]
    assert pooled.labels == ["x", "y", "x", "y", "x"]
    assert pooled.x[:, 0].tolist() == [0, 1, 0, 0, 1]


def pictures(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)


def test_an_image_of_the_test_among_the_sources_is_refused() -> None:
    target = LabelledImages("unseen", pictures(3, 0), ["x"] * 3)
    source = LabelledImages("seen", pictures(3, 1), ["x"] * 3)
    refuse_shared_pixels([source], target)
    mixed = LabelledImages("mixed", np.concatenate([source.images, target.images[2:]]), ["x"] * 4)
    with pytest.raises(ProbeError, match="'mixed': 1 of its images are also in the test data set 'unseen'"):
        refuse_shared_pixels([source, mixed], target)


@pytest.mark.parametrize(("labels", "groups"), [(["x"], None), (["x", "y"], ["p"])])
def test_labels_and_groups_belong_to_images(labels: list[str], groups: list[str | None] | None) -> None:
    with pytest.raises(ProbeError, match="'site': 2 images"):
        LabelledImages("site", pictures(2, 0), labels, groups)


@pytest.mark.parametrize(("count", "size"), [(1, 8), (9, 8), (64, 8), (65, 8), (71, 8)])
def test_batches_are_equal_and_complete(count: int, size: int) -> None:
    batches = list(shuffled_batches(count, size, torch.Generator().manual_seed(0)))
    assert sorted(np.concatenate(batches)) == list(range(count))
    lengths = {len(batch) for batch in batches}
    assert max(lengths) - min(lengths) <= 1
    assert count == 1 or 1 not in lengths
