"""``results.json``: one row for each method, seed, target and protocol. Imports no FLARE; docs/results-format.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedad_components.files import alone_in, write_atomic

FILE_NAME = "results.json"
METRICS = {
    "f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "auc": "AUC",
    "precision": "macro precision",
    "recall": "macro recall",
}
"""Name of each score, and how a table or picture calls it."""
LEARNT_BELOW = 0.9
"""A last NT-Xent above this share of ln(2N - 1) is too close to chance to call the extractor trained."""

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Score = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class ResultsError(ValueError):
    """Results that cannot be used; the message names the file or the row, and what was expected."""


class Key(NamedTuple):
    """What a row is about; there is one row for each."""

    method: str
    seed: int
    target: str
    protocol: str

    def __str__(self) -> str:
        return f"method {self.method!r}, seed {self.seed}, target {self.target!r}, protocol {self.protocol!r}"


class Row(BaseModel):
    """One method, trained once with one seed, and tested on one target by one protocol."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Name = Field(description="label of method and settings, e.g. 'fedad + stain jitter'")
    seed: Count
    target: Name = Field(description="data set that was tested and that no site trained on")
    protocol: Name = Field(description="of the evaluation, with its variant: source, source/AdaBN, few-shot/10")
    transductive: bool = Field(description="whether the unlabelled test images as a whole were used before the test")
    metrics: dict[str, Score] = Field(
        description="score -> value from 0 to 1; a score that is not defined for this test is left out"
    )
    steps: Count = Field(description="optimisation steps, over all sites")
    images: Count = Field(description="images that the sites hold for training, over all sites")
    seconds: Annotated[Finite, Field(ge=0.0)] = Field(description="wall-clock time of the training")
    bytes: Count = Field(description="bytes of the tensors that the sites sent, over all sites and rounds")
    nt_xent: Finite | None = Field(
        None, description="NT-Xent of the last round, mean over its sites; None where a method has no such loss"
    )
    nt_xent_chance: Finite | None = Field(
        None, description="ln(2N - 1), NT-Xent where nothing has been learnt, N the batch size"
    )

    @field_validator("metrics")
    @classmethod
    def _known(cls, value: dict[str, float]) -> dict[str, float]:
        if not value:
            raise ValueError(f"no score: expected at least one of {', '.join(METRICS)}")
        if unknown := sorted(set(value) - set(METRICS)):
            raise ValueError(f"unknown score(s) {', '.join(unknown)}: expected names among {', '.join(METRICS)}")
        return value

    @model_validator(mode="after")
    def _with_its_chance(self) -> Row:
        if self.nt_xent is not None and self.nt_xent_chance is None:
            raise ValueError("nt_xent without nt_xent_chance: expected ln(2N - 1) beside it")
        return self

    @property
    def key(self) -> Key:
        """What the row is about."""
        return Key(self.method, self.seed, self.target, self.protocol)

    @property
    def untrained(self) -> bool:
        """Whether the contrastive loss ended within 10 % of chance, so that nothing was learnt."""
        if self.nt_xent is None or self.nt_xent_chance is None:
            return False
        return self.nt_xent > LEARNT_BELOW * self.nt_xent_chance


class Facts(BaseModel):
    """How the rows came about."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    preset: str = Field(description="size of the benchmark: quick or full")
    command: str = Field(description="what was typed")
    versions: dict[str, str] = Field(description="software -> version")
    date: str = Field(description="UTC, ISO 8601")

    def require(self, preset: str, path: Path) -> None:
        """ResultsError, naming the file, unless the rows are of this preset."""
        if self.preset != preset:
            raise ResultsError(
                f"{path}: of preset {self.preset!r}, not {preset!r}: rows of both cannot be compared; choose another "
                f"--out"
            )


class Results(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    facts: Facts
    rows: list[Row] = Field(default_factory=list)

    @field_validator("rows")
    @classmethod
    def _no_row_twice(cls, rows: list[Row]) -> list[Row]:
        check_unique(rows)
        return rows

    def with_rows(self, rows: Sequence[Row]) -> Results:
        """These results and more rows.

        Raises:
            ResultsError: if there is such a row already.
        """
        together = [*self.rows, *rows]
        check_unique(together)
        return Results(facts=self.facts, rows=together)

    def write(self, path: str | Path) -> None:
        """Write JSON, atomically, with a line for each row: versions of a file differ in the rows that differ."""
        rows = ",\n".join(row.model_dump_json() for row in self.rows)
        text = f'{{"facts": {self.facts.model_dump_json()},\n"rows": [\n{rows}\n]}}\n'
        write_atomic(path, text.encode("utf-8"))

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read a ``results.json``.

        Raises:
            ResultsError: if it cannot be read, is not JSON, has a wrong value, or has a row twice.
        """
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ResultsError(f"{path}: cannot be read: {error}") from error
        except ValidationError as error:
            wrong = "\n".join(
                f"  {'.'.join(map(str, item['loc'])) or '(top level)'}: {item['msg'].removeprefix('Value error, ')}"
                for item in error.errors()
            )
            raise ResultsError(f"{path}: no results of a benchmark:\n{wrong}") from None


def check_unique(rows: list[Row]) -> None:
    """Refuse two rows about the same.

    Raises:
        ResultsError: naming the first that is there twice.
    """
    seen: set[Key] = set()
    for row in rows:
        if row.key in seen:
            raise ResultsError(f"{row.key}: there is a row already; expected one for each")
        seen.add(row.key)


def append_rows(path: str | Path, rows: Sequence[Row]) -> None:
    """Add a run's rows to the file, all or none. Processes may do so at the same time: each waits for its turn.

    Raises:
        ResultsError: if the file cannot be used, or has such a row already.
    """
    path = Path(path)
    try:
        with alone_in(path.parent):
            Results.load(path).with_rows(rows).write(path)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error}") from error
