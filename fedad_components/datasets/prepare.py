"""Check a download against its published facts and write a catalogue for it. The download itself is never changed."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fedad_components.datasets.patches import write_png
from fedad_components.datasets.rows import Row, find_tables, read_rows
from fedad_components.datasets.spec import PARTS, SPLIT, DataSetSpec, PrepareError
from fedad_components.datasets.split import Item, divide
from fedad_components.datasets.tally import Tally
from fedad_components.files import make_private_dir, sha256_of, write_atomic
from fedad_components.imaging.catalogue import VERSION, Catalogue

CATALOGUE, RECORD, IMAGES = "catalogue.yaml", "prepared.json", "images"


@dataclass(frozen=True)
class Prepared:
    """What was found and written.

    Attributes:
        catalogue: the file; its data sets are the keys of ``entries``.
        partial: whether less than the published data set was accepted.
        images: found.
        entries: data-set id → images, patients (None: not told) and images with a label (None: no label column).
    """

    spec: DataSetSpec
    catalogue: Path
    partial: bool
    images: int
    entries: dict[str, dict[str, int | None]]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "data_set": self.spec.name,
            "title": self.spec.title,
            "licence": self.spec.licence,
            "partial": self.partial,
            "images": self.images,
            "images_published": str(self.spec.images),
            "entries": self.entries,
            "catalogue": str(self.catalogue),
        }


def prepare(
    spec: DataSetSpec,
    source: str | Path,
    out: str | Path,
    *,
    data_set: str = "images",
    partial: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Verify a download and write ``out/catalogue.yaml``, with lists of files and tables beside it.

    A source gets the entry ``data_set`` for training: its train part, with patients and without labels. Every set gets
    ``<name>-train`` and ``<name>-test`` for evaluation, with labels; a pair for each hospital where they are told.

    Args:
        source: the folder as downloaded and unpacked.
        out: a new or empty folder, or that of an earlier preparation of the same set.
        data_set: the id that jobs name (``federation.data_set``).
        partial: accept a subset: fewer images than published, and images that are listed but not there.
        progress: called with images written so far and in all; only for sets whose images have to be written out.

    Raises:
        PrepareError: naming what was expected and what was found.
    """
    source, out = Path(source).absolute(), Path(out).absolute()
    if not source.is_dir():
        raise PrepareError(f"{source}: not a folder: expected that of {spec.title} as downloaded and unpacked")
    _claim(spec, source, out)
    items, tally = collect(spec, source, partial)
    tally.check(partial)
    parts = divide_by_site(spec, items)
    folder = source
    if spec.patches is not None:
        folder = out / IMAGES
        _write_patches(spec, source, folder, items, progress)
    entries: dict[str, Any] = {}
    summary: dict[str, dict[str, int | None]] = {}
    for name, of_part in parts.items():
        write_atomic(out / f"{name}.txt", "".join(f"{item.path}\n" for item in of_part).encode("utf-8"))
        entries[name] = _entry(out, folder, name, name, of_part, spec, with_labels=True)
        summary[name] = _count(of_part, with_labels=True)
    if spec.role == "source" and (training := f"{spec.name}-train") in parts:
        entries = {
            data_set: _entry(out, folder, data_set, training, parts[training], spec, with_labels=False)
        } | entries
        summary = {data_set: _count(parts[training], with_labels=False)} | summary
    prepared = Prepared(spec, out / CATALOGUE, partial and tally.images < spec.images.least, tally.images, summary)
    _write_catalogue(prepared, entries)
    tables = find_tables(spec, source, partial).values()
    record = prepared.to_json() | {"finished": True, "tables_sha256": {path.name: sha256_of(path) for path in tables}}
    write_atomic(out / RECORD, json.dumps(record, indent=2).encode("utf-8"))
    return prepared


def collect(spec: DataSetSpec, source: Path, partial: bool = False) -> tuple[list[Item], Tally]:
    """The images that are told of and there, each once, and their tally.

    Raises:
        PrepareError: if one leads out of the folder, or is missing without ``partial``.
    """
    locate = _locator(spec, source)
    tally, items, seen = Tally(spec), [], set()
    listed = missing = 0
    for row in read_rows(spec, source, partial):
        path = spec.path.format_map(row)
        if path in seen:
            continue
        seen.add(path)
        listed += 1
        inside = path if spec.patches is not None else locate(path)
        if inside is None:
            missing += 1
            continue
        tally.add(row)
        items.append(_item(spec, row, inside))
    if not items or (missing and not partial):
        hint = "" if partial else "; if it is a subset on purpose, say --partial"
        raise PrepareError(
            f"{source}: {missing:,} of the {listed:,} images that {spec.metadata} tells of are missing from "
            f"{', '.join(spec.folders)}: expected all of them{hint}"
        )
    return items, tally


def divide_by_site(spec: DataSetSpec, items: list[Item]) -> dict[str, list[Item]]:
    """Data-set id → its images; parts without any are left out."""
    sites: dict[str | None, list[Item]] = {}
    for item in items:
        sites.setdefault(item.site, []).append(item)
    named: dict[str, list[Item]] = {}
    for site in sorted(sites, key=str):
        parts = divide(spec, sites[site])
        stem = spec.name if site is None else f"{spec.name}-hospital-{site}"
        named |= {f"{stem}-{part}": parts[part] for part in PARTS if parts[part]}
    return named


def _locator(spec: DataSetSpec, source: Path) -> Callable[[str], str | None]:
    """A function that finds an image below one of the folders: folders are listed, no file is opened."""
    folders = [""] if "." in spec.folders else []
    folders += [
        path.relative_to(source).as_posix() + "/"
        for pattern in spec.folders
        if pattern != "."
        for path in sorted(source.glob(pattern))
        if path.is_dir()
    ]

    @functools.lru_cache(maxsize=4096)
    def names(folder: str) -> frozenset[str]:
        try:
            return frozenset(os.listdir(source / folder))
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()
        except OSError as error:
            raise PrepareError(f"{source}: a folder below it cannot be read ({error.strerror})") from None

    def locate(path: str) -> str | None:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            raise PrepareError(f"{source}: {spec.metadata} names an image outside the folder: expected paths inside it")
        for candidate in (f"{folder}{pure}" for folder in folders):
            parent, _, name = candidate.rpartition("/")
            if name in names(parent):
                return candidate
        return None

    return locate


def _item(spec: DataSetSpec, row: Row, path: str) -> Item:
    return Item(
        path,
        (spec.patient.format_map(row) or None) if spec.patient else None,
        spec.label.of(row[spec.label.column]),
        row[spec.site] if spec.site else None,
        row.get(SPLIT, ""),
    )


def _claim(spec: DataSetSpec, source: Path, out: Path) -> None:
    """Refuse an ``out`` that holds something else."""
    if out.resolve().is_relative_to(source.resolve()):
        raise PrepareError(f"{out}: inside the download: expected another folder, the download is never changed")
    started = out / RECORD
    if out.is_dir() and any(out.iterdir()):
        try:
            owner = json.loads(started.read_text(encoding="utf-8"))["data_set"]
        except (OSError, ValueError, KeyError, TypeError):
            owner = None
        if owner != spec.name:
            raise PrepareError(f"{out}: holds other files: expected a new or empty folder, or {spec.name}'s own")
        return
    make_private_dir(out)
    write_atomic(started, json.dumps({"data_set": spec.name, "finished": False}).encode("utf-8"))


def _write_patches(
    spec: DataSetSpec, source: Path, folder: Path, items: list[Item], progress: Callable[[int, int], None] | None
) -> None:
    assert spec.patches is not None
    written = 0

    def done(count: int) -> None:
        nonlocal written
        written += count
        if progress is not None:
            progress(written, len(items))

    for split in sorted({item.split for item in items}):
        write_png(spec.patches, source, split, folder / split, done)


def _entry(
    out: Path, folder: Path, name: str, list_name: str, items: list[Item], spec: DataSetSpec, with_labels: bool
) -> dict[str, Any]:
    """A catalogue entry, after writing its table."""
    columns = ["file", *(["patient"] if spec.patient else []), *(["label"] if with_labels else [])]
    entry: dict[str, Any] = {"folder": str(folder), "files": f"{list_name}.txt"}
    if len(columns) > 1:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        values = {"file": 0, "patient": 1, "label": 2}
        writer.writerows([item[values[column]] for column in columns] for item in items)
        write_atomic(out / f"{name}.csv", text.getvalue().encode("utf-8"))
        entry["table"] = {"file": f"{name}.csv", "path": "file"} | {column: column for column in columns[1:]}
    return entry


def _count(items: list[Item], with_labels: bool) -> dict[str, int | None]:
    patients = {item.patient for item in items} - {None}
    return {
        "images": len(items),
        "patients": len(patients) or None,
        "labelled": sum(item.label is not None for item in items) if with_labels else None,
    }


def _write_catalogue(prepared: Prepared, entries: dict[str, Any]) -> None:
    spec = prepared.spec
    head = f"# {spec.title}: {spec.licence}\n# {spec.url}\n"
    if prepared.partial:
        head += f"# PARTIAL: {prepared.images:,} of the {spec.images} published images\n"
    body = yaml.safe_dump({"version": VERSION, "data_sets": entries}, sort_keys=False, allow_unicode=True)
    write_atomic(prepared.catalogue, (head + body).encode("utf-8"))
    Catalogue.load(prepared.catalogue)
