"""What became of every file of a data set: used, or rejected with its reason. Counts may be printed; names may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Reason(str, Enum):
    """Why a file is not used."""

    NOT_AN_IMAGE = "not an image"
    UNDECODABLE = "undecodable"
    TRUNCATED = "truncated"
    EMPTY_FILE = "empty file"
    NO_PIXEL_DATA = "no pixel data"
    WRONG_MODALITY = "wrong modality"
    TOO_SMALL = "too small"
    BLANK = "blank"
    DUPLICATE = "duplicate"
    DECODER_CRASHED = "decoder crashed"
    TIMEOUT = "timeout"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    OUTSIDE_FOLDER = "outside the folder"
    NOT_A_FILE = "not a regular file"
    NO_RESOLUTION = "no resolution"
    TOO_COARSE = "too coarse"
    NO_TISSUE = "no tissue"
    TOO_FEW_PATCHES = "too few patches"

    def __str__(self) -> str:
        return self.value


MEANING: dict[Reason, str] = {
    Reason.NOT_AN_IMAGE: "no image format that the reader knows",
    Reason.UNDECODABLE: "an image that no installed decoder can decode, or a damaged one",
    Reason.TRUNCATED: "the file ends before its image does: copy it again",
    Reason.EMPTY_FILE: "zero bytes: copy it again",
    Reason.NO_PIXEL_DATA: "a DICOM object without an image (report, plan, directory)",
    Reason.WRONG_MODALITY: "a modality that the catalogue does not allow, or not a picture (SEG, RTDOSE)",
    Reason.TOO_SMALL: "a side below the catalogue's min_side",
    Reason.BLANK: "a single grey value or colour everywhere",
    Reason.DUPLICATE: "the same pixels as an earlier file",
    Reason.DECODER_CRASHED: "the decoder's process died on it",
    Reason.TIMEOUT: "not decoded within the catalogue's timeout",
    Reason.UNREADABLE: "the operating system refused to read it: see its permissions",
    Reason.MISSING: "listed or linked to, but not there",
    Reason.OUTSIDE_FOLDER: "a link that leaves the data set's folder",
    Reason.NOT_A_FILE: "a socket, pipe or device",
    Reason.NO_RESOLUTION: "a slide that does not tell its µm/px: give it as mpp",
    Reason.TOO_COARSE: "a slide of more µm/px than patches are cut at",
    Reason.NO_TISSUE: "a slide on which the tissue preset finds none: look at its thumbnail, try another preset",
    Reason.TOO_FEW_PATCHES: "a slide with tissue, but fewer patches on it than asked for",
}
"""One line for a reader of the account; contains nothing about a patient."""


class Unusable(Exception):
    """A file that cannot be used, with its reason and a detail for the site's own staff."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class FileRecord:
    """One file: its identity on disk and what became of it.

    ``frames`` counts cached frames, ``blank`` the frames left out because they hold a single value, ``sha256`` is taken
    over the decoded frames before they are resized, and ``detail`` is for the site's own staff only.
    """

    path: str
    size: int
    mtime_ns: int
    frames: int = 0
    blank: int = 0
    reason: Reason | None = None
    detail: str = ""
    sha256: str = ""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Path, size in bytes and modification time in ns: a file with the same three is not decoded again."""
        return self.path, self.size, self.mtime_ns

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"reason": str(self.reason) if self.reason else None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FileRecord:
        """Inverse of :meth:`to_json`."""
        return cls(**(data | {"reason": Reason(data["reason"]) if data["reason"] else None}))


@dataclass(frozen=True)
class Account:
    """Counts only: what a site may print, log or show to others."""

    files: int
    used: int
    frames: int
    blank_frames: int
    ignored: int
    rejected: dict[Reason, int] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[FileRecord], ignored: int = 0) -> Account:
        """Count records; ``ignored`` are hidden files and desktop leftovers, which are not part of the data set."""
        files = used = frames = blank = 0
        rejected: Counter[Reason] = Counter()
        for record in records:
            files += 1
            if record.reason is None:
                used += 1
                frames += record.frames
                blank += record.blank
            else:
                rejected[record.reason] += 1
        return cls(
            files, used, frames, blank, ignored, {reason: rejected[reason] for reason in Reason if rejected[reason]}
        )

    @property
    def rejected_files(self) -> int:
        """Number of files rejected, for any reason."""
        return sum(self.rejected.values())

    @property
    def rejected_share(self) -> float:
        """Rejected files over all files, in [0, 1]; 0 for an empty folder."""
        return self.rejected_files / self.files if self.files else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "files": self.files,
            "used": self.used,
            "frames": self.frames,
            "blank_frames": self.blank_frames,
            "ignored": self.ignored,
            "rejected": {str(reason): count for reason, count in self.rejected.items()},
            "rejected_files": self.rejected_files,
            "rejected_share": round(self.rejected_share, 6),
        }

    def summary(self) -> str:
        """One line, for a log or an error."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.rejected.items()) or "none"
        return (
            f"{self.files} files: {self.used} used ({self.frames} frames), {self.rejected_files} rejected ({reasons})"
        )


class DataRefused(RuntimeError):
    """The site may not train on this data set: too much of it was rejected, or nothing is usable."""

    def __init__(self, message: str, account: Account) -> None:
        super().__init__(message)
        self.account = account

    def __reduce__(self) -> tuple[type[DataRefused], tuple[str, Account]]:
        """So that a worker's refusal reaches the process that asked."""
        return DataRefused, (str(self), self.account)
