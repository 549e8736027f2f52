"""Which files a data set consists of, without opening one. Nothing outside the declared folder is ever listed."""

from __future__ import annotations

import fnmatch
import functools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedad_components.imaging.account import FileRecord, Reason
from fedad_components.imaging.catalogue import CatalogueError, DataSet

_LEFTOVERS = {"thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Listing:
    """The files in a fixed order, with those rejected before decoding marked; and how many were ignored."""

    root: Path
    records: list[FileRecord]
    ignored: int


def list_files(data_set: DataSet) -> Listing:
    """List a data set's files, sorted by path.

    Links are followed only to regular files inside the folder: a link that leaves it is rejected, a linked folder is
    not entered. Hidden files, desktop leftovers and the data set's own table are ignored.

    Raises:
        CatalogueError: if the folder or the file list cannot be used.
    """
    where = f"data set {data_set.id!r}"
    try:
        root = data_set.folder.resolve(strict=True)
        os.listdir(root)
    except OSError as error:
        raise CatalogueError(
            f"{where}: folder = {str(data_set.folder)!r}: {error.strerror}: expected a readable folder"
        ) from None
    inside = functools.lru_cache(maxsize=1024)(functools.partial(_inside, root=root))  # of this call only: links change
    if data_set.files is not None:
        paths = sorted(set(_listed(data_set, root)))
        return Listing(root, [_record(root, path, inside) for path in paths], 0)
    table = data_set.table.file.resolve() if data_set.table else None
    paths, ignored = [], 0
    for path in _walk(root, where):
        name = path.rpartition("/")[2]
        if not any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in data_set.pattern):
            continue
        if name.startswith(".") or name.lower() in _LEFTOVERS or root / path == table:
            ignored += 1
        else:
            paths.append(path)
    return Listing(root, [_record(root, path, inside) for path in sorted(paths)], ignored)


def _walk(root: Path, where: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise CatalogueError(
            f"{where}: a folder below {str(root)!r} cannot be read ({error.strerror}): expected "
            f"permission to read all of them"
        )

    for folder, subfolders, names in os.walk(root, onerror=refuse):
        inside = os.path.relpath(folder, root)
        links = [name for name in subfolders if _leaves(root, os.path.join(folder, name))]
        for name in names + links:
            yield name if inside == "." else f"{inside}/{name}"


def _leaves(root: Path, path: str) -> bool:
    return os.path.islink(path) and not _inside(Path(path), root)


def _inside(path: Path, root: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(root)


def _listed(data_set: DataSet, root: Path) -> Iterator[str]:
    where = f"data set {data_set.id!r}: files"
    if isinstance(data_set.files, Path):
        try:
            text = data_set.files.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise CatalogueError(
                f"{where} = {str(data_set.files)!r}: {error.strerror}: expected a text file with one path a line"
            ) from None
        entries = [line for line in text.splitlines() if line.strip()]
    else:
        entries = list(data_set.files or ())
    for number, entry in enumerate(entries, start=1):
        # The entry's text may name a patient: the error gives its number.
        inside = os.path.relpath(os.path.normpath(root / entry), root)
        if inside == ".." or inside.startswith("../"):
            raise CatalogueError(
                f"{where}: entry {number} leads out of the folder {str(root)!r}: expected paths inside it"
            )
        yield inside


def _record(root: Path, path: str, inside: Callable[[Path], bool]) -> FileRecord:
    full = root / path
    try:
        status = full.lstat()
        if not inside(full.parent) or (stat.S_ISLNK(status.st_mode) and not inside(full)):
            return FileRecord(path, 0, 0, reason=Reason.OUTSIDE_FOLDER)
        status = full.stat()
    except FileNotFoundError:
        return FileRecord(path, 0, 0, reason=Reason.MISSING)
    except OSError as error:
        return FileRecord(path, 0, 0, reason=Reason.UNREADABLE, detail=error.strerror or "")
    reason = None
    if not stat.S_ISREG(status.st_mode):
        reason = Reason.NOT_A_FILE
    elif status.st_size == 0:
        reason = Reason.EMPTY_FILE
    return FileRecord(path, status.st_size, status.st_mtime_ns, reason=reason)
