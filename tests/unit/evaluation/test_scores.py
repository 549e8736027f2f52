"""Resampled scores against scikit-learn on the drawn-out resamples; intervals against what theory says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from fedad_components.evaluation.scores import METRICS, bootstrap, confusion_of, resampled_scores, roc_of, scores_of

CLASSES = ["a", "b", "c"]


def predictions(n: int = 60, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Class c is rare, and probabilities have ties."""
    generator = np.random.default_rng(seed)
    true = generator.choice(CLASSES, n, p=[0.5, 0.44, 0.06]).tolist()
    logits = generator.normal(size=(n, 3)) + np.array([[1.2 * (name == kind) for kind in CLASSES] for name in true])
    probability = np.round(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), 1)
    return true, probability


def test_resampled_scores_are_those_of_the_images_drawn_out() -> None:
    true, probability = predictions()
    generator = np.random.default_rng(1)
    rows = generator.integers(0, len(true), (40, len(true)))
    weights = np.stack([np.bincount(drawn, minlength=len(true)) for drawn in rows])
    got = resampled_scores(true, probability, CLASSES, weights)
    undefined = 0
    for drawn, found in zip(rows, got, strict=True):
        expected = scores_of([true[row] for row in drawn], probability[drawn], CLASSES)
        if expected.auc is None:
            undefined += 1
            assert np.isnan(found[-1])
        values = [getattr(expected, name) for name in METRICS if getattr(expected, name) is not None]
        np.testing.assert_allclose(found[: len(values)], values, atol=1e-12)
    assert undefined, "no resample without the rare class: the test would not see how it is treated"


def test_interval_of_accuracy_is_the_binomial_one() -> None:
    """Resampling n images with m right ones draws the accuracy from Binomial(n, m / n) / n."""
    n, right = 80, 60
    true = ["a"] * right + ["b"] * (n - right)
    probability = np.tile([0.9, 0.1], (n, 1))
    found = bootstrap(true, probability, ["a", "b"], np.arange(n), seed=0, resamples=20_000)
    low, high = binom.ppf([0.025, 0.975], n, right / n) / n
    accuracy = found.of["accuracy"]
    assert accuracy is not None
    assert (accuracy.low, accuracy.high) == (pytest.approx(low, abs=1 / n), pytest.approx(high, abs=1 / n))
    assert (found.units, found.grouped) == (n, False)


def test_patients_are_drawn_whole() -> None:
    """Eight images of each of ten patients, all right or all wrong: as wide as ten images, not as eighty."""
    units = np.repeat(np.arange(10), 8)
    true = np.where(units < 7, "a", "b").tolist()
    probability = np.tile([0.9, 0.1], (80, 1))
    found = bootstrap(true, probability, ["a", "b"], units, seed=0, resamples=20_000)
    accuracy = found.of["accuracy"]
    assert accuracy is not None
    expected = binom.ppf([0.025, 0.975], 10, 0.7) / 10
    assert [accuracy.low, accuracy.high] == pytest.approx(expected.tolist(), abs=0.05)
    assert (found.units, found.grouped) == (10, True)


def test_the_seed_decides_and_chunks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    true, probability = predictions()
    whole = bootstrap(true, probability, CLASSES, np.arange(60), seed=3)
    assert bootstrap(true, probability, CLASSES, np.arange(60), seed=4) != whole
    monkeypatch.setattr("fedad_components.evaluation.scores._CHUNK", 60 * 7)
    assert bootstrap(true, probability, CLASSES, np.arange(60), seed=3) == whole


def test_an_absent_class_leaves_auc_and_its_interval_undefined() -> None:
    true, probability = ["a", "b"] * 10, np.tile([0.5, 0.3, 0.2], (20, 1))
    assert scores_of(true, probability, CLASSES).auc is None
    intervals = bootstrap(true, probability, CLASSES, np.arange(20), seed=0)
    assert intervals.of["auc"] is None
    assert intervals.of["f1"] is not None


def test_roc_encloses_the_area_and_confusion_counts() -> None:
    true, probability = predictions()
    curves = roc_of(true, probability, CLASSES)
    for column, (name, curve) in enumerate(curves.items()):
        area = np.trapezoid if hasattr(np, "trapezoid") else np.trapz
        expected = roc_auc_score([label == name for label in true], probability[:, column])
        assert area(curve.true_positive_rate, curve.false_positive_rate) == pytest.approx(expected)
    assert list(curves) == CLASSES
    confusion = np.array(confusion_of(true, probability, CLASSES))
    assert confusion.sum(axis=1).tolist() == [true.count(name) for name in CLASSES]
    assert np.trace(confusion) / len(true) == pytest.approx(scores_of(true, probability, CLASSES).accuracy)
