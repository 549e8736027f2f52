"""``outcome.json`` of a run: what the model said of each test patient, and what it cost. Imports no FLARE.

It holds no name of a patient.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedad_components.benchmark.results import ResultsError
from fedad_components.mil.evaluate import Run, over_sites
from fedad_components.mil.evaluate_classes import Classified
from fedad_components.mil.evaluate_survival import Survived

FILE_NAME = "outcome.json"
Count = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Classes(_Stored):
    """Of one site's test patients."""

    true: list[Count] = Field(description="classes from 0")
    probability: list[list[Finite]] = Field(description="of each class")


class Survival(_Stored):
    """Of one site's test patients."""

    times: list[Finite] = Field(description="in the unit of the data")
    events: list[bool]
    risks: list[Finite]


class Outcome(_Stored):
    """One variant, trained once with one seed."""

    method: str
    title: str
    seed: Count
    classified: dict[str, Classes] = Field({}, description="by site")
    survived: dict[str, Survival] = Field({}, description="by site")
    cuts: tuple[Finite, ...] = Field((), description="between the risk groups, of the training patients' risks")
    last: Finite | None = Field(
        None, description="AUC or c-index over all sites under the last round's model, which nobody has validated"
    )
    rounds: Count = Field(0, description="trained, survey included")
    chosen_round: Count | None = Field(None, description="whose incoming model validated best; none: the last model")
    steps: Count = Field(0, description="optimisation steps, over all sites")
    seconds: Annotated[Finite, Field(ge=0)] = Field(0.0, description="wall-clock time of the training")
    bytes: Count = Field(0, description="bytes of the tensors that the sites sent")
    impossible: str | None = Field(None, description="why nothing could be trained")

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read an ``outcome.json``.

        Raises:
            ResultsError: if the file is damaged.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ResultsError(f"{path}: no outcome of a run ({error}): remove it, and the run is done again") from None

    @property
    def whole(self) -> Run:
        """All sites' test patients together; only where something was trained."""
        return over_sites(self.runs())[0]

    def runs(self) -> list[Run]:
        """As the evaluation has them, one for each site."""
        return [
            *(
                Classified(self.title, site, self.seed, np.array(found.true), np.array(found.probability))
                for site, found in self.classified.items()
            ),
            *(
                Survived(
                    self.title,
                    site,
                    self.seed,
                    np.array(found.times),
                    np.array(found.events),
                    np.array(found.risks),
                    self.cuts,
                )
                for site, found in self.survived.items()
            ),
        ]
