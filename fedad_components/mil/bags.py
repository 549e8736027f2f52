"""Bags of patches, padded to batches. Needs torch; no FLARE.

A site's bags are a ``Mapping`` from id to :class:`Bag`: a dict, or something that reads a bag when it is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedad_components.fedsd.seeds import stream, stream_seed


class BagError(ValueError):
    """A bag that cannot be used; the message names it and what was expected."""


class Outcome(NamedTuple):
    """Survival: time to the event, or the last time seen without one."""

    time: float
    event: bool


@dataclass(frozen=True)
class Bag:
    """All patches of a slide or of a patient, with one target.

    Attributes:
        id: of the bag, unique at the site: a pseudonym.
        patient: pseudonym; bags of one patient stay in one part of a split.
        features: float ``(P, d)``, P > 0.
        target: a class from 0, or an :class:`Outcome`.

    Raises:
        BagError: if there is no patch.
    """

    id: str
    patient: str
    features: Tensor
    target: int | Outcome

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or not len(self.features):
            raise BagError(
                f"bag {self.id!r}: features are {tuple(self.features.shape)}: expected (P, d) with a patch or more; "
                f"leave the bag out"
            )


@dataclass(frozen=True)
class Bags:
    """A padded batch of N bags, the longest of P patches.

    Attributes:
        ids: of the bags.
        features: ``(N, P, d)``, 0 at padding.
        mask: bool ``(N, P)``, True at a patch.
        targets: of the bags.

    Raises:
        BagError: if a bag is empty.
    """

    ids: tuple[str, ...]
    features: Tensor
    mask: Tensor
    targets: tuple[int | Outcome, ...]

    def __post_init__(self) -> None:
        for name, patches in zip(self.ids, self.mask.sum(dim=1).tolist(), strict=True):
            if not patches:
                raise BagError(f"bag {name!r}: it has no patch: leave it out")

    def to(self, device: torch.device | str) -> Bags:
        """The same on that device."""
        return replace(self, features=self.features.to(device), mask=self.mask.to(device))


def collate(bags: Sequence[Bag], max_patches: int | None = None, seed: int = 0, draw: int = 0) -> Bags:
    """One batch of ragged bags.

    Args:
        bags: one or more, of one d.
        max_patches: a larger bag gives so many of its patches, drawn without replacement, in their order. Which ones
            depends on ``seed``, ``draw`` and the bag's id alone, never on the other bags of the batch.
        seed: of the experiment.
        draw: an epoch's number, say.

    Raises:
        BagError: if there is no bag, two have different d, or ``max_patches`` is below 1.
    """
    if not bags:
        raise BagError("a batch needs a bag or more")
    if max_patches is not None and max_patches < 1:
        raise BagError(f"max_patches: {max_patches}: expected 1 or more, or none for all")
    widths = {bag.features.shape[1]: bag.id for bag in bags}
    if len(widths) > 1:
        found = ", ".join(f"{width} in {name!r}" for width, name in sorted(widths.items()))
        raise BagError(f"bags of different encoders: d is {found}: expected one length; extract the features again")
    features = [_drawn(bag, max_patches, seed, draw) for bag in bags]
    lengths = torch.tensor([len(patches) for patches in features])
    return Bags(
        ids=tuple(bag.id for bag in bags),
        features=torch.nn.utils.rnn.pad_sequence(features, batch_first=True),
        mask=torch.arange(int(lengths.max())) < lengths[:, None],
        targets=tuple(bag.target for bag in bags),
    )


def merged_by_patient(bags: Sequence[Bag]) -> list[Bag]:
    """One bag a patient, with the patches of all its slides, named by the patient: the unit of ``dp_sgd``.

    Raises:
        BagError: if bags of one patient have different targets.
    """
    of_patient: dict[str, list[Bag]] = {}
    for bag in bags:
        of_patient.setdefault(bag.patient, []).append(bag)
    for slides in of_patient.values():
        if other := [bag.id for bag in slides if bag.target != slides[0].target]:
            raise BagError(
                f"bags {slides[0].id!r} and {other[0]!r} are of one patient, with different targets: expected one "
                f"target a patient; correct it, or keep the slides apart as bags of their own"
            )
    return [
        Bag(patient, patient, torch.cat([bag.features for bag in slides]), slides[0].target)
        for patient, slides in of_patient.items()
    ]


def order_of(
    labels: Sequence[Hashable], seed: int, site: str, epoch: int, balanced: bool = False
) -> npt.NDArray[np.int64]:
    """The rows of one epoch, ``(n,)``: each bag once in random order.

    With ``balanced``, n draws with replacement instead, in which every label is as probable as every other. (For
    survival the label is whether an event was seen.)
    """
    generator = np.random.default_rng(stream_seed(seed, "order of bags", site, epoch))
    if balanced:
        return generator.choice(len(labels), size=len(labels), p=balanced_weights(labels))
    return generator.permutation(len(labels))


def balanced_weights(labels: Sequence[Hashable]) -> npt.NDArray[np.float64]:
    """Probability of each bag, ``(n,)``: 1 / (K n_y), so that the K labels that occur are drawn alike."""
    count = Counter(labels)
    return np.array([1 / (len(count) * count[label]) for label in labels])


def _drawn(bag: Bag, max_patches: int | None, seed: int, draw: int) -> Tensor:
    patches = len(bag.features)
    if max_patches is None or patches <= max_patches:
        return bag.features
    order = torch.randperm(patches, generator=stream(seed, f"patches of {bag.id}", round_number=draw))
    return bag.features[order[:max_patches].sort().values]
