"""A site's patients in three parts, labels in proportion. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from fedad_components.fedsd.seeds import stream_seed
from fedad_components.mil.bags import Bag, BagError, Outcome

VALIDATION_SHARE = TEST_SHARE = 0.15

Label = int | bool | str


class SplitError(ValueError):
    """Patients that cannot be split; the message names the site, the label and the remedy."""


class Split(NamedTuple):
    """The patients of each part."""

    train: frozenset[str]
    validation: frozenset[str]
    test: frozenset[str]


def split_patients(labels: Mapping[str, Label], seed: int, site: str, classes: Collection[Label] = ()) -> Split:
    """70 % of the patients of each label for training, 15 % for validation, 15 % for test, rounded.

    Validation and test get a patient of each label at least, as far as there are three. Which ones follows from seed,
    site and patient alone, whatever the order of the patients.

    Args:
        labels: patient → label: :func:`labels_of`.
        seed: of the split.
        site: the site's name.
        classes: labels that must occur, three times or more. Survival names none: a site without events is of use.

    Raises:
        SplitError: if one of ``classes`` is too rare, a label is none of them, or there are too few patients for three
            parts.
    """
    strata: dict[Label, list[str]] = {name: [] for name in classes}
    for patient, label in labels.items():
        strata.setdefault(label, []).append(patient)
    if classes and (unknown := [label for label in strata if label not in classes]):
        raise SplitError(
            f"site {site!r}: label {unknown[0]!r}: expected one of {', '.join(map(repr, classes))}; correct the "
            f"catalogue, or add it to the experiment's classes"
        )
    for name in classes:
        if len(strata[name]) < 3:
            raise SplitError(
                f"site {site!r}: class {name!r} has {len(strata[name])} of the {len(labels)} patients: expected 3 or "
                f"more, one each for training, validation and test; add patients of it, join it with another class, "
                f"or leave the site out"
            )
    train: list[str] = []
    validation: list[str] = []
    test: list[str] = []
    for members in strata.values():
        ordered = sorted(members, key=lambda patient: (stream_seed(seed, f"split {patient}", site), patient))
        n_test = min(max(1, round(TEST_SHARE * len(ordered))), max(len(ordered) - 1, 0))
        n_validation = min(max(1, round(VALIDATION_SHARE * len(ordered))), max(len(ordered) - 1 - n_test, 0))
        test += ordered[:n_test]
        validation += ordered[n_test : n_test + n_validation]
        train += ordered[n_test + n_validation :]
    if not (train and validation and test):
        raise SplitError(
            f"site {site!r}: {len(labels)} patients cannot be split in three: expected 3 or more of one label"
        )
    return Split(frozenset(train), frozenset(validation), frozenset(test))


def labels_of(bags: Iterable[Bag]) -> dict[str, Label]:
    """Patient → class, or for survival whether an event was seen.

    Raises:
        BagError: if bags of one patient have different labels.
    """
    labels: dict[str, Label] = {}
    for bag in bags:
        label: Label = bool(bag.target.event) if isinstance(bag.target, Outcome) else bag.target
        if labels.setdefault(bag.patient, label) != label:
            raise BagError(
                f"bag {bag.id!r}: label {label!r}, and {labels[bag.patient]!r} in another bag of the same patient: "
                f"expected one label a patient; correct it, or split by labels of your own choice"
            )
    return labels
