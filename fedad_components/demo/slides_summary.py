"""``summary.json`` of ``fedad demo --job histofl``. Imports no FLARE."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from fedad_components.demo.summary import JobSummary
from fedad_components.reports import Validation


class PlantedSlide(BaseModel):
    """Where the model looks on a test slide with planted nuclei."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: str
    slide: str = Field(description="pseudonym")
    patches: int
    planted: int = Field(description="patches that lie in a planted ellipse by half or more")
    percentile_planted: float = Field(description="mean percentile of their attention on the slide")
    percentile_others: float
    auc: float = Field(description="chance that a planted patch is attended more than another one")


class SlidesSummary(JobSummary):
    """One demo of HistoFL."""

    labels: str = Field(description="what the labels are")
    slides: dict[str, int] = Field(description="site -> slides with features")
    patches: dict[str, int] = Field(description="site -> patches of all its slides")
    encoder_sha256: str
    validation: list[Validation | None] = Field(description="per round: its incoming model on all validation patients")
    best_round: int | None = Field(description="whose incoming model is the result; None: no round was validated")
    stopped_early: bool
    test: dict[str, dict[str, dict[str, float | None]]] = Field(
        description="method -> site, or all sites -> score of the test patients, from what the sites told"
    )
    planted: list[PlantedSlide] = Field(description="the test slides with planted nuclei, of all sites")
