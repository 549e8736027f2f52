"""What an evaluation reports, as one JSON document. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedad_components.evaluation.scores import METRICS, Intervals, RocCurve, Scores


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Repeats(_Model):
    """The same measurement several times: over folds, or over draws of the labelled images."""

    n: int
    mean: Scores
    sd: dict[str, float | None] = Field(description="metric -> sample standard deviation; None where undefined")

    @classmethod
    def of(cls, scores: Sequence[Scores]) -> Repeats:
        """Mean and deviation (n - 1 in the denominator) of each metric over the repeats where it is defined."""
        mean: dict[str, Any] = {}
        sd: dict[str, float | None] = {}
        for name in METRICS:
            values = [value for score in scores if (value := getattr(score, name)) is not None]
            mean[name] = min(float(np.mean(values)), 1.0) if values else None
            sd[name] = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(n=len(scores), mean=Scores(**mean), sd=sd)


class Detail(_Model):
    """What one test, or the pooled folds of a cross-validation, shows beside its scores."""

    classes: list[str]
    confusion: list[list[int]] = Field(
        description="images, classes in that order: rows are true classes, columns predicted ones"
    )
    roc: dict[str, RocCurve] = Field(description="class -> its curve against the rest")
    intervals: Intervals


class Result(_Model):
    """One figure about the target."""

    name: str = Field(description="protocol, and after a slash its variant: source/AdaBN, few-shot/10")
    transductive: bool = Field(description="whether the unlabelled test images as a whole were used before the test")
    scores: Scores = Field(description="few-shot: the mean over draws")
    n_train: int = Field(description="labelled images that the classifier was fitted on; the mean over folds or draws")
    n_test: int = Field(description="images tested; few-shot: the mean over draws")
    converged: bool = Field(description="whether every fit converged within its iterations")
    detail: Detail | None = Field(None, description="None for few-shot, whose draws test different images")
    folds: Repeats | None = Field(
        None,
        description="source and knn: cross-validation inside the training data sets; target: the folds one by one",
    )
    draws: Repeats | None = Field(None, description="few-shot: the draws of the labelled images")


class Evaluation(_Model):
    """One extractor on one target."""

    sources: dict[str, int] = Field(description="data set that gave training labels -> its images")
    target: str
    n_target: int
    target_units: int = Field(description="patients or groups of the target; its images where none is known")
    image_size: int
    seed: int
    results: list[Result]
    absent: dict[str, str] = Field(description="result that this extractor cannot have -> why")
    notes: list[str] = Field(description="what a reader must know to judge the figures")

    def result(self, name: str) -> Result:
        """The result of that name.

        Raises:
            KeyError: if the evaluation has none.
        """
        return {result.name: result for result in self.results}[name]
