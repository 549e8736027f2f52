"""A study: a cohort, and the rows of its table as settings of one and the same experiment. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedad_components.benchmark.histofl.cohort import Cohort
from fedad_components.benchmark.variants import merged
from fedad_components.mil.config import HistoFLConfig

PATIENCE, AT_LEAST = 10, 20
"""Local epochs without a better validation after which a run ends, and before which it does not: a job's defaults."""


@dataclass(frozen=True)
class Variant:
    """One row.

    Attributes:
        name: as on the command line and in the results.
        title: for people.
        training: federated; pooled, one site that holds all patients; alone, one site without the others; none, what
            the file says of a patient, which nobody trains.
        site: the one that trains alone.
        score: of ``Cohort.scores``, where nothing is trained.
        epochs: E, local epochs in a round.
        settings: sections of the configuration that make it.
    """

    name: str
    title: str
    training: Literal["federated", "pooled", "alone", "none"] = "federated"
    site: str = ""
    score: str = ""
    epochs: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


class Reference(NamedTuple):
    """A published or expected figure, to be read beside a row."""

    row: str
    """What it is a figure of."""
    value: str
    source: str


@dataclass(frozen=True)
class Study:
    """What is asked of one cohort.

    Attributes:
        name: on the command line.
        title: of its pages.
        load: the cohort from the folder of the data.
        epochs: most local epochs at each site, the same for every E.
        settings: sections of the configuration, of every row.
        variants: the rows.
        references: figures of others.
        notes: what the reader must know before the figures.
        times: survival: times of the cumulative/dynamic AUC, in days.
    """

    name: str
    title: str
    load: Callable[[Path], Cohort]
    epochs: int
    settings: Mapping[str, Any]
    variants: Sequence[Variant]
    references: Sequence[Reference] = ()
    notes: Sequence[str] = ()
    times: Sequence[float] = ()

    def variant(self, name: str) -> Variant:
        """Find a row; ValueError if there is none of that name."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ValueError(f"{name!r}: expected one of {', '.join(variant.name for variant in self.variants)}")

    def configuration(self, variant: Variant, seed: int, sites: int, epochs: int) -> HistoFLConfig:
        """Of one run over ``sites`` sites, of at most ``epochs`` local epochs.

        One round more than they need: the last round validates the model of the one before, and its own model is not
        used. Survival's survey is one more.
        """
        rounds = ceil(epochs / variant.epochs) + 1
        base: dict[str, Any] = {
            "seed": seed,
            "training": {"epochs": variant.epochs},
            "stopping": {
                "patience": ceil(PATIENCE / variant.epochs),
                "min_rounds": ceil(AT_LEAST / variant.epochs) + 1,
            },
            "federation": {"min_sites": sites},
        }
        data = merged(merged(base, self.settings), variant.settings)
        survey = HistoFLConfig.parse(data).surveys(0)
        return HistoFLConfig.parse(merged(data, {"federation": {"rounds": rounds + survey}}))


def central_and_alone(sites: Sequence[str]) -> tuple[Variant, ...]:
    """What federation is compared with."""
    return (
        Variant("central", "central", "pooled"),
        *(Variant(f"alone-{number}", f"{site} alone", "alone", site) for number, site in enumerate(sites, start=1)),
    )


def every(*epochs: int) -> tuple[Variant, ...]:
    """Federated, with E local epochs in a round."""
    return tuple(Variant(f"E-{e}", f"federated, E = {e}", epochs=e) for e in epochs)


FEDERATED = Variant("federated", "federated")
UNIFORM = Variant("uniform", "federated, uniform weights", settings={"weighting": "uniform"})
