"""The cache's writer: what it leaves on disk, and what it keeps after being killed at any point."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from fedad_components.imaging.account import FileRecord, Reason
from fedad_components.imaging.cache import CacheWriter, Index, cache_side

SIDE = 8


def planned(n: int) -> list[FileRecord]:
    return [FileRecord(f"{index}.png", 100 + index, 7) for index in range(n)]


def outcome(index: int, frames: int = 1) -> tuple[FileRecord, list[np.ndarray]]:
    pixels = np.random.default_rng(index).integers(0, 256, (frames, SIDE, SIDE, 3), dtype=np.uint8)
    return FileRecord(f"{index}.png", 100 + index, 7, frames=frames, sha256=f"{index:064x}"), list(pixels)


def writer(folder: Path, n: int = 6, definition: str = "d") -> CacheWriter:
    return CacheWriter(folder, definition, SIDE, planned(n), 0)


def test_side() -> None:
    assert [cache_side(size) for size in (224, 96, 48, 32)] == [256, 110, 55, 37]


def test_array_is_plain_numpy_and_in_order(tmp_path: Path) -> None:
    cache = writer(tmp_path)
    expected = []
    for index in range(6):
        record, frames = outcome(index, frames=1 + index % 3)
        expected += frames
        cache.add(record, frames)
    index_ = cache.finish()
    array = np.load(tmp_path / index_.images, mmap_mode="r", allow_pickle=False)
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, np.stack(expected))
    assert not array.flags.writeable
    assert Index.read(tmp_path) == index_
    assert not (tmp_path / "building").exists()


def test_repeated_pixels_are_duplicates(tmp_path: Path) -> None:
    cache = writer(tmp_path, 2)
    record, frames = outcome(0)
    cache.add(record, frames)
    cache.add(FileRecord("1.png", 101, 7, frames=1, sha256=record.sha256), frames)
    index = cache.finish()
    assert [entry.reason for entry in index.records] == [None, Reason.DUPLICATE]
    assert index.records[1].detail == "same pixels as 0.png"
    assert len(index.memmap(tmp_path)) == 1


def test_no_frames(tmp_path: Path) -> None:
    cache = writer(tmp_path, 1)
    cache.add(FileRecord("0.png", 100, 7, reason=Reason.UNDECODABLE), [])
    assert cache.finish().memmap(tmp_path).shape == (0, SIDE, SIDE, 3)


@pytest.mark.parametrize("damage", ["none", "torn line", "lost frames", "extra frames", "no images", "garbage"])
def test_continues_after_a_kill(tmp_path: Path, damage: str) -> None:
    first = writer(tmp_path)
    for index in range(4):
        first.add(*outcome(index))
    first.flush()  # then killed
    images, journal = tmp_path / "building" / "images", tmp_path / "building" / "journal"
    kept = 4
    if damage == "torn line":
        journal.write_bytes(journal.read_bytes()[:-9])
        kept = 3
    elif damage == "lost frames":
        images.write_bytes(images.read_bytes()[: -SIDE * SIDE * 3 - 5])
        kept = 2
    elif damage == "extra frames":
        images.write_bytes(images.read_bytes() + b"x" * 100)
    elif damage == "no images":
        images.unlink()
        kept = 0
    elif damage == "garbage":
        journal.write_bytes(b"\xff\xfe garbage\n")
        kept = 0
    second = writer(tmp_path)
    assert len(second.done) == kept
    for index in range(kept, 6):
        second.add(*outcome(index))
    expected = np.stack([outcome(index)[1][0] for index in range(6)])
    assert np.array_equal(second.finish().memmap(tmp_path), expected)


def test_starts_again_for_another_definition_or_changed_files(tmp_path: Path) -> None:
    first = writer(tmp_path)
    for index in range(4):
        first.add(*outcome(index))
    first.flush()
    changed = planned(6)
    changed[2] = FileRecord("2.png", 999, 7)
    assert len(CacheWriter(tmp_path, "d", SIDE, changed, 0).done) == 2
    assert writer(tmp_path, definition="other").done == []


def test_an_index_without_its_images_is_no_cache(tmp_path: Path) -> None:
    cache = writer(tmp_path, 1)
    cache.add(*outcome(0))
    index = cache.finish()
    content = json.loads((tmp_path / "index.json").read_text(encoding="ascii"))
    (tmp_path / "index.json").write_text(json.dumps(content | {"format": 0}), encoding="ascii")
    assert Index.read(tmp_path) is None
    (tmp_path / "index.json").write_text(json.dumps(content), encoding="ascii")
    assert Index.read(tmp_path) == index
    with open(tmp_path / index.images, "ab") as stream:
        stream.write(b"x")
    assert Index.read(tmp_path) is None
    assert stat.S_IMODE((tmp_path / "files.csv").stat().st_mode) == 0o600
