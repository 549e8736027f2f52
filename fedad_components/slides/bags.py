"""A prepared folder: its list of bags, written last, and reading it back with every file's digest verified."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedad_components.files import sha256_of, write_atomic
from fedad_components.slides.catalogue import SlideEntry
from fedad_components.slides.reader import SlidesError
from fedad_components.slides.store import read_features

FORMAT = 1
INDEX = "bags.json"


class SlideBag(NamedTuple):
    """One slide as a bag of patches. A patient's bag is the union of those of one ``patient``."""

    slide: str
    patient: str
    """Pseudonyms."""
    features: npt.NDArray[np.float32]
    """``(P, F)``."""
    coordinates: npt.NDArray[np.int64]
    """``(P, 2)``: x and y of each patch's top left corner, in pixels of level 0."""
    label: str | None
    time: float | None
    event: bool | None
    metadata: dict[str, Any]
    """Encoder, µm/px, ``footprint`` of a patch in pixels of level 0, ``slide_size``."""


class Index(NamedTuple):
    """What ``bags.json`` says."""

    bags: list[dict[str, Any]]
    """As :func:`write_index` lists them."""
    encoder: dict[str, Any] | None
    """Whose features they are; None: bags of another origin, of which nobody knows."""

    @property
    def encoder_sha256(self) -> str | None:
        """Digest of the encoder's weights; None where nobody knows."""
        return self.encoder["weights_sha256"] if self.encoder is not None else None


def write_index(out: Path, used: Sequence[tuple[SlideEntry, Path]], encoder: Mapping[str, Any] | None = None) -> None:
    """List the slides that have features, with their targets and the digests of their files.

    Args:
        encoder: all that the features depend on: :meth:`~fedad_components.slides.encoder.Encoder.to_json`.
    """
    bags = [
        {
            "slide": entry.slide,
            "patient": entry.patient,
            "label": entry.label,
            "time": entry.time,
            "event": entry.event,
            "file": file.relative_to(out).as_posix(),
            "sha256": sha256_of(file),
        }
        for entry, file in used
    ]
    content = {"format": FORMAT, "encoder": encoder, "bags": bags}
    write_atomic(out / INDEX, json.dumps(content, indent=1).encode("utf-8"))


def prepared_slides(folder: str | Path) -> list[str]:
    """Pseudonyms of the slides of a folder that ``fedad slides prepare`` wrote, in the catalogue's order.

    Raises:
        SlidesError: if the folder is not one.
    """
    return [bag["slide"] for bag in read_index(folder).bags]


def load_bags(folder: str | Path, slides: Container[str] | None = None) -> Iterator[SlideBag]:
    """Yield the bags of a folder that ``fedad slides prepare`` wrote, one at a time, in the catalogue's order.

    Args:
        slides: pseudonyms of those that are wanted, whose files alone are read; None: all.

    Raises:
        SlidesError: if the folder is not one, or a file is missing or not the one that was written.
    """
    folder = Path(folder)
    for bag in read_index(folder).bags:
        if slides is not None and bag["slide"] not in slides:
            continue
        file = folder / bag["file"]
        if not file.is_file() or sha256_of(file) != bag["sha256"]:
            raise SlidesError(f"{file}: missing or changed since it was written: prepare again")
        features, coordinates, metadata = read_features(file)
        target = {name: bag[name] for name in ("label", "time", "event")}
        yield SlideBag(bag["slide"], bag["patient"], features, coordinates, **target, metadata=metadata)


def read_index(folder: str | Path) -> Index:
    """The list of a folder that ``fedad slides prepare`` wrote.

    Raises:
        SlidesError: if the folder is not one, or a slide is listed twice.
    """
    try:
        content = json.loads((Path(folder) / INDEX).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError
        index = Index(content["bags"], content.get("encoder"))
        names = {bag["slide"] for bag in index.bags}
        _ = index.encoder_sha256
    except (OSError, ValueError, KeyError, TypeError):
        raise SlidesError(
            f"{folder}: no readable {INDEX}: expected a folder that 'fedad slides prepare' wrote"
        ) from None
    if len(names) != len(index.bags):
        raise SlidesError(f"{folder}: {INDEX} names a slide twice: prepare the slides again")
    return index
