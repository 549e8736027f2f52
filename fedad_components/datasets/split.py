"""Train and test parts that share no patient: the official split where there is one, else by a hash of the patient."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedad_components.datasets.spec import DataSetSpec, Part, PrepareError

TEST_SHARE = 0.2
"""Share of the patients in the test part, where the split is not the publishers'"""


class Item(NamedTuple):
    """An image: path inside the catalogue's folder, pseudonym, class, hospital, official split."""

    path: str
    patient: str | None
    label: str | None
    site: str | None
    split: str


def divide(spec: DataSetSpec, items: Sequence[Item]) -> dict[Part, list[Item]]:
    """Part → its images, in their order. Without patients, images are split.

    Raises:
        PrepareError: if the official split shares a patient, or there are fewer than two patients to split.
    """
    if spec.parts:
        parts: dict[Part, list[Item]] = {"train": [], "test": []}
        for item in items:
            parts[spec.parts[item.split]].append(item)
        shared = {item.patient for item in parts["train"]} & {item.patient for item in parts["test"]} - {None}
        if shared:
            raise PrepareError(
                f"{spec.title}: {len(shared):,} patients are in both parts of the official split; expected 0"
            )
        return parts
    test = held_out((item.patient or item.path for item in items), spec.name)
    return {
        "train": [item for item in items if (item.patient or item.path) not in test],
        "test": [item for item in items if (item.patient or item.path) in test],
    }


def held_out(units: Iterable[str], salt: str, share: float = TEST_SHARE) -> set[str]:
    """The ``share`` of the units with the smallest salted SHA-256, at least one and not all, whatever their order.

    Raises:
        PrepareError: if there are fewer than two.
    """
    ordered = sorted(set(units), key=lambda unit: hashlib.sha256(f"{salt}/{unit}".encode()).digest())
    if len(ordered) < 2:
        raise PrepareError(f"{salt}: found {len(ordered)} patient: expected two at least, one for each part")
    return set(ordered[: min(max(round(share * len(ordered)), 1), len(ordered) - 1)])
