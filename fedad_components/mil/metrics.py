"""Classification of bags at one place: AUC, balanced accuracy, error and Cohen's kappa. Needs scikit-learn; no FLARE.

For figures over sites see :mod:`~fedad_components.mil.federated_metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from sklearn.metrics import cohen_kappa_score

from fedad_components.evaluation.scores import Share, predicted_classes, scores_of


class BagScores(BaseModel):
    """Scores of bags, by probability and by the most probable class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    auc: Share | None = Field(
        description="area under the ROC curve; more than two classes: macro average of one class against the rest. "
        "None where a class does not occur"
    )
    balanced_accuracy: Share = Field(description="mean recall over the classes that occur")
    error: Share = Field(description="share of bags called wrongly")
    kappa: float | None = Field(ge=-1.0, le=1.0, description="Cohen's; None where chance alone agrees always")


def bag_scores(true: Sequence[str], probability: npt.NDArray, classes: Sequence[str]) -> BagScores:
    """Scores of probabilities ``(n, K)`` against the ``n`` true classes, each one of the ``K`` sorted ``classes``."""
    scores = scores_of(true, probability, classes)
    predicted = predicted_classes(probability, classes)
    one_only = len({*true, *predicted}) == 1
    return BagScores(
        auc=scores.auc,
        balanced_accuracy=scores.balanced_accuracy,
        error=1 - scores.accuracy,
        kappa=None if one_only else float(cohen_kappa_score(true, predicted)),
    )
