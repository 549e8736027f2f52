"""Labelled images and features of one site, as the evaluation takes them. Labels are for evaluation only; no FLARE."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedad_components.evaluation.probe import ProbeError, check_features


@dataclass(frozen=True)
class LabelledImages:
    """One data set.

    Attributes:
        name: of the data set or site; unique among those of an evaluation.
        images: uint8 ``(n, S, S, 3)``, RGB; a memory map will do.
        labels: class of each image.
        groups: patient (or slide, donor) of each image, None where unknown; None altogether if none is known.

    Raises:
        ProbeError: if images, labels and groups do not have the same length, above 0.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: Sequence[str]
    groups: Sequence[str | None] | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.images), len(self.labels), len(self.labels if self.groups is None else self.groups)]
        if len(set(lengths)) != 1 or not len(self.images):
            raise ProbeError(
                f"data set {self.name!r}: {lengths[0]} images, {lengths[1]} labels, {lengths[2]} groups: expected the "
                f"same number of each, above 0"
            )

    def features(self, x: npt.NDArray) -> LabelledFeatures:
        """These images' features ``(n, F)`` under the same labels and groups."""
        return LabelledFeatures(self.name, check_features(x, self.labels, self.name), list(self.labels), self.units)

    def at_most(self, count: int) -> LabelledImages:
        """These images, or a seeded choice of ``count`` of them that is the same for everybody."""
        if count >= len(self.labels):
            return self
        return self.take(np.sort(np.random.default_rng(0).permutation(len(self.labels))[:count]))

    def take(self, rows: npt.NDArray) -> LabelledImages:
        """Only these images."""
        groups = None if self.groups is None else [self.groups[row] for row in rows]
        return LabelledImages(self.name, self.images[rows], [self.labels[row] for row in rows], groups)

    @property
    def units(self) -> npt.NDArray[np.intp]:
        """Number of each image's patient or group, ``(n,)``; an image of unknown group is one of its own."""
        return unit_numbers([None] * len(self.labels) if self.groups is None else self.groups)


@dataclass(frozen=True)
class LabelledFeatures:
    """One data set's features: ``x`` float64 ``(n, F)``, class and unit (patient, or the image alone) of each row."""

    name: str
    x: npt.NDArray[np.float64]
    labels: list[str]
    units: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray) -> LabelledFeatures:
        """Only these rows."""
        return LabelledFeatures(self.name, self.x[rows], [self.labels[row] for row in rows], self.units[rows])

    @classmethod
    def pooled(cls, parts: Sequence[LabelledFeatures]) -> LabelledFeatures:
        """All data sets in one; the same patient number at two sites is two patients."""
        first = np.cumsum([0, *(part.units.max() + 1 for part in parts[:-1])])
        return cls(
            "+".join(part.name for part in parts),
            np.concatenate([part.x for part in parts]),
            [name for part in parts for name in part.labels],
            np.concatenate([part.units + offset for part, offset in zip(parts, first, strict=True)]),
        )


def unit_numbers(groups: Sequence[str | None]) -> npt.NDArray[np.intp]:
    """Number the groups from 0 in the order of their first image, ``(n,)``; an image without a group is its own."""
    numbers: dict[object, int] = {}
    keys = [("image", row) if group is None else ("group", group) for row, group in enumerate(groups)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)


def refuse_shared_pixels(sources: Sequence[LabelledImages], target: LabelledImages) -> None:
    """Raise ProbeError if an image of the target is also in a source: the test would know its answer."""
    unseen = {_digest(image) for image in target.images}
    for source in sources:
        shared = sum(_digest(image) in unseen for image in source.images)
        if shared or source.name == target.name:
            raise ProbeError(
                f"data set {source.name!r}: {shared} of its images are also in the test data set {target.name!r}: "
                f"expected an unseen one; take them out of one of the two"
            )


def _digest(image: npt.NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).digest()


def shuffled_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """The rows 0 to ``count - 1`` in random order, in equal batches of at most about ``batch_size``.

    Equal, because BatchNorm cannot use a last batch of one image, and would weigh a small one like the others.
    """
    order = torch.randperm(count, generator=generator).numpy()
    yield from np.array_split(order, max(1, round(count / batch_size)))
