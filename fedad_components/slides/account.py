"""What became of every slide of a catalogue: used, or left out with its reason. Lines and pseudonyms, no names."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from fedad_components.imaging.account import Reason

FORMAT = 1


@dataclass(frozen=True)
class SlideRecord:
    """One slide."""

    line: int
    """Of the catalogue."""
    slide: str
    patient: str
    """Pseudonyms."""
    reason: Reason | None = None
    """Why it is left out; None: it is used."""
    detail: str = ""
    """What was expected, and the fix."""
    patches: int = 0
    mpp: float | None = None
    """µm/px of level 0."""
    mpp_source: str | None = None
    resumed: bool = False
    """Its features were there already."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"reason": str(self.reason) if self.reason else None}


@dataclass(frozen=True)
class SlideAccount:
    """All slides, and how they were prepared."""

    records: list[SlideRecord]
    settings: dict[str, Any]
    encoder: dict[str, Any]

    @property
    def used(self) -> list[SlideRecord]:
        """The slides that have features."""
        return [record for record in self.records if record.reason is None]

    @property
    def left_out(self) -> list[SlideRecord]:
        """The slides that have none."""
        return [record for record in self.records if record.reason is not None]

    @property
    def rejected(self) -> dict[Reason, int]:
        """Slides for each reason that occurs."""
        found = Counter(record.reason for record in self.left_out)
        return {reason: found[reason] for reason in Reason if found[reason]}

    @property
    def patients(self) -> int:
        """Patients with a slide that is used."""
        return len({record.patient for record in self.used})

    @property
    def patients_without(self) -> int:
        """Patients all of whose slides are left out."""
        return len({record.patient for record in self.records}) - self.patients

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "format": FORMAT,
            "slides": len(self.records),
            "used": len(self.used),
            "patches": sum(record.patches for record in self.used),
            "rejected": {str(reason): count for reason, count in self.rejected.items()},
            "patients": self.patients,
            "patients_without_slides": self.patients_without,
            "settings": self.settings,
            "encoder": self.encoder,
            "records": [record.to_json() for record in self.records],
        }
