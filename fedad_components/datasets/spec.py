"""What there is to know about a public data set before it can be checked and prepared. Facts only, no behaviour."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedad_components.config import NAME_PATTERN

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
SPLIT, ROW, PATH = "split", "row", "path"
"""Columns beside the table's own: the table or list that the row is from, its number there; its path, without table"""


class PrepareError(ValueError):
    """A download that is not what was published; the message names what was expected and what was found."""


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Count(_Facts):
    """A published number: exact, or a range where its publishers only give a rounded one."""

    least: int
    most: int

    @classmethod
    def of(cls, number: int) -> Count:
        """Exactly ``number``."""
        return cls(least=number, most=number)

    def __str__(self) -> str:
        return f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"


class Label(_Facts):
    """The class of an image, for evaluation only.

    Attributes:
        column: where it is told.
        classes: value there → class, None for no label; a value that is missing here is ``other``.
        other: class of every other value; None: the value itself is the class.
    """

    column: str
    classes: dict[str, str | None] = {}
    other: str | None = None

    def of(self, value: str) -> str | None:
        """The class, or None for an image without one."""
        return self.classes.get(value, self.other or value or None)


class Patches(_Facts):
    """HDF5 files beside a split's table, in its order: images ``x`` uint8 (n, side, side, 3), labels ``y`` (n, ...)."""

    images: str = Field(description="file name, with {split}")
    labels: str = Field(description="file name, with {split}")
    side: int


class DataSetSpec(_Facts):
    """One data set, as its publishers hand it out.

    A row describes an image. It comes from a CSV table (``tables``) or, where there is none, from the image's own path
    (``tree``); ``parse`` adds columns from a column's text. ``path`` and ``patient`` are templates over those columns.
    """

    name: str = Field(pattern=NAME_PATTERN)
    title: str
    role: Literal["source", "target"] = Field(description="whether the paper trains on it, or tests")
    url: str
    licence: str
    access: str
    note: str = Field("", description="what its user should know")

    tables: dict[str, tuple[str, ...]] = Field({}, description="split → names under which its table is handed out")
    columns: tuple[str, ...] = Field((), description="columns that are read; the others are not kept")
    tree: str = Field("", description="without tables: glob of the images")
    parse: tuple[str, str] | None = Field(None, description="column, regular expression with named groups")
    folders: tuple[str, ...] = Field((".",), description="where images may be: globs of folders below the download")
    path: str = Field(description="an image's path below one of the folders")
    patches: Patches | None = Field(None, description="where images are in HDF5: they are written out as PNG")

    patient: str | None = Field(None, description="the patient's pseudonym, or the closest that is told")
    label: Label
    site: str | None = Field(None, description="column with the hospital: a catalogue entry for each")
    lists: dict[str, str] = Field({}, description="split → file that lists its images by name")
    parts: dict[str, Part] = Field({}, description="official split → part; empty: split by patient")

    images: Count
    counts: dict[str, dict[str, int]] = Field({}, description="column → value → images")
    distinct: dict[str, Count] = Field({}, description="column → number of different values")

    @model_validator(mode="after")
    def _one_source_of_rows(self) -> DataSetSpec:
        if bool(self.tables) == bool(self.tree):
            raise ValueError(f"{self.name}: expected either tables or a tree of folders")
        return self

    @property
    def metadata(self) -> str:
        """What tells of the images, in words."""
        return ", ".join(names[0] for names in self.tables.values()) or "the folder tree"

    def training_images(self, test_share: float) -> int:
        """Images to train on: the official split's, else about ``1 - test_share`` of all (patients differ)."""
        if self.parts:
            return sum(self.counts[SPLIT][split] for split, part in self.parts.items() if part == "train")
        return round(self.images.least * (1.0 - test_share))
