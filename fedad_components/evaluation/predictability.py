"""What can be read from vectors, out of fold: a class by a linear probe, numbers by ridge regression. No FLARE."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedad_components.evaluation.folds import folds
from fedad_components.evaluation.images import LabelledFeatures
from fedad_components.evaluation.probe import fit_logistic

FOLDS = 5
PENALTIES = np.logspace(-1, 5, 7)
"""Ridge penalties on standardised features; leave-one-out on the training folds chooses, for each target its own."""


def balanced_accuracy(data: LabelledFeatures, seed: int) -> float:
    """Mean recall over the classes of the linear probe, each image predicted by the fold that it took no part in.

    Raises:
        ProbeError: if the data cannot be split, or a fold leaves one class to train on.
    """
    true, predicted = [], []
    for train, test in folds(data, FOLDS, seed, "diagnose"):
        fitted = fit_logistic(data.x[train], [data.labels[row] for row in train])
        predicted += fitted.model.predict(data.x[test]).tolist()
        true += [data.labels[row] for row in test]
    return float(recall_score(true, predicted, labels=sorted(set(true)), average="macro", zero_division=0))


def chance_deviation(labels: Sequence[str]) -> float:
    """Standard deviation of the balanced accuracy of uniform guesses: a result within two of chance is chance.

    Each recall is a binomial share with p = 1 / C over n_c images: sqrt(sum_c p (1 - p) / n_c) / C.
    """
    counts = Counter(labels).values()
    p = 1 / len(counts)
    return math.sqrt(sum(p * (1 - p) / count for count in counts)) / len(counts)


def explained(data: LabelledFeatures, targets: Sequence[npt.NDArray], seed: int) -> list[float]:
    """R^2 of ridge regression from the features to each target ``(n, E)``, on images out of the fold; the null is 0.

    Weighted by variance over the target's columns, so that it is the share of their variance about the mean.

    Raises:
        ProbeError: if the data cannot be split.
    """
    together = np.concatenate(targets, axis=1).astype(np.float64)
    predicted = np.empty_like(together)
    for train, test in folds(data, FOLDS, seed, "diagnose"):
        ridge = make_pipeline(StandardScaler(), RidgeCV(PENALTIES, alpha_per_target=True))
        predicted[test] = ridge.fit(data.x[train], together[train]).predict(data.x[test])
    columns = np.split(np.arange(together.shape[1]), np.cumsum([target.shape[1] for target in targets])[:-1])
    return [
        float(r2_score(together[:, these], predicted[:, these], multioutput="variance_weighted")) for these in columns
    ]
