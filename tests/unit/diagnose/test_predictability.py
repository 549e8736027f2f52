"""Out-of-fold probes and regressions, against what is known of their data."""

from __future__ import annotations

import numpy as np
import pytest

from fedad_components.evaluation.images import LabelledFeatures
from fedad_components.evaluation.predictability import balanced_accuracy, chance_deviation, explained


def features(x: np.ndarray, labels: list[str], units: np.ndarray | None = None) -> LabelledFeatures:
    return LabelledFeatures("test", x.astype(np.float64), labels, np.arange(len(x)) if units is None else units)


def test_chance_and_its_deviation_are_those_of_guesses() -> None:
    labels = ["a"] * 30 + ["b"] * 60 + ["c"] * 10
    generator = np.random.default_rng(0)
    y = np.array([ord(name) - ord("a") for name in labels])
    guesses = generator.integers(0, 3, size=(4000, 100))
    scores = np.mean([(guesses[:, y == c] == c).mean(axis=1) for c in range(3)], axis=0)
    assert scores.mean() == pytest.approx(1 / 3, abs=0.01)
    assert chance_deviation(labels) == pytest.approx(scores.std(), rel=0.05)


def test_a_label_is_found_where_it_is_and_only_there() -> None:
    generator = np.random.default_rng(0)
    labels = ["a", "b"] * 100
    noise = generator.normal(size=(200, 4))
    told = noise + 5 * np.array([[name == "a"] for name in labels])
    assert balanced_accuracy(features(told, labels), 0) > 0.97
    assert balanced_accuracy(features(noise, labels), 0) == pytest.approx(0.5, abs=3 * chance_deviation(labels))


def test_a_patients_images_are_not_on_both_sides() -> None:
    """Each patient has a vector of its own that says nothing of the class: known patients make it look otherwise."""
    generator = np.random.default_rng(0)
    patients = np.repeat(np.arange(40), 10)
    labels = [str(patient % 2) for patient in patients]
    x = generator.normal(size=(40, 30))[patients]
    assert balanced_accuracy(features(x, labels), 0) > 0.9
    assert balanced_accuracy(features(x, labels, patients), 0) < 0.75


def test_explained_variance_of_a_known_mixture() -> None:
    """A target that is linear in x plus noise of equal variance has R^2 1/2; one without x has 0."""
    generator = np.random.default_rng(0)
    x, noise = generator.normal(size=(1000, 3)), generator.normal(size=(1000, 2))
    half = x[:, :2] + noise
    full, of_half, none = explained(features(x, ["a"] * 1000), [x @ np.ones((3, 1)), half, noise], 0)
    assert full == pytest.approx(1, abs=1e-3)
    assert of_half == pytest.approx(0.5, abs=0.05)
    assert none == pytest.approx(0, abs=0.03)
