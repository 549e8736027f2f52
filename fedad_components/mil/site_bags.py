"""A site's bags: the folder that ``fedad slides prepare`` wrote, or bags of another origin in the same form.

Features are read when a bag is trained on, not before: those of a hospital do not fit into memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fedad_components.files import make_private_dir, sha256_of
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.splits import Label
from fedad_components.slides.bags import Index, ListedBag, read_index, write_index
from fedad_components.slides.catalogue import SlideEntry
from fedad_components.slides.reader import SlidesError
from fedad_components.slides.store import StoredFeatures, read_features, write_features

if TYPE_CHECKING:
    from fedad_components.mil.config import HistoFLConfig


logger = logging.getLogger("fedad.worker")


class FeaturesError(CatalogueError):
    """Features of a slide that cannot be used; the message says what was expected, and no name."""


@dataclass(frozen=True)
class Row:
    """What is known of a bag without its features; see :class:`~fedad_components.mil.bags.Bag`."""

    id: str
    patient: str | None
    target: int | Outcome
    slides: tuple[str, ...]
    """What ``read`` gives the features of; several where a patient's slides are one bag."""

    @property
    def owner(self) -> str:
        """The patient; a bag without one is of a patient of its own."""
        return self.patient if self.patient is not None else f"\x00{self.id}"

    @property
    def label(self) -> Label:
        """The class, or whether an event was seen."""
        return bool(self.target.event) if isinstance(self.target, Outcome) else self.target


@dataclass(frozen=True)
class SiteBags:
    """Rows, and how to read a slide's features ``(P, d)`` by its name."""

    rows: tuple[Row, ...]
    read: Callable[[str], torch.Tensor]

    @classmethod
    def of(cls, bags: Iterable[Bag]) -> SiteBags:
        """Of bags in memory."""
        kept = {bag.id: bag for bag in bags}
        rows = tuple(Row(bag.id, bag.patient, bag.target, (bag.id,)) for bag in kept.values())
        return cls(rows, lambda name: kept[name].features)

    def bag(self, row: Row) -> Bag:
        """A row with its features, float32."""
        features = torch.cat([self.read(slide).float() for slide in row.slides])
        return Bag(row.id, row.owner, features, row.target)

    def by_patient(self) -> SiteBags:
        """One bag a patient, with the patches of all slides.

        Raises:
            CatalogueError: if two slides of a patient have different targets.
        """
        merged: dict[str, Row] = {}
        for row in self.rows:
            before = merged.setdefault(row.owner, replace(row, id=row.patient or row.id, slides=()))
            if before.target != row.target:
                raise CatalogueError(_CONFLICT)
            merged[row.owner] = replace(before, slides=before.slides + row.slides)
        return replace(self, rows=tuple(merged.values()))

    @cached_property
    def labels(self) -> dict[str, Label]:
        """Patient to label.

        Raises:
            CatalogueError: if two slides of a patient have different ones.
        """
        labels: dict[str, Label] = {}
        for row in self.rows:
            if labels.setdefault(row.owner, row.label) != row.label:
                raise CatalogueError(_CONFLICT)
        return labels


_CONFLICT = (
    "two slides of one patient have different outcomes: expected one a patient; correct the slides' list, and prepare "
    "them again"
)


def open_bags(data_set: DataSet, config: HistoFLConfig) -> SiteBags:
    """The bags of a data set; survival and dp_sgd have one bag a patient.

    Raises:
        CatalogueError: if it is of another kind or not a prepared folder, its features are of another encoder than the
            experiment's, or an outcome is missing or is no class of the experiment.
    """
    where = f"data set {data_set.id!r}"
    if data_set.kind != "bags":
        raise CatalogueError(f"{where} holds {data_set.kind}: the job needs `kind: bags`")
    try:
        index = read_index(data_set.folder)
    except SlidesError as error:
        raise CatalogueError(f"{where}: {error}") from None
    _check_encoder(index, config, where)
    entries = index.bags
    rows = tuple(
        Row(entry.slide, entry.patient, _target(entry, config, f"{where}: bag {number}"), (entry.slide,))
        for number, entry in enumerate(entries)
    )
    files = {entry.slide: (data_set.folder / entry.file, entry.sha256) for entry in entries}
    bags = SiteBags(rows, _Reader(files, config.model.in_features))
    return bags.by_patient() if config.survival or config.privacy.mode == "dp_sgd" else bags


def write_bags(folder: str | Path, bags: Iterable[Bag], classes: Sequence[str] = ()) -> None:
    """Write bags of any origin in the form that ``fedad slides prepare`` gives slides.

    Args:
        classes: name of each class, where targets are numbers of classes.
    """
    folder = make_private_dir(folder)
    used = []
    for number, bag in enumerate(bags):
        file = folder / f"{number:06d}.safetensors"
        features = bag.features.float().numpy()
        write_features(file, StoredFeatures(features, np.zeros((len(features), 2), np.int64), {}))
        entry = SlideEntry(
            line=number + 2,
            path=file,
            slide=bag.id,
            patient=bag.patient,
            label=None if isinstance(bag.target, Outcome) else classes[bag.target],
            time=bag.target.time if isinstance(bag.target, Outcome) else None,
            event=bag.target.event if isinstance(bag.target, Outcome) else None,
        )
        used.append((entry, file))
    write_index(folder, used)


def _check_encoder(index: Index, config: HistoFLConfig, where: str) -> None:
    """Features of two encoders have the same length at times, and their mean is of nothing."""
    expected, found = config.model.encoder_sha256, index.encoder_sha256
    if expected is None:
        logger.warning(
            "%s: features of the encoder %s; the job does not say which one it needs (model.encoder_sha256), so that "
            "nobody compares the sites'",
            where,
            found or "unknown",
        )
    elif found != expected:
        raise CatalogueError(
            f"{where}: its features are of {f'the encoder {found}' if found else 'an encoder that nobody knows'}, the "
            f"job needs {expected} (model.encoder_sha256): prepare the slides with that one"
        )


def _target(entry: ListedBag, config: HistoFLConfig, where: str) -> int | Outcome:
    if not config.survival:
        classes = config.target.classes
        if entry.label not in classes:
            raise CatalogueError(f"{where}: the label is none of target.classes ({', '.join(classes)})")
        return classes.index(entry.label)
    time, event = entry.time, entry.event
    if time is None or time < 0 or event is None:
        raise CatalogueError(f"{where}: survival needs a time of 0 or more, and whether the event was seen")
    return Outcome(time, event)


@dataclass
class _Reader:
    """Slide to its file and digest, which is verified when the file is read for the first time."""

    files: Mapping[str, tuple[Path, str]]
    in_features: int
    verified: set[str] = field(default_factory=set)

    def __call__(self, slide: str) -> torch.Tensor:
        path, digest = self.files[slide]
        if slide not in self.verified:
            if not path.is_file() or sha256_of(path) != digest:
                raise FeaturesError("a file of features is missing, or changed since it was written: prepare again")
            self.verified.add(slide)
        features = torch.from_numpy(features_of(path))
        if features.shape[1] != self.in_features:
            raise FeaturesError(
                f"features of a slide are {tuple(features.shape)}: expected (P, model.in_features = "
                f"{self.in_features}): prepare the slides with the encoder that the job names"
            )
        return features


def features_of(path: Path) -> npt.NDArray[np.float32]:
    """Those of a file, ``(P, F)``, P > 0, finite.

    Raises:
        FeaturesError: if there are none such.
    """
    try:
        features = read_features(path).features
    except SlidesError:
        raise FeaturesError("a file of features cannot be read: prepare the slides again") from None
    if features.ndim != 2 or not len(features) or not np.isfinite(features).all():
        raise FeaturesError(
            f"features of a slide are {features.shape}: expected finite numbers (P, F) of a patch or more: prepare the "
            f"slides again"
        )
    return features
