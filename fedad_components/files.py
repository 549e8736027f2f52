"""Files that survive a crash: whole or not at all, private to their owner, one writer at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import torch


_TEMPORARY = ".tmp"
_BLOCK = 2**20


class LockedError(RuntimeError):
    """Another process holds the lock; the message names the file."""


def make_private_dir(path: str | Path) -> Path:
    """Create a folder that only its owner may enter (0700), and its parents likewise; what exists is left as it is."""
    path = Path(path)
    if not path.is_dir():
        make_private_dir(path.parent)  # mkdir(parents=True) would leave those open to everybody
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_atomic(path: str | Path, content: bytes | Iterable[bytes]) -> None:
    """Replace ``path`` by a 0600 file of this content: a reader sees the old or the new one, also after a crash."""
    with replacing(path) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Write a 0600 file that takes the place of ``path`` once it is whole and on the disk; nothing does on an error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: str | Path) -> None:
    """Make the names of its files survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically."""
    from safetensors.torch import save  # loads torch, which a site's parent process has no use for

    write_atomic(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=dict(metadata)))


@contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """Wait until no other process is in the same place for this folder. The lock is on the folder: no file is left."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a fork meanwhile has a copy of it
    finally:
        os.close(descriptor)


class FileLock:
    """An advisory lock for the life of the process that takes it; the kernel drops it when that process dies.

    Whoever holds it is the only writer of the lock's folder, and clears what a killed one left half written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            LockedError: if another process holds it.
        """
        make_private_dir(self.path.parent)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise LockedError(
                f"{self.path} is locked by another process: an earlier job of this experiment still runs here; wait "
                f"for it to end, or abort it"
            ) from None
        self._descriptor = descriptor
        for leftover in self.path.parent.glob(f".*{_TEMPORARY}"):
            leftover.unlink(missing_ok=True)

    def release(self) -> None:
        """Give the lock back; harmless if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
