"""Linear probe: what a linear classifier can read from frozen features. Needs scikit-learn; imports no FLARE."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedad_components.evaluation.scores import Scores, confusion_of, scores_of

MAJORITY = "majority class"
"""Name of the baseline that answers the most frequent class of the training split for every image"""
L2 = 1e-4
MAX_ITER = 100


class ProbeError(ValueError):
    """Features or labels that no probe can be fitted on; the message names the split and what was expected."""


class ProbeResult(Scores):
    """One probe, fitted on the training split and evaluated once on the test split."""

    label: str = Field(description="what was predicted, named for what it is")
    classes: list[str] = Field(description="in the order of the confusion matrix")
    confusion: list[list[int]] = Field(description="images of the test: rows are true classes, columns predicted ones")
    n_train: int
    n_test: int
    l2: float = Field(description="weight of the L2 penalty beside the mean loss")
    converged: bool = Field(description="whether L-BFGS converged within its iterations")
    references: dict[str, Scores] = Field(description="what the scores are to be compared with, by name")

    def compared_with(self, name: str, other: ProbeResult) -> ProbeResult:
        """The same result with another probe's scores among its references, e.g. those of an untrained extractor."""
        scores = Scores.model_validate(other.model_dump(include=set(Scores.model_fields)))
        return self.model_copy(update={"references": {**self.references, name: scores}})


class Fitted(NamedTuple):
    """A classifier of scikit-learn's, and whether its optimiser converged."""

    model: Any
    converged: bool = True

    def probability(self, x: npt.NDArray, classes: Sequence[str]) -> npt.NDArray[np.float64]:
        """Probabilities ``(n, len(classes))``; 0 for a class that the training split lacked."""
        found = np.zeros((len(x), len(classes)))
        found[:, [list(classes).index(name) for name in self.model.classes_]] = self.model.predict_proba(x)
        return found


def fit_logistic(x: npt.NDArray, y: Sequence[str], l2: float = L2, max_iter: int = MAX_ITER) -> Fitted:
    """Logistic regression by L-BFGS on features ``(n, F)``, standardised by their own mean and deviation.

    The objective is the mean cross-entropy plus ``l2 / 2 * |w|^2`` (a weight decay of ``l2``; the bias is free), so
    that ``l2`` means the same for any number of images; scikit-learn minimises ``|w|^2 / 2 + C * sum of losses``, hence
    ``C = 1 / (l2 * n)``.

    Raises:
        ProbeError: if there is one class only, or ``l2`` is not above 0.
    """
    if len(set(y)) < 2:
        raise ProbeError(f"the training split has one class only ({y[0]!r}); a probe needs two or more")
    if l2 <= 0:
        raise ProbeError(f"l2 = {l2}: expected a number above 0")
    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=1.0 / (l2 * len(x)), solver="lbfgs", max_iter=max_iter)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, np.asarray(y))
    return Fitted(model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught))


def linear_probe(
    train_x: npt.NDArray,
    train_y: Sequence[str],
    test_x: npt.NDArray,
    test_y: Sequence[str],
    label: str,
    l2: float = L2,
    max_iter: int = MAX_ITER,
) -> ProbeResult:
    """Fit logistic regression (:func:`fit_logistic`) on the training features, evaluate it once on the test features.

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
    train_x, test_x = check_features(train_x, train_y, "training"), check_features(test_x, test_y, "test")
    if train_x.shape[1] != test_x.shape[1]:
        raise ProbeError(f"training features have length {train_x.shape[1]}, test features {test_x.shape[1]}")
    classes = sorted(set(train_y))
    try:
        fitted = fit_logistic(train_x, train_y, l2, max_iter)
    except ProbeError as error:
        raise ProbeError(f"{label}: {error}") from None
    if unknown := sorted(set(test_y) - set(classes)):
        raise ProbeError(f"{label}: classes of the test split that the training split lacks: {', '.join(unknown)}")
    probability = fitted.probability(test_x, classes)
    majority = max(classes, key=list(train_y).count)
    constant = np.tile(np.asarray(classes) == majority, (len(test_x), 1)).astype(float)
    return ProbeResult(
        **scores_of(test_y, probability, classes).model_dump(),
        label=label,
        classes=classes,
        confusion=confusion_of(test_y, probability, classes),
        n_train=len(train_x),
        n_test=len(test_x),
        l2=l2,
        converged=fitted.converged,
        references={MAJORITY: scores_of(test_y, constant, classes)},
    )


def check_features(x: npt.NDArray, y: Sequence[str], split: str) -> npt.NDArray[np.float64]:
    """``x`` as float64 ``(n, F)``.

    Raises:
        ProbeError: if it is empty, has another shape or another number of labels, or is not finite.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or len(x) != len(y):
        raise ProbeError(f"{split} split: expected features (n, F) and n labels, got {x.shape} and {len(y)} labels")
    if len(x) == 0:
        raise ProbeError(f"{split} split: it has no images")
    if not np.isfinite(x).all():
        raise ProbeError(f"{split} split: features that are not finite; was the extractor trained to NaN?")
    return x
