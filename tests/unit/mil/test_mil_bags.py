"""Ragged bags to batches, and patients to parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedad_components.mil.bags import (
    Bag,
    BagError,
    Bags,
    Outcome,
    balanced_weights,
    collate,
    merged_by_patient,
    order_of,
)
from fedad_components.mil.splits import SplitError, labels_of, split_patients


def bag(name: str, patches: int, patient: str | None = None, target: int | Outcome = 0, d: int = 3) -> Bag:
    values = torch.arange(patches * d, dtype=torch.float32).reshape(patches, d) + 1
    return Bag(name, patient or name, values, target)


def test_collate_pads_with_zeros_and_masks() -> None:
    batch = collate([bag("a", 2), bag("b", 4, target=1)])
    assert batch.ids == ("a", "b")
    assert batch.targets == (0, 1)
    assert batch.features.shape == (2, 4, 3)
    assert batch.mask.tolist() == [[True, True, False, False], [True] * 4]
    assert not batch.features[~batch.mask].any()
    assert torch.equal(batch.features[0, :2], bag("a", 2).features)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 25), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_sampling_takes_distinct_patches_in_order(lengths: list[int], most: int, seed: int) -> None:
    bags = [bag(f"b{row}", length) for row, length in enumerate(lengths)]
    batch = collate(bags, most, seed)
    for row, length in enumerate(lengths):
        first = batch.features[row][batch.mask[row]][:, 0]
        assert len(first) == min(length, most)
        assert (first.diff() > 0).all()
        assert set(first.tolist()) <= set(bags[row].features[:, 0].tolist())


def test_a_bags_sample_does_not_depend_on_its_neighbours() -> None:
    large, other = bag("large", 50), bag("other", 60)
    alone = collate([large], 5, seed=1).features[0]
    assert torch.equal(collate([other, large], 5, seed=1).features[1], alone)
    assert not torch.equal(collate([large], 5, seed=2).features[0], alone)
    assert not torch.equal(collate([large], 5, seed=1, draw=1).features[0], alone)


def test_an_empty_bag_is_named() -> None:
    with pytest.raises(BagError, match="'S-17'"):
        bag("S-17", 0)
    mask = torch.tensor([[True], [False]])
    with pytest.raises(BagError, match="'S-18'"):
        Bags(("S-17", "S-18"), torch.zeros(2, 1, 3), mask, (0, 0))


@pytest.mark.parametrize(
    ("bags", "most", "says"),
    [
        ([], None, "a bag or more"),
        ([bag("a", 2)], 0, "max_patches: 0"),
        ([bag("a", 2), bag("b", 2, d=4)], None, "3 in 'a', 4 in 'b'"),
    ],
)
def test_what_collate_refuses(bags: list[Bag], most: int | None, says: str) -> None:
    with pytest.raises(BagError, match=says):
        collate(bags, most)


def test_slides_of_a_patient_become_one_bag() -> None:
    slides = [bag("s1", 2, "p"), bag("s2", 3, "q", 1), bag("s3", 4, "p")]
    merged = merged_by_patient(slides)
    assert [(each.id, len(each.features), each.target) for each in merged] == [("p", 6, 0), ("q", 3, 1)]
    with pytest.raises(BagError, match="'s1' and 's4'"):
        merged_by_patient([*slides, bag("s4", 1, "p", 1)])


def test_order_of_an_epoch() -> None:
    labels = [0] * 90 + [1] * 10
    assert sorted(order_of(labels, 0, "A", 0)) == list(range(100))
    assert order_of(labels, 0, "A", 0).tolist() == order_of(labels, 0, "A", 0).tolist()
    assert order_of(labels, 0, "A", 0).tolist() != order_of(labels, 0, "A", 1).tolist()
    assert order_of(labels, 0, "A", 0).tolist() != order_of(labels, 0, "B", 0).tolist()


def test_balanced_draws() -> None:
    labels = ["tumour"] * 90 + ["normal"] * 10
    weights = balanced_weights(labels)
    assert weights.sum() == pytest.approx(1)
    assert weights[:90].sum() == pytest.approx(0.5)
    drawn = np.concatenate([order_of(labels, 0, "A", epoch, balanced=True) for epoch in range(100)])
    assert (drawn >= 90).mean() == pytest.approx(0.5, abs=5 * 0.5 / 100)  # five standard errors of 10,000 draws


@given(st.dictionaries(st.sampled_from("abc"), st.integers(3, 60), min_size=1), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_a_split_is_a_stratified_partition(sizes: dict[str, int], seed: int) -> None:
    labels = {f"{name}{number}": name for name, size in sizes.items() for number in range(size)}
    parts = split_patients(labels, seed, "A", classes=sorted(sizes))
    assert frozenset().union(*parts) == set(labels)
    assert sum(map(len, parts)) == len(labels)
    for name, size in sizes.items():
        train, validation, test = (sum(labels[patient] == name for patient in part) for part in parts)
        assert train >= 1
        assert validation == test == max(1, round(0.15 * size))


def test_a_split_follows_from_seed_site_and_patients_alone() -> None:
    labels = {f"p{number}": number % 2 for number in range(40)}
    first = split_patients(labels, 0, "A")
    assert split_patients(dict(reversed(labels.items())), 0, "A") == first
    assert split_patients(labels, 1, "A") != first
    assert split_patients(labels, 0, "B") != first
    assert [len(part) for part in first] == [34 - 6, 6, 6]


def test_a_class_missing_at_a_site() -> None:
    labels = {f"p{number}": "lung" for number in range(20)}
    with pytest.raises(SplitError, match=r"site 'Ulm': class 'kidney' has 0 of the 20 patients.*or leave the site out"):
        split_patients(labels, 0, "Ulm", classes=["kidney", "lung"])
    with pytest.raises(SplitError, match="class 'kidney' has 2"):
        split_patients(labels | {"q1": "kidney", "q2": "kidney"}, 0, "Ulm", classes=["kidney", "lung"])
    with pytest.raises(SplitError, match="label 'lung': expected one of 'kidney'"):
        split_patients(labels, 0, "Ulm", classes=["kidney"])


def test_survival_is_split_by_event_and_needs_none() -> None:
    bags = [bag(f"b{n}", 1, f"p{n}", Outcome(float(n), n % 4 == 0)) for n in range(40)]
    parts = split_patients(labels_of(bags), 0, "A")
    assert [sum(int(patient[1:]) % 4 == 0 for patient in part) for part in parts] == [6, 2, 2]
    censored = split_patients({f"p{n}": False for n in range(20)}, 0, "A")
    assert [len(part) for part in censored] == [14, 3, 3]
    one_event = split_patients({f"p{n}": n == 0 for n in range(21)}, 0, "A")
    assert "p0" in one_event.train


def test_too_few_patients_for_three_parts() -> None:
    with pytest.raises(SplitError, match="site 'A': 2 patients"):
        split_patients({"p": 0, "q": 0}, 0, "A")


def test_one_label_a_patient() -> None:
    assert labels_of([bag("s1", 1, "p", 1), bag("s2", 1, "p", 1), bag("s3", 1, "q")]) == {"p": 1, "q": 0}
    with pytest.raises(BagError, match="'s2'"):
        labels_of([bag("s1", 1, "p", 1), bag("s2", 1, "p", 0)])
