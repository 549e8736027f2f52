"""A prepared folder: its list of bags, written last, and reading it back with every file's digest verified."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.files import sha256_of, write_atomic
from fedad_components.slides.catalogue import SlideEntry
from fedad_components.slides.reader import SlidesError
from fedad_components.slides.store import read_features
from fedad_components.wire import shown

FORMAT = 1
INDEX = "bags.json"


class SlideBag(NamedTuple):
    """One slide as a bag of patches. A patient's bag is the union of those of one ``patient``."""

    slide: str
    patient: str | None
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


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
NAME = r"[0-9A-Za-z][0-9A-Za-z._-]*"
"""Of slides and files: names that stay in their folder, and that a terminal does not obey."""


class ListedBag(_Listed):
    """One slide of ``bags.json``."""

    slide: Annotated[str, Field(pattern=f"^{NAME}$", max_length=128)]
    patient: str | None
    """Pseudonyms."""
    label: str | None
    time: float | None
    event: bool | None
    file: Annotated[str, Field(pattern=f"^({NAME}/)*{NAME}$", max_length=200)]
    """Of its features, relative to the folder."""
    sha256: Digest


class ListedEncoder(BaseModel):
    """What is needed of :meth:`~fedad_components.slides.encoder.Encoder.to_json`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str
    weights_sha256: Digest
    random_weights: bool


class Index(_Listed):
    """What ``bags.json`` says."""

    format: Literal[1]
    encoder: ListedEncoder | None = None
    """Whose features they are; None: bags of another origin, of which nobody knows."""
    bags: list[ListedBag]

    @property
    def encoder_sha256(self) -> str | None:
        """Digest of the encoder's weights; None where nobody knows."""
        return self.encoder.weights_sha256 if self.encoder is not None else None


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
    return [bag.slide for bag in read_index(folder).bags]


def load_bags(folder: str | Path, slides: Container[str] | None = None) -> Iterator[SlideBag]:
    """Yield the bags of a folder that ``fedad slides prepare`` wrote, one at a time, in the catalogue's order.

    Args:
        slides: pseudonyms of those that are wanted, whose files alone are read; None: all.

    Raises:
        SlidesError: if the folder is not one, or a file is missing or not the one that was written.
    """
    folder = Path(folder)
    for bag in read_index(folder).bags:
        if slides is not None and bag.slide not in slides:
            continue
        file = folder / bag.file
        if not file.is_file() or sha256_of(file) != bag.sha256:
            raise SlidesError(f"{file}: missing or changed since it was written: prepare again")
        features, coordinates, metadata = read_features(file)
        yield SlideBag(bag.slide, bag.patient, features, coordinates, bag.label, bag.time, bag.event, metadata)


def read_index(folder: str | Path) -> Index:
    """The list of a folder that ``fedad slides prepare`` wrote.

    Raises:
        SlidesError: if the folder is not one, a slide is listed twice, or a file lies outside of it.
    """
    folder = Path(folder)
    try:
        index = Index.model_validate_json((folder / INDEX).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise SlidesError(f"{folder}: {INDEX}: {shown(place)}: {first['msg']}: {_EXPECTED}") from None
    except (OSError, ValueError):
        raise SlidesError(f"{folder}: no readable {INDEX}: {_EXPECTED}") from None
    if len({bag.slide for bag in index.bags}) != len(index.bags):
        raise SlidesError(f"{folder}: {INDEX} names a slide twice: prepare the slides again")
    inside = folder.resolve()
    for number, bag in enumerate(index.bags):
        if not (folder / bag.file).resolve().is_relative_to(inside):
            raise SlidesError(
                f"{folder}: {INDEX}: the file of bags.{number} is a link that leads out of the folder: nothing "
                f"outside of it is read: prepare the slides again"
            )
    return index


_EXPECTED = "expected a folder that 'fedad slides prepare' wrote"
