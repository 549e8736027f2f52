"""The sphere's closed forms, against slow loops, known configurations and Monte Carlo."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedad_components.evaluation.disentanglement import (
    alignment,
    dead,
    mean_pairwise_cosine,
    paired_cosine,
    uniformity,
    uniformity_of_the_sphere,
)


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    u = generator.normal(size=(7, 5)) + 1
    return u, u + generator.normal(size=(7, 5))


def test_cosines_are_those_of_a_slow_loop(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    u, v = pairs
    two = list(itertools.permutations(range(7), 2))
    assert mean_pairwise_cosine(u) == pytest.approx(np.mean([cosine(u[i], u[j]) for i, j in two]))
    got = paired_cosine(u, v)
    own = [cosine(a, b) for a, b in zip(u, v, strict=True)]
    assert got.mean == pytest.approx(np.mean(own))
    assert got.mean_square == pytest.approx(np.mean(np.square(own)))
    assert got.shuffled == pytest.approx(np.mean([cosine(u[i], v[j]) for i, j in two]))


def test_alignment_and_uniformity_are_those_of_a_slow_loop(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    u, v = pairs
    squared = [2 - 2 * cosine(a, b) for a, b in zip(u, v, strict=True)]
    assert alignment(u, v) == pytest.approx(np.mean(squared))
    kernel = [math.exp(-2 * (2 - 2 * cosine(u[i], u[j]))) for i, j in itertools.permutations(range(7), 2)]
    assert uniformity(u) == pytest.approx(math.log(np.mean(kernel)))


def test_known_configurations() -> None:
    antipodal = np.array([[3.0, 0.0], [-2.0, 0.0]])
    assert uniformity(antipodal) == pytest.approx(-8)
    assert alignment(antipodal[:1], antipodal[1:]) == pytest.approx(4)
    assert mean_pairwise_cosine(antipodal) == pytest.approx(-1)
    same = np.tile([[1.0, 2.0]], (4, 1))
    assert uniformity(same) == pytest.approx(0)
    assert mean_pairwise_cosine(same) == pytest.approx(1)
    assert paired_cosine(same, same).shuffled == pytest.approx(1)


@pytest.mark.parametrize("dimension", [2, 8, 128])
def test_the_floor_is_that_of_random_directions(dimension: int) -> None:
    z = np.random.default_rng(1).normal(size=(1500, dimension))
    assert uniformity(z) == pytest.approx(uniformity_of_the_sphere(dimension), abs=0.02)


def test_dead_is_the_losss_own_bound() -> None:
    assert dead(np.array([[0.0, 0.0], [0.9e-6, 0.0], [1.1e-6, 0.0], [1.0, 0.0]])).tolist() == [True, True, False, False]
