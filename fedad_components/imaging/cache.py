"""The decoded images on disk: ``images-*.npy`` (uint8, memory-mapped), ``index.json`` and ``files.csv``, all private.

One folder for each data set and side. ``index.json`` names the images' file and is replaced last, so a reader always
sees a matching pair. While a cache is being built, ``building/`` holds the frames and a journal of the files already
done.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedad_components.files import write_atomic
from fedad_components.imaging.account import Account, FileRecord, Reason
from fedad_components.imaging.catalogue import CACHE_FORMAT, DataSet

FLUSH_FRAMES, FLUSH_SECONDS = 256, 5.0
"""Frames or seconds after which data and journal are forced to disk; a killed ingest loses at most these."""


class CacheMissing(LookupError):
    """There is no cache of this data set, or the data set has changed since it was built."""


def cache_side(image_size: int) -> int:
    """Stored side for views of ``image_size`` pixels: 8/7 of it (256 for 224), which leaves crops a choice."""
    return round(image_size * 8 / 7)


def cache_folder(cache_dir: str | Path, data_set: DataSet, side: int) -> Path:
    """Folder of one data set's cache."""
    return Path(cache_dir) / f"{data_set.id}-{side}"


@dataclass(frozen=True)
class CachedImages:
    """A decoded data set: ``images`` is a read-only ``uint8 (n, S, S, 3)`` memory map, the lists have ``n`` entries."""

    images: np.ndarray
    patients: list[str | None]
    labels: list[str | None]
    files: list[str]
    account: Account
    folder: Path

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Index:
    """What ``index.json`` holds."""

    definition: str
    side: int
    images: str
    ignored: int
    records: list[FileRecord]

    @classmethod
    def read(cls, folder: Path) -> Index | None:
        """Read a folder's index; none if there is none, or it is not one that this version can use."""
        try:
            content = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            if content["format"] != CACHE_FORMAT:
                return None
            records = [FileRecord.from_json(entry) for entry in content["files"]]
            index = cls(content["definition"], content["side"], content["images"], content["ignored"], records)
            return index if index.has_images(folder) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def n_frames(self) -> int:
        """Frames of all files."""
        return sum(record.frames for record in self.records)

    def has_images(self, folder: Path) -> bool:
        """Whether the images' file has the size that the records say."""
        size = len(_npy_header(self.n_frames, self.side)) + self.n_frames * self.side**2 * 3
        return (folder / self.images).stat().st_size == size

    def memmap(self, folder: Path) -> np.ndarray:
        """``uint8 (n, S, S, 3)``, read-only."""
        if self.n_frames == 0:
            return np.zeros((0, self.side, self.side, 3), np.uint8)
        return np.load(folder / self.images, mmap_mode="r", allow_pickle=False)

    def account(self) -> Account:
        """Counts by reason."""
        return Account.of(self.records, self.ignored)


def images_of(data_set: DataSet, folder: Path, index: Index) -> CachedImages:
    """Open an index's images and look up their patients and labels.

    Raises:
        CatalogueError: if the data set's table cannot be used.
    """
    rows = data_set.rows()
    files = [record.path for record in index.records for _ in range(record.frames)]
    found = [rows.get(path, (None, None)) for path in files]
    return CachedImages(
        index.memmap(folder),
        [patient for patient, _ in found],
        [label for _, label in found],
        files,
        index.account(),
        folder,
    )


class CacheWriter:
    """Builds a cache file by file, in the listing's order, and continues where a killed build stopped.

    Frames go to a file that only grows; a file's journal line follows its frames to the disk. On opening, the journal's
    lines that agree with the listing are kept, and whatever follows them is cut off.
    """

    def __init__(
        self,
        folder: Path,
        definition: str,
        side: int,
        records: Sequence[FileRecord],
        ignored: int,
        keep_duplicates: bool = False,
    ) -> None:
        self.keep_duplicates = keep_duplicates
        self.folder, self.definition, self.side = folder, definition, side
        self.records, self.ignored = records, ignored
        self.building = folder / "building"
        self.building.mkdir(mode=0o700, exist_ok=True)
        self._header = len(_npy_header(0, side))
        self.done, self._first_of = self._resume()
        self._images = (self.building / "images").open("r+b")
        self._images.seek(0, os.SEEK_END)
        self._journal = (self.building / "journal").open("ab")
        self._lines: list[bytes] = []
        self._unflushed, self._flushed_at = 0, time.monotonic()

    def _resume(self) -> tuple[list[FileRecord], dict[str, str]]:
        images, journal = self.building / "images", self.building / "journal"
        done: list[FileRecord] = []
        kept = b""
        size = images.stat().st_size if images.exists() else 0
        frames = 0
        lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
        head = (json.dumps({"definition": self.definition, "side": self.side}) + "\n").encode("ascii")
        if lines and lines[0] == head and size >= self._header:
            for line, planned in zip(lines[1:], self.records, strict=False):
                try:
                    record = FileRecord.from_json(json.loads(line))
                except (ValueError, TypeError, KeyError):
                    break
                if record.identity != planned.identity or not line.endswith(b"\n"):
                    break
                if self._header + (frames + record.frames) * self._frame_bytes > size:
                    break
                frames += record.frames
                done.append(record)
                kept += line
        for path in (images, journal):
            path.touch(mode=0o600)
        with open(images, "r+b") as stream:
            stream.truncate(self._header + frames * self._frame_bytes)
        journal.write_bytes(head + kept)
        return done, {record.sha256: record.path for record in done if record.reason is None}

    @property
    def _frame_bytes(self) -> int:
        return self.side**2 * 3

    def add(self, record: FileRecord, frames: Sequence[np.ndarray] | np.ndarray) -> None:
        """Add the next file: its record and frames ``uint8 (side, side, 3)``; repeats are duplicates, or kept."""
        if record.reason is None and record.sha256 in self._first_of and not self.keep_duplicates:
            detail = f"same pixels as {self._first_of[record.sha256]}"
            record = FileRecord(*record.identity, reason=Reason.DUPLICATE, detail=detail)
        if record.reason is None:
            self._first_of[record.sha256] = record.path
            for frame in frames:
                self._images.write(np.ascontiguousarray(frame).data)
        self.done.append(record)
        self._lines.append((json.dumps(record.to_json()) + "\n").encode("ascii"))
        self._unflushed += max(1, record.frames)
        if self._unflushed >= FLUSH_FRAMES or time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Force the frames to disk, then the journal lines about them."""
        self._images.flush()
        os.fsync(self._images.fileno())
        self._journal.write(b"".join(self._lines))
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._lines, self._unflushed, self._flushed_at = [], 0, time.monotonic()

    def finish(self) -> Index:
        """Complete the images' file, then make it and its index visible together; older ones are removed."""
        self.flush()
        n_frames = sum(record.frames for record in self.done)
        self._images.seek(0)
        self._images.write(_npy_header(n_frames, self.side))
        self._images.flush()
        os.fsync(self._images.fileno())
        self._images.close()
        self._journal.close()
        content = "\n".join(record.sha256 for record in self.done if record.reason is None)
        name = hashlib.sha256(f"{self.definition}\n{content}".encode("ascii")).hexdigest()[:16]
        index = Index(self.definition, self.side, f"images-{name}.npy", self.ignored, self.done)
        os.replace(self.building / "images", self.folder / index.images)
        write_atomic(self.folder / "files.csv", _files_csv(self.done))
        write_atomic(self.folder / "index.json", json.dumps(_index_json(index)).encode("ascii"))
        for old in self.folder.glob("images-*.npy"):
            if old.name != index.images:
                old.unlink()
        shutil.rmtree(self.building)
        return index


def _index_json(index: Index) -> dict[str, Any]:
    return {
        "format": CACHE_FORMAT,
        "definition": index.definition,
        "side": index.side,
        "images": index.images,
        "ignored": index.ignored,
        "files": [record.to_json() for record in index.records],
    }


def _files_csv(records: Sequence[FileRecord]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["file", "outcome", "frames", "blank_frames", "detail"])
    for record in records:
        writer.writerow([record.path, record.reason or "used", record.frames, record.blank, record.detail])
    return text.getvalue().encode("utf-8", errors="surrogateescape")


def _npy_header(n_frames: int, side: int) -> bytes:
    """Header of a ``.npy`` file; numpy reserves room for a growing first axis, so its length does not depend on it."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "|u1", "fortran_order": False, "shape": (n_frames, side, side, 3)}
    )
    return stream.getvalue()
