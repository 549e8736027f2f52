"""Counts on public grids: what a site may tell of its patients, and what can be added up. Imports numpy only.

A site counts, every site on the same grid; the sum of the counts is the count of all patients, from which the metrics
follow without a patient having left. Small counts are made large first, by :func:`joined`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LARGEST_BOUND = 1e15
"""Of a grid: no score, risk or time of a patient is beyond it, in whatever unit, and figures can be drawn of it."""
MOST = 2**53
"""Above this, counts are no longer exact in float64, and no federation has so many pairs of patients."""


class CountsError(ValueError):
    """Values or counts that cannot be used; the message says what was expected."""


@dataclass(frozen=True)
class Grid:
    """2^depth equal cells from ``low`` to ``high``, each closed at its lower edge: public, so chosen without the data.

    Raises:
        CountsError: if the bounds are not ascending from at least -1e15 to at most 1e15, or depth is not 0 to 16.
    """

    low: float
    high: float
    depth: int

    def __post_init__(self) -> None:
        if not -LARGEST_BOUND <= self.low < self.high <= LARGEST_BOUND:
            raise CountsError(
                f"grid from {self.low:g} to {self.high:g}: expected finite bounds from -1e15 to 1e15, the lower "
                f"one first"
            )
        if not 0 <= self.depth <= 16:
            raise CountsError(f"grid of depth {self.depth}: expected 0 to 16, for 1 to 65,536 cells")

    @property
    def cells(self) -> int:
        """How many."""
        return 1 << self.depth

    @property
    def width(self) -> float:
        """Of a cell: the grid's resolution."""
        return (self.high - self.low) / self.cells

    @property
    def edges(self) -> Floats:
        """``(cells + 1,)``."""
        return np.linspace(self.low, self.high, self.cells + 1)

    def cell(self, values: npt.ArrayLike, what: str) -> npt.NDArray[np.intp]:
        """The cell of each value ``(n,)``; a value at or above ``high`` belongs to the last one.

        Raises:
            CountsError: if a value is below ``low`` or not a number; ``what`` names the values.
        """
        values = np.asarray(values, dtype=np.float64)
        if bad := int((~(values >= self.low)).sum()):  # so that NaN is bad too
            raise CountsError(f"{what}: {bad} of {values.size} are below {self.low:g} or not a number: correct them")
        return np.minimum(np.searchsorted(self.edges, values, side="right") - 1, self.cells - 1)


@dataclass(frozen=True, eq=False)
class Counts:
    """Integer counts of one site or of several together; a subclass says of what, and gives the shape.

    Attributes:
        counts: int64, 0 or above; the last axes are the cells of the ``grids``.
        grids: public, the same at every site.

    Raises:
        CountsError: if the counts are not of that form.
    """

    counts: Ints
    grids: tuple[Grid, ...] = ()

    leading: ClassVar[tuple[int | None, ...]] = ()
    """Lengths of the axes before the grids'; None where each experiment has its own."""

    def __post_init__(self) -> None:
        name, counts = type(self).__name__, self.counts
        shape = (*self.leading, *(grid.cells for grid in self.grids))
        fits = counts.ndim == len(shape) and all(
            want is None or want == length for want, length in zip(shape, counts.shape, strict=True)
        )
        if not fits or not np.issubdtype(counts.dtype, np.integer):
            raise CountsError(f"{name}: {counts.dtype} {counts.shape}: expected integers of shape {shape}")
        if counts.size and (counts.min() < 0 or counts.max() > MOST):
            raise CountsError(f"{name}: found counts of {counts.min()} to {counts.max()}: expected 0 to 2^53")

    def __add__(self, other: Self) -> Self:
        """The counts of both.

        Raises:
            CountsError: if they are not counts of the same things.
        """
        if type(self) is not type(other) or self.grids != other.grids or self.counts.shape != other.counts.shape:
            raise CountsError(
                f"{self._described()} and {other._described()} cannot be added: expected the same kind, grid and groups"
            )
        return type(self)(self.counts + other.counts, self.grids)

    def as_dict(self) -> dict[str, Any]:
        """Integers, floats and lists only: what travels."""
        return {
            "kind": type(self).__name__,
            "grids": [[grid.low, grid.high, grid.depth] for grid in self.grids],
            "counts": self.counts.tolist(),
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Counts that another party sent, checked.

        Raises:
            CountsError: if they are not what :meth:`as_dict` gives.
        """
        if set(found) != {"kind", "grids", "counts"} or found["kind"] != cls.__name__:
            raise CountsError(f"expected kind {cls.__name__!r} with grids and counts, found {sorted(map(str, found))}")
        try:
            grids = tuple(Grid(float(low), float(high), int(depth)) for low, high, depth in found["grids"])
            counts = np.array(found["counts"])
        except (TypeError, ValueError, OverflowError) as error:
            raise CountsError(f"{cls.__name__}: {error}") from None
        return cls(counts, grids)

    def _described(self) -> str:
        grids = ", ".join(f"{grid.low:g} to {grid.high:g} in {grid.cells}" for grid in self.grids)
        return f"{type(self).__name__} {self.counts.shape} on [{grids}]"


def joined(counts: Ints, least: int) -> Ints:
    """Counts in which no cell holds between 1 and ``least`` - 1, with the same totals where these suffice.

    In each row, from the first cell on, cells are joined until they hold ``least`` together; what is left at the end
    joins the last. The joined count is put into the middle of the cells that it comes from, so that a reader can check
    what is told against the rule, and sees about where it was, but neither where a joined stretch begins nor where it
    ends. A row with a total below ``least`` becomes 0: the site tells nothing about it.

    Args:
        counts: ``(..., cells)``.
        least: the smallest count that may be told; 1 leaves all as it is.

    Raises:
        CountsError: if ``least`` is below 1.
    """
    if least < 1:
        raise CountsError(f"least count: {least}: expected 1 or more")
    rows = counts.reshape(-1, counts.shape[-1])
    return np.stack([_row_joined(row, least) for row in rows]).reshape(counts.shape)


def _row_joined(row: Ints, least: int) -> Ints:
    stretches: list[list[int]] = []
    for cell in np.flatnonzero(row).tolist():
        if not stretches or stretches[-1][2] >= least:
            stretches.append([cell, cell, 0])
        stretches[-1][1] = cell
        stretches[-1][2] += int(row[cell])
    if len(stretches) > 1 and stretches[-1][2] < least:
        _, last, rest = stretches.pop()
        stretches[-1][1:] = [last, stretches[-1][2] + rest]
    told = np.zeros_like(row)
    for first, last, count in stretches:
        if count >= least:
            told[(first + last) // 2] = count
    return told
