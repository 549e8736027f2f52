"""Classification: runs of patients or of counts, their scores and ROC curves. Needs scikit-learn; no FLARE."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score, roc_curve

from fedad_components.mil.counts import Floats, Grid
from fedad_components.mil.evaluate import ALL_SITES, EvaluationError, Run
from fedad_components.mil.federated_metrics import ClassTables, Confusion, ScoreHistogram
from fedad_components.mil.survival_metrics import PairCounts


class Roc(NamedTuple):
    """One class against the rest: corners from (0, 0) to (1, 1), and the area under them."""

    false_positive_rate: Floats
    true_positive_rate: Floats
    auc: float


@dataclass(frozen=True, eq=False)
class ClassRun(Run):
    """Test patients whose class a model was to tell; classes are numbers from 0."""

    @property
    @abstractmethod
    def confusion(self) -> Confusion:
        """True classes in rows, predicted ones in columns."""

    @abstractmethod
    def rocs(self) -> list[Roc | None]:
        """Of each class against the rest; None where it does not occur, or is alone."""

    def scores(self) -> dict[str, float | None]:
        areas = [roc.auc for roc in self.rocs() if roc is not None]
        confusion = self.confusion
        return {
            "AUC": sum(areas) / len(areas) if areas and len(areas) == len(confusion.counts) else None,
            "balanced accuracy": confusion.balanced_accuracy,
            "error": confusion.error,
            "κ": confusion.kappa,
        }


@dataclass(frozen=True, eq=False)
class Classified(ClassRun):
    """Patients with their probabilities.

    Attributes:
        true: classes ``(n,)``, n > 0.
        probability: ``(n, K)``.

    Raises:
        EvaluationError: if they are not of that form.
    """

    true: npt.NDArray[np.int64]
    probability: Floats

    def __post_init__(self) -> None:
        n = len(self.true)
        if not n or self.probability.ndim != 2 or len(self.probability) != n or self.probability.shape[1] < 2:
            raise EvaluationError(
                f"{self.where}: {self.true.shape} classes, {self.probability.shape} probabilities: expected (n,) and "
                f"(n, K) of two classes or more, with a patient or more"
            )
        if not np.isfinite(self.probability).all() or not np.isin(self.true, range(self.probability.shape[1])).all():
            raise EvaluationError(
                f"{self.where}: a probability is not finite, or a class is none of 0 to {self.probability.shape[1] - 1}"
            )

    @property
    def patients(self) -> int:
        return len(self.true)

    @property
    def confusion(self) -> Confusion:
        return Confusion.of(self.true, self.probability.argmax(axis=1), self.probability.shape[1])

    def rocs(self) -> list[Roc | None]:
        found: list[Roc | None] = []
        for number, column in enumerate(self.probability.T):
            positive = self.true == number
            if positive.all() or not positive.any():
                found.append(None)
                continue
            false_rate, true_rate, _ = roc_curve(positive, column)
            found.append(Roc(false_rate, true_rate, float(roc_auc_score(positive, column))))
        return found

    def joined(self, other: Classified) -> Classified:
        return replace(
            self,
            site=ALL_SITES,
            true=np.concatenate([self.true, other.true]),
            probability=np.concatenate([self.probability, other.probability]),
        )


@dataclass(frozen=True, eq=False)
class ClassCounts(ClassRun):
    """What sites told of their patients.

    Attributes:
        counted: true classes by predicted ones.
        histograms: of each class, its scores.
        pairs: of each class, pairs of patients within a site, exact; None: AUC is taken from the histograms. In those
            of a site that may not tell small counts, few patients have moved far: curves are drawn of them, no more.
    """

    counted: Confusion
    histograms: tuple[ScoreHistogram, ...]
    pairs: tuple[PairCounts, ...] | None = None

    binned: ClassVar[bool] = True

    @classmethod
    def of(cls, run: Classified, grid: Grid, least: int) -> ClassCounts:
        """What a site may tell of its patients: nothing of those of a class with fewer than ``least``.

        Args:
            grid: of probabilities, the same at every site.
        """
        confusion, histograms, pairs = ClassTables.of(run.true, run.probability, grid, least)
        return cls(run.method, run.site, run.seed, confusion, histograms, pairs if least > 1 else None)

    @property
    def patients(self) -> int:
        return int(self.counted.counts.sum())

    @property
    def confusion(self) -> Confusion:
        return self.counted

    def rocs(self) -> list[Roc | None]:
        curves = [_roc_of_histogram(histogram) for histogram in self.histograms]
        if self.pairs is None:
            return curves
        areas = [pairs.c_index for pairs in self.pairs]
        return [
            curve._replace(auc=area) if curve is not None and area is not None else None
            for curve, area in zip(curves, areas, strict=True)
        ]

    def scores(self) -> dict[str, float | None]:
        name = "AUC" if self.pairs is None else "AUC within sites"
        return {name if score == "AUC" else score: value for score, value in super().scores().items()}

    def joined(self, other: ClassCounts) -> ClassCounts:
        if (self.pairs is None) != (other.pairs is None):
            raise ValueError("one tells all counts, the other none below a least one: expected the same at every site")
        pairs = None
        if self.pairs is not None and other.pairs is not None:
            pairs = tuple(a + b for a, b in zip(self.pairs, other.pairs, strict=True))
        histograms = tuple(a + b for a, b in zip(self.histograms, other.histograms, strict=True))
        return replace(self, site=ALL_SITES, counted=self.counted + other.counted, histograms=histograms, pairs=pairs)


def _roc_of_histogram(histogram: ScoreHistogram) -> Roc | None:
    """Corners at the lower edges of the cells; in between, patients of a cell count as tied."""
    area = histogram.auc
    if area is None:
        return None
    above = np.flip(np.cumsum(np.flip(histogram.counts, axis=1), axis=1), axis=1)
    false_rate, true_rate = np.flip(np.pad(above, ((0, 0), (0, 1))), axis=1) / histogram.counts.sum(axis=1)[:, None]
    return Roc(false_rate, true_rate, area)
