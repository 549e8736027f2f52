"""Logs are found in files and folders, in the order of their numbers, and read with memory for a line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from fedad_components.audit import reading
from fedad_components.audit.event import Kind
from fedad_components.audit.log import AuditLog
from fedad_components.audit.reading import (
    BadLine,
    ReadError,
    find_chains,
    find_files,
    lines_backwards,
    read,
    read_lines,
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for site in ("site-b", "site-a"):
        log = AuditLog(tmp_path / "all" / site / "audit", site, file_bytes=400)
        for number in range(8):
            log.write(Kind.COMMAND, durable=False, round=number)
    return tmp_path / "all"


def test_folders_at_any_depth_and_single_files(logs: Path) -> None:
    chains = find_chains([logs])
    assert [chain.folder for chain in chains] == [logs / "site-a" / "audit", logs / "site-b" / "audit"]
    assert len(chains[0].files) > 2
    assert find_chains([chains[0].folder, *chains[1].files, logs]) == chains
    assert find_files([logs]) == [*chains[0].files, *chains[1].files]


def test_files_are_ordered_by_number(tmp_path: Path) -> None:
    names = ["audit-1000000.jsonl", "audit-000002.jsonl", "audit-000010.jsonl", "audit-999999.jsonl"]
    for name in [*names, "audit-1.jsonl", "other.jsonl", "torn-1.bin"]:
        (tmp_path / name).write_bytes(b"")
    expected = ["audit-000002.jsonl", "audit-000010.jsonl", "audit-999999.jsonl", "audit-1000000.jsonl"]
    assert [file.name for file in find_files([tmp_path])] == expected


def test_paths_without_a_log(tmp_path: Path) -> None:
    for paths, match in (([], "no path"), ([tmp_path], "no log there"), ([tmp_path / "absent"], "no such file")):
        with pytest.raises(ReadError, match=match):
            find_chains(paths)


def test_read_gives_events_with_their_places(logs: Path) -> None:
    located = list(read([logs / "site-a"]))
    assert [item.event.seq for item in located] == list(range(len(located)))
    for before, after in pairwise(located):
        assert after.event.prev == before.hash
        assert (after.line, after.path) == (before.line + 1, before.path) or after.line == 1


def test_bad_lines_raise_or_are_put_aside(logs: Path) -> None:
    file = find_files([logs])[0]
    content = file.read_bytes()
    file.write_bytes(content + b"{}\n" + b'{"torn')
    with pytest.raises(ReadError, match=f"{file.name}:{content.count(10) + 1}"):
        list(read([file]))
    bad: list[BadLine] = []
    assert len(list(read([file], bad))) == content.count(10)
    assert [item.line for item in bad] == [content.count(10) + 1, content.count(10) + 2]


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 10)
    path = tmp_path / "x"
    path.write_bytes(b"short\n" + b"y" * 35 + b"\nnext\n" + b"z" * 10)
    lines = [(line.line, line.content, line.whole) for line in read_lines(path)]
    assert lines == [(1, b"short", True), (2, b"y" * 10, False), (3, b"next", True), (4, b"z" * 10, False)]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 2**16])
@pytest.mark.parametrize("content", [b"", b"\n", b"one", b"one\n", b"one\ntwo\n\nfour", b"\n\nabc\n"])
def test_backwards_is_forwards_reversed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, content: bytes
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", block)
    (tmp_path / "x").write_bytes(content)
    assert list(lines_backwards(tmp_path / "x")) == content.split(b"\n")[::-1]
