"""What a site receives of a job, and the digest by which it is approved.

FLARE sends a site the archive of one app, and the job's meta as the server keeps it: ``meta.json`` with what the server
added, such as the submitter. The digest covers both, by default everything. Left out is only what no two submissions
of the same job share: the entries that the server writes for each (``RENEWED``), and the signatures, which are salted
and dated anew each time. Those are verified instead, and whom they name is in the meta.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from fedad_components.audit.event import canonical
from fedad_components.files import make_private_dir, write_atomic
from fedad_components.job_reader import LARGEST_FILE, META, SIGNATURES
from fedad_components.wire import shown

DIGEST_VERSION = 1
MOST_ENTRIES = 200
MOST_BYTES = 8 << 20
MOST_META_BYTES = 256 << 10
LONGEST_PATH = 200

RENEWED = frozenset(
    {
        "job_id",
        "status",
        "submit_time",
        "submit_time_iso",
        "start_time",
        "duration",
        "schedule_count",
        "last_schedule_time",
        "schedule_history",
        "job_deploy_detail",
        "job_clients",
        "byoc",
    }
)
"""Entries of a job's meta that FLARE 2.9 writes itself for each submission, whatever ``meta.json`` says there. The last
is derived anew at each end from whether the app has a folder ``custom``, which the digest covers."""

_CLONED_FROM, _SUBMITTER, _NAME = "cloned_from", "submitter_name", "name"
_SIGNATURE, _CERTIFICATE = SIGNATURES
_PART = re.compile(r"[A-Za-z0-9_.@+=-]+")
_PEM = re.compile(rb"(-----BEGIN CERTIFICATE-----\r?\n[A-Za-z0-9+/=\r\n]+-----END CERTIFICATE-----\s*)+")


class UnsafeJob(ValueError):
    """A job that no site runs, approved or not.

    Args:
        problem: in our words alone.
        where: the entry, as the job has it.
    """

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.problem = problem


@dataclass(frozen=True)
class JobContent:
    """An app and the meta of its job, in memory: files by their path in the app, ``/`` between the parts."""

    app: str
    meta: Mapping[str, Any]
    files: Mapping[str, bytes]
    folders: frozenset[str]

    @classmethod
    def from_archive(cls, app: str, archive: bytes, meta: Mapping[str, Any]) -> JobContent:
        """What FLARE sends to a site.

        Args:
            app: the app's name, a key of the job's ``deploy_map``.
            archive: a ZIP file.
            meta: the job's, as the server keeps it.

        Raises:
            UnsafeJob: for anything but plain files and folders within bounds, each once and below the app; for a
                clone; and for signatures that hold more than signatures.
        """
        return cls._checked(app, _plain(meta), _Tree(_archived(archive)))

    @classmethod
    def from_folder(cls, app: str, folder: str | Path) -> JobContent:
        """What :meth:`write` wrote.

        Raises:
            UnsafeJob: as :meth:`from_archive`.
            OSError: if something is missing or cannot be read.
        """
        folder = Path(folder)
        try:
            meta = json.loads(_read(folder / META, MOST_META_BYTES))
        except ValueError:
            raise UnsafeJob("not JSON", META) from None
        return cls._checked(app, _plain(meta), _Tree(_stored(folder / app)))

    @classmethod
    def _checked(cls, app: str, meta: Mapping[str, Any], tree: _Tree) -> JobContent:
        if len(app) > LONGEST_PATH or not _is_part(app) or app == META:
            raise UnsafeJob("an app's name that is no folder's plain name", shown(app))
        if meta.get(_CLONED_FROM):
            raise UnsafeJob("a clone: submit the job itself", f"cloned from {shown(meta[_CLONED_FROM])}")
        content = cls(app, meta, tree.files, frozenset(tree.folders))
        content._check_signatures()
        return content

    @cached_property
    def file_digests(self) -> dict[str, str]:
        """SHA-256 of each file but the signatures, by path, in order."""
        return {
            path: hashlib.sha256(self.files[path]).hexdigest()
            for path in sorted(self.files)
            if PurePosixPath(path).name not in SIGNATURES
        }

    @property
    def lasting_meta(self) -> dict[str, Any]:
        """What of the meta the digest covers."""
        return {key: value for key, value in self.meta.items() if key not in RENEWED}

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, over the canonical JSON (RFC 8785) of app, files, folders and meta."""
        what = {
            "version": DIGEST_VERSION,
            "app": self.app,
            "files": self.file_digests,
            "folders": sorted(self.folders),
            "meta": self.lasting_meta,
        }
        try:
            return hashlib.sha256(canonical(what)).hexdigest()
        except (ValueError, RecursionError):  # NaN, a number above 2^53, half a surrogate pair
            raise UnsafeJob("a value that has no canonical form", META) from None

    @property
    def job_name(self) -> str:
        """As the job calls itself."""
        return str(self.meta.get(_NAME) or "")

    @property
    def submitter(self) -> str:
        """Who was signed in at the server when the job came; "" if the server did not say."""
        return str(self.meta.get(_SUBMITTER) or "")

    def write(self, folder: Path) -> None:
        """Write the job as a folder of private files: ``meta.json``, and the app below its name."""
        root = make_private_dir(folder / self.app)
        for name in sorted(self.folders):
            make_private_dir(root / name)
        for path, content in self.files.items():
            write_atomic(root / path, content)
        write_atomic(folder / META, json.dumps(self.meta, indent=2).encode("utf-8"))

    def _check_signatures(self) -> None:
        """Since the digest leaves them out, they may hold nothing else: one signature an entry, and certificates."""
        inside: dict[str, set[str]] = {folder: set() for folder in ("", *self.folders)}
        for path in (*self.files, *self.folders):
            parent, _, name = path.rpartition("/")
            inside[parent] |= {name} - set(SIGNATURES)
        for path, content in self.files.items():
            parent, _, name = path.rpartition("/")
            if name == _CERTIFICATE and not _PEM.fullmatch(content):
                raise UnsafeJob("more than certificates", path)
            if name == _SIGNATURE and _names(content) != inside[parent]:
                raise UnsafeJob("not one signature for each entry of its folder, and nothing else", path)


def _names(content: bytes) -> set[str] | None:
    """Whose signatures a signature file holds."""
    try:
        pairs = json.loads(content, object_pairs_hook=list)
        names = [name for name, value in pairs if re.fullmatch(r"[A-Za-z0-9+/=]{1,2000}", value)]
    except (ValueError, TypeError, RecursionError):
        return None
    return set(names) if len(set(names)) == len(pairs) else None


def _plain(meta: Any) -> dict[str, Any]:
    """The meta as JSON, which is how the job's processes read it."""
    try:
        text = json.dumps(meta, allow_nan=False)
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise UnsafeJob("not JSON", META) from None
    if not isinstance(plain, dict) or len(text) > MOST_META_BYTES:
        raise UnsafeJob(f"not one object of at most {MOST_META_BYTES} bytes", META)
    return plain


# -- files and folders, wherever they are -----------------------------------------------------------------------------


class _Tree:
    """Entries as they come, refused at the first that does not belong into a job."""

    def __init__(self, entries: Iterator[tuple[str, bytes | None]]) -> None:
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        total = 0
        listed: set[str] = set()
        for name, content in entries:
            path = _path(name)
            if path in listed:
                raise UnsafeJob("a name that is there twice", shown(path))
            listed.add(path)
            if len(listed) > MOST_ENTRIES:
                raise UnsafeJob(f"more than {MOST_ENTRIES} files and folders")
            self.folders |= {str(parent) for parent in PurePosixPath(path).parents} - {"."}
            if content is None:
                self.folders.add(path)
                continue
            total += len(content)
            if total > MOST_BYTES:
                raise UnsafeJob(f"more than {MOST_BYTES} bytes")
            self.files[path] = content
        if both := sorted(self.files.keys() & self.folders):
            raise UnsafeJob("a file and a folder of one name", shown(both[0]))
        names = self.files.keys() | self.folders
        if len({name.lower() for name in names}) < len(names):  # on some systems they are one
            raise UnsafeJob("two names that differ in case alone")


def _path(name: str) -> str:
    path = name.removesuffix("/")
    if path.startswith("/"):
        raise UnsafeJob("an absolute path", shown(name))
    if ".." in path.split("/"):
        raise UnsafeJob("a path that leads out of the app (..)", shown(name))
    if len(path) > LONGEST_PATH or not all(map(_is_part, path.split("/"))):
        raise UnsafeJob(
            f"a path of more than {LONGEST_PATH} characters, or of others than letters, digits and _ . @ + = - /",
            shown(name),
        )
    return path


def _is_part(name: str) -> bool:
    return bool(_PART.fullmatch(name)) and name not in (".", "..")


def _archived(archive: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Name and content of each entry of a ZIP file, in its order; no content for a folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            for info in opened.infolist():
                if info.orig_filename != info.filename:
                    raise UnsafeJob("a name that not all systems read alike", shown(info.orig_filename))
                _check_kind(info.filename, info.external_attr >> 16, info.is_dir())
                with opened.open(info) as file:
                    content = file.read(LARGEST_FILE + 1)
                _check_size(info.filename, 0 if info.is_dir() else LARGEST_FILE, len(content))
                yield info.filename, None if info.is_dir() else content
    except UnsafeJob:
        raise
    except Exception as error:  # damaged, encrypted, or packed in a way that Python does not know
        raise UnsafeJob("an archive that cannot be read whole", type(error).__name__) from None


def _check_kind(name: str, mode: int, is_folder: bool) -> None:
    if stat.S_ISLNK(mode):
        raise UnsafeJob("a link", shown(name))
    if stat.S_IFMT(mode) not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG):
        raise UnsafeJob("neither a file nor a folder", shown(name))


def _check_size(name: str, most: int, size: int) -> None:
    if size > most:
        raise UnsafeJob(f"more than {most} bytes", shown(name))


def _stored(root: Path) -> Iterator[tuple[str, bytes | None]]:
    """The same of a folder."""

    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=give_up):  # enters no link
        for name in (*folders, *files):
            path = Path(folder, name)
            relative, mode = path.relative_to(root).as_posix(), path.lstat().st_mode
            _check_kind(relative, mode, name in folders)
            yield relative, None if name in folders else _read(path, LARGEST_FILE)


def _read(path: Path, most: int) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        content = file.read(most + 1)
    _check_size(path.name, most, len(content))
    return content
