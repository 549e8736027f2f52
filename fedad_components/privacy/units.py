"""Privacy units: which images belong together, decided for each patient alone.

An image's unit depends on its patient, a key that never leaves the site, and the declared number of units; not on any
other image. Sorting patients and cutting the list into bundles would move every later patient when one leaves.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedad_components.files import make_private_dir
from fedad_components.privacy.site_file import cause, is_there

if TYPE_CHECKING:
    import numpy as np

KEY_BYTES = 32


class UnitsError(ValueError):
    """Privacy units that cannot be formed; the message names the file or the number, never a patient."""


def unit_key(path: str | Path) -> bytes:
    """The site's secret key (32 bytes), drawn from the operating system when the file does not exist yet.

    The file is 0600 and is written once: with another key every patient would change units, and the ledger's sums would
    be about units that no longer exist.

    Raises:
        UnitsError: if there is no file but something else, it has another length, others may read it, or this account
            may not.
    """
    path = Path(path)
    try:
        if not is_there(path):
            _create_once(path)
        if path.stat().st_mode & 0o077:
            raise UnitsError(f"{path}: others may read this site's unit key: chmod 600 it")
        key = path.read_bytes()
    except OSError as error:
        raise UnitsError(f"this site's unit key: {cause(path, error)}") from None
    if len(key) != KEY_BYTES:
        raise UnitsError(
            f"{path}: expected {KEY_BYTES} bytes, found {len(key)}: restore this site's unit key from its backup"
        )
    return key


def _create_once(path: Path) -> None:
    """Of several processes that create the file at once, one wins and none sees half of it."""
    make_private_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def key_fingerprint(key: bytes) -> str:
    """SHA-256, in hex, by which a changed key is noticed; it reveals nothing about a key of 256 random bits."""
    return hashlib.sha256(b"fedad unit key\x00" + key).hexdigest()


def assign_units(
    patients: Sequence[str | None],
    files: Sequence[str],
    unit: Literal["patient", "bundle"],
    units: int,
    key: bytes,
) -> dict[int, np.ndarray]:
    """Partition the records into privacy units.

    ``bundle``: all records of the patients whose HMAC-SHA256 under ``key`` falls into the same of ``units`` buckets; a
    record without patient counts as a patient of its own, by its file's name. ``patient``: all records of one patient.

    Args:
        patients: patient of each record, ``(n,)``; None where it is unknown.
        files: file name of each record, ``(n,)``.
        unit: ``privacy.unit``.
        units: declared, public number of units; it decides nothing under ``patient``.
        key: of :func:`unit_key`.

    Returns:
        A unit's number to its records' indices ``(m,)``, ascending. The number is a function of key and patient (the
        bucket, or 63 bits of the hash), so that it is the same whoever else is there.

    Raises:
        UnitsError: if there is no unit to assign to, or ``patient`` is asked for and records have none.
    """
    import numpy as np

    if units < 1:
        raise UnitsError(f"units: {units}: expected at least 1")
    unknown = sum(patient is None for patient in patients)
    if unit == "patient" and unknown:
        raise UnitsError(
            f"privacy.unit 'patient' protects all images of a patient, and {unknown} of {len(patients)} images have no "
            f"known patient: give them one in the catalogue, or use 'bundle'"
        )
    members: dict[int, list[int]] = {}
    for record, (patient, file) in enumerate(zip(patients, files, strict=True)):
        owner = f"file\x00{file}" if patient is None else f"patient\x00{patient}"
        digest = int.from_bytes(hmac.digest(key, owner.encode("utf-8", "surrogateescape"), "sha256"), "big")
        number = digest % units if unit == "bundle" else digest >> (256 - 63)
        members.setdefault(number, []).append(record)
    return {number: np.array(members[number]) for number in sorted(members)}
