"""A site's catalogue: the only place where a data-set id becomes a path. Jobs name ids; paths never leave the site.

A YAML file under the kit's ``local/fedad/``; ``docs/data.md`` explains each key.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedad_components.config import NAME_PATTERN, explain

VERSION = 1
CACHE_FORMAT = 1
"""Raised when decoding changes, so that older caches are built again."""


class CatalogueError(ValueError):
    """A catalogue that cannot be used; the message names file, data set, key, value and what was expected."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Window(_Entry):
    """Grey values that become 0 to 255, in the image's own unit (Hounsfield units in CT)."""

    center: float = Field(allow_inf_nan=False, description="middle of the window")
    width: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(description="width of the window")


class Table(_Entry):
    """A CSV file that tells a patient, and a label for the local probe, of each image file."""

    file: Path = Field(description="CSV file with a header line, UTF-8")
    path: str = Field("file", description="column with the image file's path, relative to the data set's folder")
    patient: str | None = Field(None, description="column with the patient's pseudonym")
    label: str | None = Field(None, description="column with the class; read by the local probe only")


class SlideOptions(_Entry):
    """How patches are cut from whole-slide images."""

    mpp: Annotated[float, Field(ge=0.05, le=10.0)] | None = Field(
        None, description="µm/px of every slide; without: each slide's own"
    )
    tissue: Literal["default", "biopsy", "resection"] = Field("default", description="preset by which tissue is found")


class DataSet(_Entry):
    """One data set of a site."""

    id: str = Field(pattern=NAME_PATTERN)
    folder: Path = Field(description="folder of the files; nothing outside it is ever read")
    pattern: tuple[str, ...] = Field(("*",), description="file-name patterns such as '*.dcm', in all subfolders")
    files: tuple[str, ...] | Path | None = Field(
        None, description="instead of a pattern: paths relative to the folder, or a text file with one path a line"
    )
    kind: Literal["images", "bags"] = Field(
        "images", description="images; or bags: a folder that `fedad slides prepare` wrote (HistoFL)"
    )
    reader: str = Field(
        "auto",
        pattern=r"^(auto|pillow|dicom|nifti|slide|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        description="auto, pillow, dicom, nifti, slide, or module:Class for a reader of the site's own",
    )
    table: Table | None = Field(None, description="CSV file with patients and labels")
    window: Window | None = Field(None, description="overrides the window of each file; grey images only")
    frames: Literal["all", "first", "middle"] | Annotated[int, Field(ge=1)] = Field(
        "all", description="which frames or slices of a file: all, first, middle, or at most n evenly spaced"
    )
    slice_axis: Literal[0, 1, 2] = Field(2, description="NIfTI: 0 sagittal, 1 coronal, 2 axial slices")
    slide: SlideOptions | None = Field(None, description="reader slide: how patches are cut")
    fit: Literal["crop", "pad", "stretch"] = Field(
        "crop", description="to a square: crop the centre, pad with black, or stretch"
    )
    modalities: tuple[str, ...] = Field((), description="DICOM modalities to use, such as [CT]; empty: all images")
    min_side: int = Field(32, ge=1, description="smallest height and width in pixels")
    max_rejected: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.05, description="share of rejected files above which the site refuses to train"
    )
    units: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="declared, public number of privacy units, needed by dp_sgd; it must not change afterwards"
    )
    timeout: Annotated[float, Field(gt=0.0, le=3600.0)] = Field(60.0, description="seconds to decode one file")

    @field_validator("pattern", "modalities", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("pattern")
    @classmethod
    def _names_only(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or any("/" in pattern or not pattern for pattern in value):
            raise ValueError("expected file-name patterns without folders, such as '*.dcm'; subfolders are searched")
        return value

    @field_validator("modalities")
    @classmethod
    def _upper(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(modality.strip().upper() for modality in value)

    @model_validator(mode="after")
    def _consistent(self) -> DataSet:
        if self.files is not None and self.pattern != ("*",):
            raise ValueError("files and pattern exclude each other: expected one of them")
        if self.kind == "bags" and self.model_fields_set - {"id", "kind", "folder", "units"}:
            raise ValueError("kind bags: expected folder, and units, alone: the prepared folder says the rest")
        if self.modalities and self.reader in ("pillow", "nifti", "slide"):
            raise ValueError(f"modalities is for DICOM files: expected reader auto or dicom, not {self.reader}")
        if self.slide is not None and self.reader != "slide":
            raise ValueError(f"slide is for whole-slide images: expected reader slide, not {self.reader}")
        if self.reader == "slide" and not isinstance(self.frames, int):
            raise ValueError("reader slide needs 'frames: 200' or another number: at most so many patches of a slide")
        return self

    @property
    def keeps_duplicates(self) -> bool:
        """Whether repeated pixels stay: with privacy units, whether an image is used must not depend on another's."""
        return self.units is not None

    def definition(self, side: int) -> str:
        """SHA-256 of all that decides about the cached pixels: a change decodes everything again.

        A site's own reader counts with its source file.
        """
        keys = {
            "folder",
            "pattern",
            "files",
            "reader",
            "window",
            "frames",
            "slice_axis",
            "fit",
            "modalities",
            "min_side",
        }
        content = self.model_dump(mode="json", include=keys) | {
            "side": side,
            "format": CACHE_FORMAT,
            "keeps_duplicates": self.keeps_duplicates,
        }
        if self.slide is not None:
            content["slide"] = self.slide.model_dump(mode="json")
        if ":" in self.reader:
            content["reader_source"] = _source_digest(self.reader.partition(":")[0])
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()

    def rows(self) -> dict[str, tuple[str | None, str | None]]:
        """Read the table: relative path → (patient, label); empty without a table.

        Raises:
            CatalogueError: if the table cannot be read, lacks a column, or contradicts itself.
        """
        if self.table is None:
            return {}
        table, where = self.table, f"data set {self.id!r}: table.file = {str(self.table.file)!r}"
        try:
            with open(table.file, encoding="utf-8-sig", newline="") as stream:
                reader = csv.DictReader(stream)
                lines = list(reader)
                columns = list(reader.fieldnames or ())
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            problem = getattr(error, "strerror", None) or type(error).__name__
            raise CatalogueError(f"{where}: cannot be read ({problem}): expected a CSV file in UTF-8") from None
        for key in ("path", "patient", "label"):
            name = getattr(table, key)
            if name is not None and name not in columns:
                raise CatalogueError(f"{where}: table.{key} = {name!r}: expected one of its columns {columns}")
        rows: dict[str, tuple[str | None, str | None]] = {}
        conflicts = 0
        for line in lines:
            path = self._relative(line[table.path] or "")
            value = (_cell(line, table.patient), _cell(line, table.label))
            conflicts += rows.setdefault(path, value) != value
        if conflicts:
            raise CatalogueError(
                f"{where}: {conflicts} lines contradict an earlier line about the same file: expected "
                f"one patient and one label for each file"
            )
        return rows

    def _relative(self, path: str) -> str:
        pure = PurePosixPath(path)
        return str(pure.relative_to(self.folder) if pure.is_relative_to(self.folder) else pure)


class Catalogue:
    """The data sets of one site."""

    def __init__(self, path: Path, data_sets: dict[str, DataSet]) -> None:
        self.path = path
        self.data_sets = data_sets

    @classmethod
    def load(cls, path: str | Path) -> Catalogue:
        """Read and validate a catalogue; relative paths in it start at its own folder. No data sets is valid.

        Raises:
            CatalogueError: naming the file, the data set, each wrong key, its value and what was expected.
        """
        path = Path(path).absolute()
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeyLoader)
        except OSError as error:
            raise CatalogueError(f"{path}: cannot be read ({error.strerror}): expected a catalogue in YAML") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{path}: not valid YAML: {error}") from None
        expected = "expected 'version: 1' and 'data_sets:' with one entry for each data-set id"
        if not isinstance(content, dict):
            raise CatalogueError(f"{path}: {type(content).__name__} at the top level: {expected}")
        if content.get("version") != VERSION or isinstance(content.get("version"), bool):
            raise CatalogueError(f"{path}: version = {content.get('version')!r}: expected {VERSION}")
        if unknown := sorted(str(key) for key in content.keys() - {"version", "data_sets"}):
            raise CatalogueError(f"{path}: unknown key {unknown[0]!r}: {expected}")
        entries = content.get("data_sets") or {}
        if not isinstance(entries, dict):
            raise CatalogueError(f"{path}: data_sets is a {type(entries).__name__}: {expected}")
        return cls(path, {str(name): _data_set(path, str(name), entry) for name, entry in entries.items()})

    def data_set(self, name: str) -> DataSet:
        """Return a data set.

        Raises:
            CatalogueError: if the catalogue does not have it.
        """
        try:
            return self.data_sets[name]
        except KeyError:
            known = ", ".join(sorted(self.data_sets)) or "none yet"
            raise CatalogueError(
                f"{self.path}: no data set {name!r}: expected one of its data sets ({known}); add it "
                f"under data_sets, or ask the lead which id the job names"
            ) from None


def _data_set(path: Path, name: str, entry: Any) -> DataSet:
    if not isinstance(entry, dict):
        raise CatalogueError(f"{path}: data_sets.{name} = {entry!r}: expected keys and values, at least 'folder'")
    entry = dict(entry)
    for holder, key in ((entry, "folder"), (entry, "files"), (entry.get("table"), "file")):
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            holder[key] = path.parent / Path(holder[key]).expanduser()
    try:
        return DataSet.model_validate(entry | {"id": name})
    except ValidationError as error:
        lines = explain(DataSet, error, ("data_sets", name), no_key="id")
        raise CatalogueError(f"{path}: cannot be used:\n" + "\n".join(lines)) from None


def _cell(line: dict[str, str | None], column: str | None) -> str | None:
    return ((line[column] or "").strip() or None) if column is not None else None


def _source_digest(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a second entry of the same name silently replace the first; here it is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := next((key for index, key in enumerate(keys) if key in keys[:index]), None):
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice!r} appears twice: expected each key once", node.start_mark
            )
        return super().construct_mapping(node, deep)
