"""How good predictions are: scores, their bootstrap intervals, confusion and ROC. Needs scikit-learn; no FLARE.

Predictions are given as probabilities ``(n, K)`` over ``classes``; the predicted class is the most probable one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from fedad_components.fedsd.seeds import stream_seed

Share = Annotated[float, Field(ge=0.0, le=1.0)]

RESAMPLES = 1000
LEVEL = 0.95
_CHUNK = 2_000_000
"""Resampled images held in memory at once."""


class Scores(BaseModel):
    """Scores on a test split, each between 0 and 1.

    Macro averages weigh every class alike, over the classes that occur in the test's labels or predictions; a class
    that is never predicted has precision 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    f1: Share = Field(description="macro F1")
    precision: Share = Field(description="macro precision")
    recall: Share = Field(description="macro recall")
    accuracy: Share
    balanced_accuracy: Share = Field(description="mean recall over the classes of the test split")
    auc: Share | None = Field(
        description="area under the ROC curve, macro average of one class against the rest; "
        "None where a class does not occur in the test split"
    )


METRICS = tuple(Scores.model_fields)


class Interval(BaseModel):
    """A percentile interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: Share
    high: Share


class Intervals(BaseModel):
    """Percentile bootstrap: what another draw of test patients would have given, the classifier being the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Share = LEVEL
    resamples: int
    units: int = Field(description="patients, slides or other groups that were resampled; images where none is known")
    grouped: bool = Field(description="whether a unit holds more than one image")
    of: dict[str, Interval | None] = Field(description="metric -> interval; None where it is never defined")


class RocCurve(BaseModel):
    """One class against the rest: points from (0, 0) to (1, 1), corners only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    false_positive_rate: list[float]
    true_positive_rate: list[float]


def scores_of(true: Sequence[str], probability: npt.NDArray, classes: Sequence[str]) -> Scores:
    """Scores of probabilities ``(n, K)`` against the ``n`` true classes, each one of the ``K`` sorted ``classes``."""
    predicted = predicted_classes(probability, classes)
    precision, recall, f1, _ = precision_recall_fscore_support(true, predicted, average="macro", zero_division=0)
    occurring = sorted(set(true))
    auc = None
    if occurring == list(classes):
        auc = float(roc_auc_score(_one_hot(true, classes), probability, average="macro"))
    return Scores(
        f1=f1,
        precision=precision,
        recall=recall,
        accuracy=accuracy_score(true, predicted),
        balanced_accuracy=recall_score(true, predicted, labels=occurring, average="macro", zero_division=0),
        auc=auc,
    )


def predicted_classes(probability: npt.NDArray, classes: Sequence[str]) -> npt.NDArray:
    """The most probable class of each row."""
    return np.asarray(classes)[probability.argmax(axis=1)]


def confusion_of(true: Sequence[str], probability: npt.NDArray, classes: Sequence[str]) -> list[list[int]]:
    """Counts ``(K, K)``: rows are true classes, columns predicted ones."""
    return confusion_matrix(true, predicted_classes(probability, classes), labels=list(classes)).tolist()


def roc_of(true: Sequence[str], probability: npt.NDArray, classes: Sequence[str]) -> dict[str, RocCurve]:
    """The ROC curve of each class that occurs, and is not alone, in the test."""
    curves = {}
    for name, positive, column in zip(classes, _one_hot(true, classes).T, probability.T, strict=True):
        if 0 < positive.sum() < len(positive):
            false_rate, true_rate, _ = roc_curve(positive, column)
            curves[name] = RocCurve(false_positive_rate=false_rate.tolist(), true_positive_rate=true_rate.tolist())
    return curves


def bootstrap(
    true: Sequence[str],
    probability: npt.NDArray,
    classes: Sequence[str],
    units: npt.NDArray[np.intp],
    seed: int,
    resamples: int = RESAMPLES,
) -> Intervals:
    """Percentile intervals of every score from whole units drawn with replacement (Efron 1979; the cluster bootstrap).

    A score that a resample leaves undefined (the AUC where a class is absent) is left out of its percentiles.

    Args:
        true, probability, classes: as :func:`scores_of`.
        units: ``(n,)``, the number of each image's patient or group, from 0.
        seed: of the draws.
        resamples: how many.
    """
    generator = np.random.default_rng(stream_seed(seed, "bootstrap"))
    count = int(units.max()) + 1
    rows = max(1, _CHUNK // len(units))
    drawn = [
        resampled_scores(true, probability, classes, generator.multinomial(count, [1 / count] * count, size)[:, units])
        for size in np.diff([*range(0, resamples, rows), resamples])
    ]
    values = np.concatenate(drawn)
    edges = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    found: dict[str, Interval | None] = {}
    for name, column in zip(METRICS, values.T, strict=True):
        defined = column[~np.isnan(column)]
        found[name] = None
        if len(defined):
            low, high = np.clip(np.quantile(defined, edges), 0.0, 1.0)
            found[name] = Interval(low=low, high=high)
    return Intervals(resamples=resamples, units=count, grouped=count < len(units), of=found)


def resampled_scores(
    true: Sequence[str], probability: npt.NDArray, classes: Sequence[str], weights: npt.NDArray
) -> npt.NDArray[np.float64]:
    """:func:`scores_of` of many resamples at once, without drawing the images out.

    Args:
        true, probability, classes: as :func:`scores_of`.
        weights: ``(B, n)``: how often each image is in each resample.

    Returns:
        ``(B, 6)`` in the order of ``METRICS``; NaN where the AUC is undefined.
    """
    one_hot = _one_hot(true, classes)
    called = np.eye(len(classes))[probability.argmax(axis=1)]
    weights = weights.astype(np.float64)
    confusion = np.einsum("bn,nt,np->btp", weights, one_hot.astype(np.float64), called, optimize=True)
    hits = np.diagonal(confusion, axis1=1, axis2=2)
    n_true, n_called = confusion.sum(axis=2), confusion.sum(axis=1)
    occurs = (n_true + n_called > 0).sum(axis=1)
    recalls = hits / np.maximum(n_true, 1)
    areas = [
        _weighted_auc(weights, positive, column) for positive, column in zip(one_hot.T, probability.T, strict=True)
    ]
    return np.stack(
        [
            (2 * hits / np.maximum(n_true + n_called, 1)).sum(axis=1) / occurs,
            (hits / np.maximum(n_called, 1)).sum(axis=1) / occurs,
            recalls.sum(axis=1) / occurs,
            hits.sum(axis=1) / weights.sum(axis=1),
            recalls.sum(axis=1) / (n_true > 0).sum(axis=1),
            np.mean(areas, axis=0),
        ],
        axis=1,
    )


def _weighted_auc(
    weights: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_], score: npt.NDArray
) -> npt.NDArray[np.float64]:
    """Mann-Whitney: weight of the pairs with the positive above, ties half; ``(B,)``, NaN without both kinds."""
    order = np.argsort(score, kind="stable")
    _, starts = np.unique(score[order], return_index=True)
    weights, positive = weights[:, order], positive[order]
    above = np.add.reduceat(weights * positive, starts, axis=1)
    below = np.add.reduceat(weights * ~positive, starts, axis=1)
    pairs = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    possible = above.sum(axis=1) * below.sum(axis=1)
    return np.divide(pairs, possible, out=np.full(len(weights), np.nan), where=possible > 0)


def _one_hot(true: Sequence[str], classes: Sequence[str]) -> npt.NDArray[np.bool_]:
    return np.asarray(true)[:, None] == np.asarray(classes)[None, :]
