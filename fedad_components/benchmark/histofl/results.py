"""``results.json`` of a study: every run's scores by site, and its cost. Imports no FLARE; docs/histofl-results.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.benchmark.histofl.outcome import Outcome
from fedad_components.benchmark.results import FILE_NAME, Facts, ResultsError
from fedad_components.benchmark.run import facts_now
from fedad_components.files import write_atomic


class RunScores(BaseModel):
    """One variant and seed, without its patients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    seed: int
    scores: dict[str, dict[str, float | None]] = Field(
        description="site, or 'all sites' for their patients together -> score -> value; none: not defined"
    )
    last: float | None = Field(description="AUC or c-index over all sites under the last round's model")
    rounds: int
    chosen_round: int | None
    steps: int
    seconds: float
    bytes: int
    impossible: str | None = Field(description="why nothing could be trained")


class StudyResults(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    facts: Facts
    runs: list[RunScores] = Field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write ``results.json``, atomically."""
        write_atomic(folder / FILE_NAME, (self.model_dump_json(indent=2) + "\n").encode("utf-8"))


def scored(outcome: Outcome) -> RunScores:
    """The scores of one run."""
    runs = outcome.runs()
    return RunScores(
        scores={run.site: run.scores() for run in [*runs, outcome.whole]} if runs else {},
        **outcome.model_dump(include=set(RunScores.model_fields) - {"scores"}),
    )


def open_study(out: Path, preset: str, command: str) -> Facts:
    """How the folder's runs come about; its ``results.json`` is begun if there is none.

    Raises:
        ResultsError: if it is of another study or length, or cannot be read.
    """
    path = out / FILE_NAME
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        StudyResults(facts=facts_now(preset, command)).write(out)
    try:
        facts = StudyResults.model_validate_json(path.read_text(encoding="utf-8")).facts
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ResultsError(
            f"{path}: no results of a study of HistoFL ({type(error).__name__}): choose another --out"
        ) from None
    facts.require(preset, path)
    return facts


def write_results(facts: Facts, outcomes: Iterable[Outcome], out: Path) -> None:
    """The file anew, from every run that is done."""
    StudyResults(facts=facts, runs=[scored(outcome) for outcome in outcomes]).write(out)
