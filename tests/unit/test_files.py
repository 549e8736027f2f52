"""Files are whole, private and locked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedad_components.files import FileLock, LockedError, make_private_dir, write_atomic, write_tensors


def test_a_written_file_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["secret"]


def test_tensors_round_trip(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(6.0).reshape(2, 3).T}  # not contiguous
    write_tensors(tmp_path / "w.safetensors", tensors, {"round": "3"})
    assert torch.equal(load_file(tmp_path / "w.safetensors")["w"], tensors["w"])


def test_a_private_folder_is_private(tmp_path: Path) -> None:
    assert make_private_dir(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        make_private_dir(__file__)


def test_a_lock_excludes_another_process_until_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from fedad_components.files import FileLock\n"
            f"lock = FileLock({str(path)!r}); lock.acquire(); print('held', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockedError, match=str(path)):
            FileLock(path).acquire()
    finally:
        holder.kill()
        holder.wait()
    lock = FileLock(path)
    lock.acquire()  # the kernel dropped it with its holder
    lock.release()
    lock.release()


def test_the_holder_of_a_lock_clears_what_a_killed_writer_left(tmp_path: Path) -> None:
    write_atomic(tmp_path / "state", b"whole")
    killed = "import os; os.fsync = lambda descriptor: os.kill(os.getpid(), 9)\n"
    code = (
        f"{killed}from fedad_components.files import write_atomic; write_atomic({str(tmp_path / 'state')!r}, b'half')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(os.listdir(tmp_path)) == 2
    FileLock(tmp_path / "lock").acquire()
    assert sorted(os.listdir(tmp_path)) == ["lock", "state"]
    assert (tmp_path / "state").read_bytes() == b"whole"
