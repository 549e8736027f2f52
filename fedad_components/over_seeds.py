"""A score over several seeds: what every table shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple


class Estimate(NamedTuple):
    """Mean and sample standard deviation (n - 1) over the seeds in which a score is defined, and how many those are."""

    mean: float
    sd: float | None
    """None of one seed."""
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.sd is None else f"{self.mean:.3f} ± {self.sd:.3f}"

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of one value or more."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    @classmethod
    def of_defined(cls, values: Sequence[float | None]) -> Estimate | None:
        """Of those that are; None where no seed has a value."""
        defined = [value for value in values if value is not None]
        return cls.of(defined) if defined else None
