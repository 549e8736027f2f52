"""What a site may report beside its weights, as counts that add up over the sites, and what the server makes of them.

The words on the wire and in ``rounds.jsonl``; which of them an experiment has, its configuration says (``reports``).
Imports neither FLARE nor torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_CELLS = 1 << 16
Count = Annotated[int, Field(ge=0, le=1 << 31)]
Counts = Annotated[list[Count], Field(max_length=MOST_CELLS)]
"""Cells of one table of counts, row by row; the configuration says its shape."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class ReportError(ValueError):
    """Counts that the configuration does not have; the message names them."""


class _Report(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ValidationCounts(_Report):
    """How a round's incoming model does on a site's validation patients."""

    patients: Count = Field(description="patients behind the counts; 0 where there are too few of them")
    confusion: Counts | None = Field(default=None, description="classification: true classes by predicted ones")
    scores: Annotated[list[Counts], Field(max_length=64)] | None = Field(
        default=None, description="classification, for each class: bags that are not and that are of it, by its score"
    )
    pairs: Counts | None = Field(
        default=None,
        description="pairs of patients that are concordant, discordant, and tied: survival, in risk; classification "
        "with a least count, for each class, in its score",
    )


class Validation(_Report):
    """How good a round's incoming model is, from the sum of the sites' counts; None where they do not tell."""

    patients: Annotated[int, Field(ge=0)] = Field(description="patients in the counts, of all sites together")
    auc: Share | None = Field(
        default=None,
        description="area under the ROC curve, macro one-vs-rest; with a least count, over the pairs within a site",
    )
    balanced_accuracy: Share | None = Field(default=None, description="mean recall over the classes")
    c_index: Share | None = Field(default=None, description="Harrell's concordance, over the pairs within a site")
    best: bool = Field(description="whether no earlier round's model was as good")

    @property
    def value(self) -> float | None:
        """What models are chosen by."""
        return self.c_index if self.c_index is not None else self.auc


def check_table(counts: list[int] | None, cells: int, least: int, what: str) -> None:
    """Accept a table of ``cells`` counts, each 0 or at least ``least``; None alone where ``cells`` is 0.

    Raises:
        ReportError: naming the table.
    """
    if (None if counts is None else len(counts)) != (cells or None):
        found = "none" if counts is None else f"a table of {len(counts)}"
        raise ReportError(f"{what}: expected {cells or 'no'} counts, found {found}")
    if any(0 < count < least for count in counts or ()):
        raise ReportError(f"{what}: a count below counts.min_cell {least}")
