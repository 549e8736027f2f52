"""Ingest: decode a data set once, account for every file, and refuse it when too much of it is unusable."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedad_components.files import make_private_dir
from fedad_components.imaging.account import DataRefused
from fedad_components.imaging.cache import CachedImages, CacheMissing, Index, cache_folder, images_of
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.imaging.listing import Listing, list_files

Progress = Callable[[int, int], None]
"""Called with the number of files done and of all files."""

MAX_WORKERS = 16
LOCK_TIMEOUT = 3600.0


class IngestError(RuntimeError):
    """The cache could not be built for a reason that lies outside the images, such as a full disk."""


def ingest(
    data_set: DataSet,
    cache_dir: str | Path,
    side: int,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    again: bool = False,
) -> CachedImages:
    """Return a data set's images as ``uint8 (n, side, side, 3)``, decoding only what is not cached yet.

    A killed ingest continues where it stopped; files that have changed are decoded again; order and content do not
    depend on the number of ``workers`` (default: the CPUs this process may use). ``again`` decodes everything.

    Raises:
        CatalogueError: if the data set's folder, file list, table or reader cannot be used.
        DataRefused: if more than ``max_rejected`` of the files were rejected, or none is usable.
        IngestError: if the cache cannot be written, or another ingest holds it for an hour.
    """
    if data_set.kind != "images":
        raise CatalogueError(f"data set {data_set.id!r} holds {data_set.kind}: expected `kind: images`")
    folder = cache_folder(cache_dir, data_set, side)
    data_set.rows()  # a wrong table must not show only after hours of decoding
    try:
        for private in (folder.parent, folder):
            make_private_dir(private)
        folder.chmod(0o700)
        with _locked(folder / "lock") as lock:
            listing = list_files(data_set)
            definition = data_set.definition(side)
            index = None if again else _current(folder, listing, definition)
            if index is None:
                job = _job(data_set, folder, side, listing, definition, workers or _cpus(), again)
                _build(job, lock, progress)
                index = Index.read(folder)
    except OSError as error:
        raise IngestError(
            f"cache {str(folder)!r}: {error.strerror}: expected a folder that this user may write"
        ) from None
    if index is None:
        raise IngestError(f"cache {str(folder)!r}: incomplete after ingest: see free space and permissions")
    return _accepted(data_set, folder, index)


def open_cache(data_set: DataSet, cache_dir: str | Path, side: int) -> CachedImages:
    """Open an up-to-date cache without decoding anything.

    Raises:
        CacheMissing: if there is none, or files or definition have changed since.
        CatalogueError, DataRefused: as :func:`ingest`.
    """
    folder = cache_folder(cache_dir, data_set, side)
    index = _current(folder, list_files(data_set), data_set.definition(side))
    if index is None:
        raise CacheMissing(f"data set {data_set.id!r}: no up-to-date cache at side {side}: run 'fedad data ingest'")
    return _accepted(data_set, folder, index)


def _current(folder: Path, listing: Listing, definition: str) -> Index | None:
    index = Index.read(folder)
    if index is None or index.definition != definition or index.ignored != listing.ignored:
        return None
    same = [record.identity for record in index.records] == [record.identity for record in listing.records]
    return index if same else None


def _accepted(data_set: DataSet, folder: Path, index: Index) -> CachedImages:
    account = index.account()
    where = f"data set {data_set.id!r}: "
    fix = (
        f"\nThe site's own list of files and reasons: {folder / 'files.csv'}\nRepair or remove the rejected files, or "
        f"correct the data set's entry in the catalogue; then run 'fedad data check {data_set.id}'"
    )
    if account.used == 0:
        found = "" if index.records else " (the folder holds no file that pattern or files names)"
        raise DataRefused(f"{where}no usable image{found}; {account.summary()}{fix}", account)
    if account.rejected_share > data_set.max_rejected:
        raise DataRefused(
            f"{where}{account.rejected_share:.1%} of the files were rejected, max_rejected is "
            f"{data_set.max_rejected:.1%}; {account.summary()}{fix}",
            account,
        )
    return images_of(data_set, folder, index)


def _cpus() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MAX_WORKERS)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the lock. The building process inherits it: a caller's death does not free it while that still writes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise IngestError(
                        f"cache {str(path.parent)!r}: another ingest has held it for {LOCK_TIMEOUT:.0f} s: "
                        f"wait for it, or end that process"
                    ) from None
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)


def _job(
    data_set: DataSet, folder: Path, side: int, listing: Listing, definition: str, workers: int, again: bool
) -> dict[str, Any]:
    return {
        "data_set": data_set.model_dump(mode="json"),
        "folder": str(folder.absolute()),
        "root": str(listing.root),
        "records": [record.to_json() for record in listing.records],
        "ignored": listing.ignored,
        "definition": definition,
        "side": side,
        "workers": workers,
        "again": again,
    }


def _build(job: dict[str, Any], lock: int, progress: Progress | None) -> None:
    """Run ``build.py`` in a process that holds the lock too."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    environment = os.environ | {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "fedad_components.imaging.build"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C reaches the caller, which closes the pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    last: dict[str, Any] = {}
    where = f"data set {job['data_set']['id']!r}"
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            last = json.loads(line)
            if progress is not None and "done" in last:
                progress(last["done"], last["total"])
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        code = process.wait()
    if "catalogue_error" in last:
        raise CatalogueError(f"{where}: {last['catalogue_error']}")
    if "error" in last or code:
        problem = last.get("error", f"the building process ended with status {code}")
        raise IngestError(
            f"{where}: cache {job['folder']!r}: {problem}: run it again to "
            f"continue; details for the site's staff, if any, are in error.txt there"
        )
