"""What a model said of test patients: by method, site and seed, added up over sites, as a table over seeds. No FLARE.

A run is either patients (their probabilities or risks) or counts of them that a site told. Both add up over sites and
give the same figures, from counts with what their grids lose, which :attr:`Run.binned` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from fedad_components.over_seeds import Estimate

if TYPE_CHECKING:
    from typing_extensions import Self

ALL_SITES = "all sites"

Item = TypeVar("Item", bound="Run")


class EvaluationError(ValueError):
    """Runs that do not go together; the message names method, site and seed, and what was expected."""


@dataclass(frozen=True, eq=False)
class Run(ABC):
    """Test patients of one site, under one method and one seed.

    Attributes:
        method: how the model came about, such as ``federated``.
        site: where the patients are, or :data:`ALL_SITES`.
        seed: of split and training.
    """

    method: str
    site: str
    seed: int

    binned: ClassVar[bool] = False
    """Whether it is counts on grids rather than patients."""

    @property
    @abstractmethod
    def patients(self) -> int:
        """How many, or how many were told."""

    @abstractmethod
    def scores(self) -> dict[str, float | None]:
        """Value of each score; None where it is not defined."""

    @abstractmethod
    def joined(self, other: Self) -> Self:
        """Both runs' patients, as of :data:`ALL_SITES`.

        Raises:
            ValueError: if they are not of one kind.
        """

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.method}, {self.site}, seed {self.seed}"


class TableRow(NamedTuple):
    """A method at a site, over seeds."""

    method: str
    site: str
    seeds: int
    patients: float
    """Mean over seeds."""
    binned: bool
    scores: dict[str, Estimate | None]


def over_sites(runs: Iterable[Item]) -> list[Item]:
    """For each method and seed one run of all sites' patients, in the order in which they come first.

    Raises:
        EvaluationError: if a site comes twice, or patients and counts would have to be added up.
    """
    whole: dict[tuple[str, int], Item] = {}
    seen: set[tuple[str, str, int]] = set()
    for run in runs:
        if (key := (run.method, run.site, run.seed)) in seen:
            raise EvaluationError(f"{run.where}: comes twice: expected a site once for each method and seed")
        seen.add(key)
        before = whole.get((run.method, run.seed))
        try:
            if before is not None and type(before) is not type(run):
                raise ValueError(f"{type(before).__name__} and {type(run).__name__}: expected one kind")
            whole[run.method, run.seed] = run if before is None else before.joined(run)
        except ValueError as error:
            raise EvaluationError(f"{run.where}: cannot be added to the other sites': {error}") from None
    return list(whole.values())


def table(runs: Sequence[Item]) -> list[TableRow]:
    """Rows by method: each site's, then, if there are several, those of all sites' patients together.

    Raises:
        EvaluationError: as :func:`over_sites`.
    """
    whole, rows = over_sites(runs), []
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        sites = list(dict.fromkeys(run.site for run in own))
        rows += [_row(method, site, [run for run in own if run.site == site]) for site in sites]
        if len(sites) > 1:
            rows.append(_row(method, ALL_SITES, [run for run in whole if run.method == method]))
    return rows


def _row(method: str, site: str, runs: Sequence[Run]) -> TableRow:
    scores = [run.scores() for run in runs]
    names = dict.fromkeys(name for found in scores for name in found)
    return TableRow(
        method,
        site,
        len(runs),
        fmean(run.patients for run in runs),
        any(run.binned for run in runs),
        {name: Estimate.of_defined([found.get(name) for found in scores]) for name in names},
    )
