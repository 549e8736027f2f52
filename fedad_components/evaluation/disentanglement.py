"""Closed forms on the unit sphere: cosines of z_s, z_d and z_g, alignment, uniformity. Imports numpy and scipy only.

Every z is ``(n, D)``, one row an image, two images or more; the direction of a row is what counts, not its length.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import hyp0f1

from fedad_components.fedsd.losses import DEAD_NORM, EPS

Cosine = Annotated[float, Field(ge=-1.0 - 1e-6, le=1.0 + 1e-6)]
UNIFORMITY_T = 2.0
"""Wang & Isola's t."""


class PairedCosine(BaseModel):
    """cos(u_i, v_i) over images i, and what the pairing adds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: Cosine
    mean_square: float = Field(description="of random directions: 1 / D")
    shuffled: Cosine = Field(
        description="mean of cos(u_i, v_j), j another image: where it equals the mean, the two halves agree on a "
        "common direction and say nothing to each other about the image"
    )


def directions(z: npt.NDArray) -> npt.NDArray[np.float64]:
    """``(n, D)`` with rows of length 1; norms are at least 1e-8, as in the loss."""
    z = np.asarray(z, dtype=np.float64)
    return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), EPS)


def dead(z: npt.NDArray) -> npt.NDArray[np.bool_]:
    """``(n,)``: rows too short to have a direction, by the loss's own bound of 1e-6."""
    return np.linalg.norm(np.asarray(z, dtype=np.float64), axis=1) < DEAD_NORM


def mean_pairwise_cosine(z: npt.NDArray) -> float:
    """Mean of cos(z_i, z_j) over i != j; 1: all images in one direction, 0: as random directions.

    From |sum u|^2 = n + sum over i != j of u_i u_j, so that no ``(n, n)`` matrix is needed.
    """
    u = directions(z)
    return _clipped((np.square(u.sum(axis=0)).sum() - np.square(u).sum()) / (len(u) * (len(u) - 1)))


def paired_cosine(u: npt.NDArray, v: npt.NDArray) -> PairedCosine:
    """Cosines of two vectors of each image, ``(n, D)`` both, beside those of mismatched images."""
    u, v = directions(u), directions(v)
    cosines = (u * v).sum(axis=1)
    mismatched = (u.sum(axis=0) @ v.sum(axis=0) - cosines.sum()) / (len(u) * (len(u) - 1))
    return PairedCosine(
        mean=_clipped(cosines.mean()), mean_square=float(np.square(cosines).mean()), shuffled=_clipped(mismatched)
    )


def alignment(a: npt.NDArray, b: npt.NDArray) -> float:
    """E |u_a - u_b|^2 over an image's two views, in [0, 4] (Wang & Isola 2020, Eq. 2 with alpha = 2); 0 is best."""
    return float(np.square(directions(a) - directions(b)).sum(axis=1).mean())


def uniformity(z: npt.NDArray) -> float:
    """ln E exp(-2 |u_i - u_j|^2) over i != j, in [-8, 0] (Wang & Isola 2020, Eq. 4, without the i = j); low is best."""
    u = directions(z)
    upper = np.triu_indices(len(u), k=1)
    return float(np.log(np.exp(-UNIFORMITY_T * (2 - 2 * (u @ u.T)[upper])).mean()))


def uniformity_of_the_sphere(dimension: int) -> float:
    """:func:`uniformity` of the uniform distribution on the sphere in R^D, the lowest there is: no z spreads more.

    E exp(2 t cos) of a random direction is 0F1(; D / 2; t^2), so it is -2 t + ln 0F1(; D / 2; t^2).
    """
    return -2 * UNIFORMITY_T + math.log(hyp0f1(dimension / 2, UNIFORMITY_T**2))


def _clipped(cosine: float) -> float:
    return float(np.clip(cosine, -1, 1))
