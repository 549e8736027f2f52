"""The writer: many at once, crashes, rotation, the clock, and every way in which it must refuse."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from parties import slow_chain

from fedad_components.audit import log as log_module
from fedad_components.audit.event import Kind, Outcome
from fedad_components.audit.log import AuditError, AuditLog
from fedad_components.audit.reading import log_files

FIRST = "audit-000001.jsonl"


def write_many(folder: Path, count: int, name: str, file_bytes: int = 4000) -> None:
    log = AuditLog(folder, "site-a", file_bytes=file_bytes)
    for number in range(count):
        log.write(Kind.COMMAND, durable=False, command=name, round=number)


def kinds(folder: Path) -> list[str]:
    return [event["event"] for event in slow_chain(log_files(folder))]


def test_files_are_private_and_events_as_given(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "audit"
    event = AuditLog(folder, "site-a").write(
        Kind.COMMAND, Outcome.REFUSED, command="abort_job", reason="not its submitter"
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / FIRST).stat().st_mode) == 0o600
    assert (folder / FIRST).read_bytes() == event.line() + b"\n"
    assert (event.seq, event.site, event.outcome) == (0, "site-a", Outcome.REFUSED)


def test_threads_with_one_log_and_with_their_own(tmp_path: Path) -> None:
    shared = AuditLog(tmp_path / "log", "site-a", file_bytes=4000)
    with ThreadPoolExecutor(8) as pool:
        one = [pool.submit(shared.write, Kind.COMMAND, durable=False, command="shared") for _ in range(100)]
        own = [pool.submit(write_many, tmp_path / "log", 25, f"thread {number}") for number in range(4)]
        for future in [*one, *own]:
            future.result()
    events = slow_chain(log_files(tmp_path / "log"))
    assert sum(event["event"] == "command" for event in events) == 200
    assert sum(event["event"] == "log_rotated" for event in events) == len(log_files(tmp_path / "log")) - 1 > 5


def test_processes(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=write_many, args=(folder, 60, f"process {number}")) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    events = slow_chain(log_files(folder))
    for number in range(4):
        own = [event["round"] for event in events if event.get("command") == f"process {number}"]
        assert own == list(range(60))


ENDLESS = """
import sys
from fedad_components.audit.event import Kind
from fedad_components.audit.log import AuditLog
log = AuditLog(sys.argv[1], "site-a", file_bytes=5000)
while True:
    log.write(Kind.COMMAND, durable=False)
"""


def test_a_killed_writer_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(folder)]) as process:
        while not (folder / "audit-000002.jsonl").exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    AuditLog(folder, "site-a").write(Kind.SYSTEM_STARTED)
    assert slow_chain(log_files(folder))[-1]["event"] == "system_started"


@pytest.mark.parametrize("file_bytes", [1, 500, 10**6])
def test_rotation_carries_the_chain(tmp_path: Path, file_bytes: int) -> None:
    for _ in range(3):  # each time a process that begins anew
        write_many(tmp_path, 3, "x", file_bytes)
    files = log_files(tmp_path)
    assert [file.name for file in files] == [f"audit-{number:06d}.jsonl" for number in range(1, len(files) + 1)]
    for file in files[:-1]:
        assert b'"event":"log_rotated"' in file.read_bytes().splitlines()[-1]
    assert kinds(tmp_path).count("command") == 9
    assert len(files) == {1: 9, 500: 5, 10**6: 1}[file_bytes] or file_bytes == 500


@pytest.mark.parametrize("torn", [b'{"actor":{"na', b"\x00" * 700, b"garbage\n", b"a\nb\n\x00\xff", b"{\n{\n"])
@pytest.mark.parametrize("writer", ["new", "same"])
def test_a_torn_line_is_kept_and_logged(tmp_path: Path, torn: bytes, writer: str) -> None:
    log = AuditLog(tmp_path, "site-a")
    log.write(Kind.SYSTEM_STARTED)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(torn)
    (log if writer == "same" else AuditLog(tmp_path, "site-a")).write(Kind.SYSTEM_STARTED)
    assert (tmp_path / "torn-1.bin").read_bytes() == torn
    assert stat.S_IMODE((tmp_path / "torn-1.bin").stat().st_mode) == 0o600
    events = slow_chain(log_files(tmp_path))
    assert [event["event"] for event in events] == ["system_started", "log_torn", "system_started"]
    assert events[1]["reason"] == f"torn-1.bin: {len(torn)} bytes, SHA-256 {hashlib.sha256(torn).hexdigest()}"
    assert events[1]["outcome"] == "failed"


def test_a_line_torn_at_any_byte(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "site-a")
    log.write(Kind.SYSTEM_STARTED)
    whole = (tmp_path / FIRST).read_bytes()
    log.write(Kind.SYSTEM_STOPPED)
    line = (tmp_path / FIRST).read_bytes()[len(whole) :]
    for length in (1, 2, 50, len(line) // 2, len(line) - 2, len(line) - 1):
        folder = tmp_path / str(length)
        folder.mkdir(mode=0o700)
        (folder / FIRST).write_bytes(whole + line[:length])
        if length == len(line) - 1:  # all but the newline: a whole event, and still torn
            assert line[:length].endswith(b"}")
        AuditLog(folder, "site-a").write(Kind.COMMAND, durable=False)
        assert kinds(folder) == ["system_started", "log_torn", "command"]
        assert (folder / "torn-1.bin").read_bytes() == line[:length]


@pytest.mark.parametrize("before", [0, 1])
def test_a_file_of_which_only_a_torn_line_exists(tmp_path: Path, before: int) -> None:
    write_many(tmp_path, before, "x", 1)
    if before:
        AuditLog(tmp_path, "site-a", file_bytes=1).write(Kind.COMMAND)
        path = tmp_path / "audit-000002.jsonl"
    else:
        path = tmp_path / FIRST
    path.write_bytes(b'{"half')
    AuditLog(tmp_path, "site-a").write(Kind.COMMAND)
    assert kinds(tmp_path) == ["command", "log_rotated"] * before + ["log_torn", "command"]


class Killed(BaseException):
    """As if the process had ended there."""


@pytest.mark.parametrize("step", range(6))
def test_a_crash_at_any_step_of_the_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The n-th of the calls that change something fails; the next process has all bytes, and each is logged."""
    log = AuditLog(tmp_path, "site-a")
    log.write(Kind.SYSTEM_STARTED)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(b'{"half')
    calls = 0

    def counted(real):  # type: ignore[no-untyped-def]
        def call(*arguments, **options):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise Killed
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("write", "replace", "fsync"):
            patched.setattr(os, name, counted(getattr(os, name)))
        patched.setattr(log_module, "write_atomic", counted(log_module.write_atomic))
        with pytest.raises(Killed):
            AuditLog(tmp_path, "site-a").write(Kind.COMMAND)
    AuditLog(tmp_path, "site-a").write(Kind.SYSTEM_STOPPED)
    events = slow_chain(log_files(tmp_path))
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("torn-*")}
    assert b'{"half' in kept.values()
    told = {event["reason"] for event in events if event["event"] == "log_torn"}
    assert told == {f"{name}: {len(c)} bytes, SHA-256 {hashlib.sha256(c).hexdigest()}" for name, c in kept.items()}


def test_the_clock_steps_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path, "site-a")
    times = ["2030-01-01T00:00:02.000000Z", "2030-01-01T00:00:01.000000Z", "2030-01-01T00:00:01.000000Z"]
    for reading in times:
        monkeypatch.setattr(log_module, "now", lambda reading=reading: reading)
        log.write(Kind.COMMAND)
    events = slow_chain(log_files(tmp_path))
    assert [event["event"] for event in events] == ["command", "clock_stepped_back", "command", "command"]
    assert times[0] in events[1]["reason"]
    assert events[1]["time"] == times[1]
    assert times[1] in events[1]["reason"]


def replace_by_link(folder: Path) -> None:
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.symlink_to(moved)


def swap_inode(folder: Path) -> None:
    copy = folder / "copy"
    copy.write_bytes((folder / FIRST).read_bytes())
    copy.replace(folder / FIRST)


def cut(folder: Path) -> None:
    os.truncate(folder / FIRST, 100)


def link_file(folder: Path) -> None:
    (folder / FIRST).rename(folder / "elsewhere")
    (folder / FIRST).symlink_to(folder / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (replace_by_link, "a link or a file"),
        (lambda folder: folder.chmod(0o777), "chmod 700"),
        (lambda folder: (folder / FIRST).unlink(), "No such file"),
        (lambda folder: folder.rename(folder.with_name("away")), "No such file"),
        (swap_inode, "replaced or cut"),
        (cut, "replaced or cut"),
        (link_file, "replaced or cut"),
    ],
)
def test_what_happens_behind_the_writers_back_is_refused(tmp_path: Path, spoil, message: str) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "log"
    log = AuditLog(folder, "site-a")
    log.write(Kind.SYSTEM_STARTED)
    log.write(Kind.SYSTEM_STARTED)
    spoil(folder)
    with pytest.raises(AuditError, match=message) as error:
        log.write(Kind.COMMAND)
    assert str(folder) in str(error.value)


def test_a_newcomer_refuses_a_log_that_is_not_whole_at_its_end(tmp_path: Path) -> None:
    write_many(tmp_path / "log", 6, "x", 300)
    files = log_files(tmp_path / "log")
    content = files[-1].read_bytes()

    def refused(match: str, site: str = "site-a") -> None:
        with pytest.raises(AuditError, match=match):
            AuditLog(tmp_path / "log", site).write(Kind.COMMAND)

    refused("the log of another party", site="site-b")
    files[-1].write_bytes(content.replace(b'"round":5', b'"round": 5'))
    refused("no event")
    files[-1].write_bytes(content.replace(b'"prev":"', b'"prev":"0').replace(b'","round"', b'","round"'))
    refused("no event|follow")
    files[-1].write_bytes(b"")
    files[-2].write_bytes(files[-2].read_bytes().splitlines(keepends=True)[0])
    refused("does not end in its rotation")
    files[-1].write_bytes(content)
    files[-2].unlink()
    refused("is missing")


def test_a_full_disk_refuses_and_leaves_whole_lines(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "site-a")
    log.write(Kind.SYSTEM_STARTED)
    size = (tmp_path / FIRST).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))  # room for a part of the line
    try:
        with pytest.raises(AuditError, match="make room"):
            log.write(Kind.COMMAND, command="x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / FIRST).stat().st_size == size
    log.write(Kind.COMMAND)
    assert kinds(tmp_path) == ["system_started", "command"]


def test_an_event_that_could_not_be_made_durable_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path, "site-a")
    log.write(Kind.SYSTEM_STARTED)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(AuditError, match="Input/output error"):
            log.write(Kind.COMMAND)
    log.write(Kind.SYSTEM_STOPPED)
    assert kinds(tmp_path) == ["system_started", "system_stopped"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AuditError, match="right to write"):
        AuditLog(tmp_path, "site-a").write(Kind.COMMAND)


def test_no_permission_as_the_system_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", str(tmp_path / FIRST))

    log = AuditLog(tmp_path, "site-a")
    monkeypatch.setattr(log_module.os, "open", refuse)
    with pytest.raises(AuditError, match="right to write"):
        log.write(Kind.COMMAND)


def test_fields_that_are_none_are_refused_without_their_value(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "site-a")
    for fields in ({"patient": "DOE^JANE"}, {"round": "DOE^JANE"}, {"reason": "DOE^JANE" * 1000}):
        with pytest.raises(AuditError, match=next(iter(fields))) as error:
            log.write(Kind.COMMAND, **fields)
        assert "DOE" not in str(error.value)
    many = {f"{number:0250d}": "0" * 64 for number in range(1000)}
    with pytest.raises(AuditError, match="software"):
        log.write(Kind.SYSTEM_STARTED, software={"x": ""})
    log.write(Kind.SYSTEM_STARTED, files=many)
    assert len(slow_chain(log_files(tmp_path))) == 1
