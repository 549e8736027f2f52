"""What the server writes down about each round: ``rounds.jsonl``, one JSON object a line. Imports no FLARE.

The controller appends a :class:`RoundRecord` after every round; the demo's summary and report are built from them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedad_components.files import make_private_dir
from fedad_components.privacy.claim import PrivacyClaim
from fedad_components.reports import Validation

FILE_NAME = "rounds.jsonl"


def _finite_or_none(value: object) -> object:
    """A site's word is not trusted to be a number: NaN and infinities, which JSON cannot hold, become None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Reported = Annotated[float | None, BeforeValidator(_finite_or_none)]
"""A figure that a site reports about itself; None where it was not finite."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Losses(BaseModel):
    """A site's losses in its last local epoch, means over its batches (Eqs. 1-4); dimensionless.

    Which an algorithm has, its configuration says (``loss_names``): HistoFL the total alone.
    """

    # An instance is checked like a dict: model_construct() would fill one with anything.
    model_config = ConfigDict(extra="forbid", frozen=True, revalidate_instances="always")

    total: Reported = Field(description="Eq. 1")
    contrastive: Reported = Field(default=None, description="NT-Xent, Eq. 2")
    alignment: Reported = Field(default=None, description="Eq. 3, with lambda_t")
    orthogonality: Reported = Field(default=None, description="Eq. 4, with gamma")

    @model_validator(mode="after")
    def _one_or_all(self) -> Losses:
        if self.model_fields_set not in ({"total"}, set(Losses.model_fields)):
            raise ValueError("expected the total alone, or all four")
        return self


class RoundRecord(BaseModel):
    """One finished round, as the server saw it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: Count = Field(description="number of the round, from 0")
    participants: list[str] = Field(description="sites whose update is in the aggregate")
    refused: dict[str, str] = Field(
        default_factory=dict,
        description="site -> why its update is not in the aggregate: "
        "refused by the gate, a task error, or no answer in time",
    )
    lambda_t: NonNegative = Field(description="lambda that the sites used in this round")
    lambda_next: NonNegative = Field(description="lambda of the coming round, Eq. 6")
    instability: NonNegative = Field(description="Delta of this round's aggregate, Eq. 5")
    phase: Literal["exploration", "enforcement"] = Field(description="phase that ATSA reports after this round")
    losses: dict[str, Losses] = Field(
        description="participant -> losses of its last local epoch; empty where the privacy mode keeps them at the site"
    )
    n_samples: dict[str, Count] = Field(
        description="participant -> images it trained on, its weight in the mean; empty where all weigh the same"
    )
    claims: dict[str, PrivacyClaim] = Field(
        default_factory=dict, description="participant -> its guarantee in this experiment, under dp_sgd"
    )
    global_claim: PrivacyClaim | None = Field(
        default=None, description="guarantee of all global models so far, for each hospital, under client_dp"
    )
    ledger_heads: dict[str, str] = Field(
        default_factory=dict, description="participant -> head of its privacy ledger, which its chain must still hold"
    )
    validation: Validation | None = Field(
        default=None,
        description="how good the round's incoming model is, over all sites' validation patients (HistoFL)",
    )
    bytes: dict[str, Count] = Field(description="participant -> bytes of the tensors that it sent")
    seconds: NonNegative = Field(description="wall-clock time from the first task sent to the new global model")

    @model_validator(mode="after")
    def _consistent(self) -> RoundRecord:
        if len(set(self.participants)) != len(self.participants):
            raise ValueError(f"round {self.round}: a participant is named twice: {self.participants}")
        if both := set(self.participants) & set(self.refused):
            raise ValueError(f"round {self.round}: both accepted and refused: {sorted(both)}")
        asked = set(self.participants) | set(self.refused)
        for field, allowed in (
            ("losses", set(self.participants)),
            ("n_samples", set(self.participants)),
            ("claims", set(self.participants)),
            ("ledger_heads", set(self.participants)),
            ("bytes", asked),
        ):
            if strangers := set(getattr(self, field)) - allowed:
                raise ValueError(f"round {self.round}: {field} of sites that did not take part: {sorted(strangers)}")
        return self


class RecordsError(ValueError):
    """A ``rounds.jsonl`` that cannot be used; the message names the file and the line."""


def append_record(path: str | Path, record: RoundRecord) -> None:
    """Append one line and flush it to the disk; half a line that a crash left at the end is removed first."""
    path = Path(path)
    make_private_dir(path.parent)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+b") as file:
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
        file.write(record.model_dump_json().encode("utf-8") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(path: str | Path) -> list[RoundRecord]:
    """Read the rounds in order of their number.

    A round that was repeated after a crash counts once, by its last line; half a last line is ignored.

    Raises:
        RecordsError: if the file is missing, or a whole line is not a valid record.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordsError(f"{path}: cannot be read: {error}") from error
    records: dict[int, RoundRecord] = {}
    for number, line in enumerate(content.split("\n")[:-1], start=1):
        try:
            record = RoundRecord.model_validate_json(line)
        except ValidationError as error:
            raise RecordsError(f"{path}, line {number}: not a round's record: {error}") from None
        records[record.round] = record
    return [records[number] for number in sorted(records)]
