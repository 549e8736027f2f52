"""The list of a site's slides: one line of a CSV file each, known from here on by pseudonyms and line numbers only."""

from __future__ import annotations

import csv
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedad_components.privacy.units import UnitsError, unit_key
from fedad_components.slides.reader import SlidesError, check_mpp

REQUIRED = ("slide", "slide_id", "patient_id")
OPTIONAL = ("label", "time", "event", "mpp")
KEY_FILE = "slide_ids.key"


@dataclass(frozen=True)
class SlideEntry:
    """One slide of the catalogue."""

    line: int
    """In the catalogue: what its owner finds a slide by."""
    path: Path = field(repr=False)
    slide: str
    """Pseudonym: 16 hex digits, of the slide's id and a key that stays at the site."""
    patient: str
    """Pseudonym, likewise."""
    label: str | None = None
    """Class."""
    time: float | None = None
    """To the event or the last visit; every slide of the catalogue in the same unit."""
    event: bool | None = None
    """Whether ``time`` ends in the event; False: censored."""
    mpp: float | None = None
    """µm/px that overrides the file's own."""


def pseudonym(key: bytes, kind: str, name: str) -> str:
    """16 hex digits of HMAC-SHA256: the same name gives the same, and without the key nobody can try names out."""
    return hmac.digest(key, f"{kind}\0{name}".encode(), "sha256").hex()[:16]


def load_catalogue(path: str | Path, key_file: str | Path | None = None) -> list[SlideEntry]:
    """Read a catalogue of slides; paths in it start at its own folder.

    Args:
        key_file: the key of the pseudonyms, made on first use; default: ``slide_ids.key`` beside the catalogue.

    Raises:
        SlidesError: naming line and column, and never a patient, a slide or its file.
    """
    path = Path(path).absolute()
    lines = _read(path)
    try:
        key = unit_key(key_file or path.parent / KEY_FILE)
    except UnitsError as error:
        raise SlidesError(f"key of the slides' pseudonyms: {error}") from None
    entries = [_entry(f"{path.name}, line {line}", line, row, path.parent, key) for line, row in lines]
    if not entries:
        raise SlidesError(f"{path}: no slides: expected one line for each after the header")
    _check_unique(path.name, entries)
    return entries


def _read(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line numbers and cells, stripped."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            columns = list(reader.fieldnames or ())
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = getattr(error, "strerror", None) or type(error).__name__
        raise SlidesError(f"{path}: cannot be read ({problem}): expected a CSV file in UTF-8") from None
    known = (*REQUIRED, *OPTIONAL)
    if missing := [name for name in REQUIRED if name not in columns]:
        raise SlidesError(f"{path}: no column {missing[0]!r}: expected a header line with {','.join(known)}")
    if unknown := [number for number, name in enumerate(columns, 1) if name not in known]:
        raise SlidesError(f"{path}: column {unknown[0]} is unknown: expected only {', '.join(known)}")
    if len(set(columns)) < len(columns):
        raise SlidesError(f"{path}: a column appears twice: expected each once")
    for line, row in lines:
        if None in row or None in row.values():
            raise SlidesError(f"{path.name}, line {line}: expected {len(columns)} cells; quote those that hold a comma")
    return [(line, {name: cell.strip() for name, cell in row.items()}) for line, row in lines]


def _entry(where: str, line: int, row: Mapping[str, str], folder: Path, key: bytes) -> SlideEntry:
    for column in REQUIRED:
        if not row[column]:
            raise SlidesError(f"{where}: {column} is empty")
    time, event, mpp = (row.get(column) or None for column in ("time", "event", "mpp"))
    if (time is None) != (event is None):
        raise SlidesError(f"{where}: expected both time and event, or neither")
    if event not in (None, "0", "1"):
        raise SlidesError(f"{where}: event: expected 1 (happened) or 0 (censored)")
    duration = _number(f"{where}: time", time)
    if duration is not None and duration < 0:
        raise SlidesError(f"{where}: time: expected 0 or more")
    micron = _number(f"{where}: mpp", mpp)
    return SlideEntry(
        line,
        _path(f"{where}: slide", row["slide"], folder),
        pseudonym(key, "slide", row["slide_id"]),
        pseudonym(key, "patient", row["patient_id"]),
        row.get("label") or None,
        duration,
        None if event is None else event == "1",
        None if micron is None else check_mpp(micron, f"{where}: mpp"),
    )


def _path(where: str, text: str, folder: Path) -> Path:
    try:
        if "\0" in text:
            raise ValueError
        return folder / Path(text).expanduser()
    except (ValueError, RuntimeError):  # RuntimeError: ~ of somebody whom the machine does not know
        raise SlidesError(f"{where}: expected the path of a file, without NUL, and after ~ no unknown user") from None


def _number(where: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SlidesError(f"{where}: expected a number, with a point as its decimal separator")
    return value


def _check_unique(name: str, entries: list[SlideEntry]) -> None:
    slides: dict[str, int] = {}
    files: dict[Path, int] = {}
    patients: dict[str, SlideEntry] = {}
    for entry in entries:
        where = f"{name}, line {entry.line}"
        if (first := slides.setdefault(entry.slide, entry.line)) != entry.line:
            raise SlidesError(f"{where}: the slide_id of line {first} again: expected each once")
        if (first := files.setdefault(entry.path.resolve(), entry.line)) != entry.line:
            raise SlidesError(f"{where}: the file of line {first} again: expected each slide once")
        other = patients.setdefault(entry.patient, entry)
        if (other.time, other.event) != (entry.time, entry.event):
            raise SlidesError(
                f"{where}: the patient of line {other.line} with another time or event: expected the same on all of "
                f"a patient's slides"
            )
