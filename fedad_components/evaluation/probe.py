"""Linear probe: what a linear classifier can read from frozen features. Needs scikit-learn; imports no FLARE."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

MAJORITY = "majority class"
"""Name of the baseline that answers the most frequent class of the training split for every image"""

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class ProbeError(ValueError):
    """Features or labels that no probe can be fitted on; the message names the split and what was expected."""


class ProbeMetrics(BaseModel):
    """Scores on the test split, each between 0 and 1.

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


class ProbeResult(ProbeMetrics):
    """One probe, fitted on the training split and evaluated once on the test split."""

    label: str = Field(description="what was predicted, named for what it is")
    classes: list[str] = Field(description="in the order of the confusion matrix")
    confusion: list[list[int]] = Field(description="images of the test: rows are true classes, columns predicted ones")
    n_train: int
    n_test: int
    l2: float = Field(description="weight of the L2 penalty beside the mean loss")
    converged: bool = Field(description="whether L-BFGS converged within its iterations")
    references: dict[str, ProbeMetrics] = Field(description="what the scores are to be compared with, by name")

    def compared_with(self, name: str, other: ProbeResult) -> ProbeResult:
        """The same result with another probe's scores among its references, e.g. those of an untrained extractor."""
        scores = ProbeMetrics.model_validate(other.model_dump(include=set(ProbeMetrics.model_fields)))
        return self.model_copy(update={"references": {**self.references, name: scores}})


def linear_probe(
    train_x: npt.NDArray,
    train_y: Sequence[str],
    test_x: npt.NDArray,
    test_y: Sequence[str],
    label: str,
    l2: float = 1e-4,
    max_iter: int = 100,
) -> ProbeResult:
    """Fit logistic regression by L-BFGS on the training features and evaluate it once on the test features.

    Features are standardised by the training split's mean and deviation. The objective is the mean cross-entropy plus
    ``l2 / 2 * |w|^2`` (a weight decay of ``l2``; the bias is free), so that ``l2`` means the same for any number of
    images; scikit-learn minimises ``|w|^2 / 2 + C * sum of losses``, hence ``C = 1 / (l2 * n_train)``.

    Args:
        train_x: features ``(n_train, F)``.
        train_y: class of each, at least two classes.
        test_x: features ``(n_test, F)``.
        test_y: class of each; every one occurs in ``train_y``.
        label: what the classes are.
        l2: weight of the penalty, above 0.
        max_iter: iterations of L-BFGS at most.

    Raises:
        ProbeError: if a split is empty, its shapes do not fit, a feature is not finite, or the classes do not fit.
    """
    train_x, test_x = _features(train_x, train_y, "training"), _features(test_x, test_y, "test")
    if train_x.shape[1] != test_x.shape[1]:
        raise ProbeError(f"training features have length {train_x.shape[1]}, test features {test_x.shape[1]}")
    classes = sorted(set(train_y))
    if len(classes) < 2:
        raise ProbeError(f"{label}: the training split has one class only ({classes[0]!r}); a probe needs two or more")
    if unknown := sorted(set(test_y) - set(classes)):
        raise ProbeError(f"{label}: classes of the test split that the training split lacks: {', '.join(unknown)}")
    if l2 <= 0:
        raise ProbeError(f"l2 = {l2}: expected a number above 0")

    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=1.0 / (l2 * len(train_x)), solver="lbfgs", max_iter=max_iter)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(train_x, np.asarray(train_y))
    converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)

    predicted = model.predict(test_x)
    majority = max(classes, key=list(train_y).count)
    constant = np.tile(np.asarray(classes) == majority, (len(test_x), 1)).astype(float)
    return ProbeResult(
        **_scores(test_y, predicted, model.predict_proba(test_x), classes).model_dump(),
        label=label,
        classes=classes,
        confusion=confusion_matrix(test_y, predicted, labels=classes).tolist(),
        n_train=len(train_x),
        n_test=len(test_x),
        l2=l2,
        converged=converged,
        references={MAJORITY: _scores(test_y, [majority] * len(test_x), constant, classes)},
    )


def _features(x: npt.NDArray, y: Sequence[str], split: str) -> npt.NDArray[np.float64]:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or len(x) != len(y):
        raise ProbeError(f"{split} split: expected features (n, F) and n labels, got {x.shape} and {len(y)} labels")
    if len(x) == 0:
        raise ProbeError(f"{split} split: it has no images")
    if not np.isfinite(x).all():
        raise ProbeError(f"{split} split: features that are not finite; was the extractor trained to NaN?")
    return x


def _scores(
    true: Sequence[str], predicted: Sequence[str], probability: npt.NDArray, classes: list[str]
) -> ProbeMetrics:
    precision, recall, f1, _ = precision_recall_fscore_support(true, predicted, average="macro", zero_division=0)
    occurring = sorted(set(true))
    return ProbeMetrics(
        f1=f1,
        precision=precision,
        recall=recall,
        accuracy=accuracy_score(true, predicted),
        balanced_accuracy=recall_score(true, predicted, labels=occurring, average="macro", zero_division=0),
        auc=_auc(true, probability, classes) if occurring == classes else None,
    )


def _auc(true: Sequence[str], probability: npt.NDArray, classes: list[str]) -> float:
    """Macro average over classes of one against the rest; ``probability`` is ``(n, len(classes))``."""
    one_hot = np.asarray(true)[:, None] == np.asarray(classes)[None, :]
    return float(roc_auc_score(one_hot, probability, average="macro"))
