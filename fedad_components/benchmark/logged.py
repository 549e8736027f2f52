"""Runs as they were logged: folders with ``rounds.jsonl`` and ``config.json``. Imports no FLARE.

docs/results-format.md describes the files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components import records
from fedad_components.benchmark.results import FILE_NAME, Results, Row, check_unique
from fedad_components.config import ConfigError, FedADConfig
from fedad_components.evaluation.results import Evaluation
from fedad_components.evaluation.scores import Scores
from fedad_components.records import RoundRecord

CONFIG = "config.json"
EVALUATION = "evaluation.json"
BY_ROUND = "by_round.jsonl"
MOST_ROUNDS = 100_000


class RunsError(ValueError):
    """Folders that hold no run that can be drawn; the message names what is missing."""


class SiteScores(BaseModel):
    """One line of ``by_round.jsonl``: the global model at one laboratory after one round."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(ge=0)
    laboratory: str
    unseen: bool = Field(description="whether the laboratory takes no part in training")
    scores: Scores = Field(description="cross-validated k-NN inside the laboratory")


@dataclass(frozen=True)
class LoggedRun:
    """One training with one seed.

    Attributes:
        name: path of its folder below what all runs have in common.
        rows: of a ``results.json`` in that very folder.
        evaluation: of an ``evaluation.json`` there, as ``fedad probe --json`` prints it.
        by_round: of a ``by_round.jsonl`` there, as ``fedad benchmark wbc --by-round`` writes it; empty without one.
    """

    name: str
    config: FedADConfig
    rounds: list[RoundRecord]
    rows: list[Row]
    evaluation: Evaluation | None
    by_round: list[SiteScores]

    @property
    def sites(self) -> list[str]:
        """All that were asked at least once."""
        return sorted({site for record in self.rounds for site in (*record.participants, *record.refused)})

    @property
    def supervised(self) -> bool:
        """Whether labels trained it: then its losses have a total and no NT-Xent."""
        losses = [found for record in self.rounds for found in record.losses.values()]
        return bool(losses) and all(found.contrastive is None for found in losses)

    @property
    def tested(self) -> list[tuple[str, str]]:
        """Every (target, protocol) that there is a result of."""
        of_rows = [(row.target, row.protocol) for row in self.rows]
        if not self.evaluation:
            return of_rows
        return of_rows + [(self.evaluation.target, result.name) for result in self.evaluation.results]

    def scores(self, metric: str) -> dict[tuple[str, str], float]:
        """(target, protocol) -> the score, as far as it is known."""
        found = {(row.target, row.protocol): row.metrics[metric] for row in self.rows if metric in row.metrics}
        if self.evaluation:
            for result in self.evaluation.results:
                if (value := getattr(result.scores, metric)) is not None:
                    found.setdefault((self.evaluation.target, result.name), value)
        return found


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only; ``label`` is what they are called in a picture."""

    label: str
    runs: list[LoggedRun]

    @property
    def config(self) -> FedADConfig:
        """Of the first run; the others' differs in seed and experiment."""
        return self.runs[0].config


def read_runs(folders: Sequence[Path]) -> list[LoggedRun]:
    """Every run in or below the folders.

    Raises:
        RunsError: if there is none, one lacks its ``config.json``, or has an evaluation or scores that are none.
        RecordsError, ConfigError, ResultsError: if a file cannot be used.
    """
    paths = sorted({path.parent for folder in folders for path in folder.rglob(records.FILE_NAME)})
    if not paths:
        raise RunsError(
            f"{', '.join(map(str, folders))}: no {records.FILE_NAME} in or below; expected the folders of runs"
        )
    common = Path(os.path.commonpath([path.parent for path in paths]))
    if len(paths) == 1 and paths[0] not in folders:  # named below what was asked for, not by its seed alone
        common = next(folder for folder in folders if paths[0].is_relative_to(folder))
    return [_read(path, path.relative_to(common).as_posix()) for path in paths]


def _read(folder: Path, name: str) -> LoggedRun:
    if not (folder / CONFIG).is_file():
        raise RunsError(f"{folder}: no {CONFIG} beside {records.FILE_NAME}: put the job's configuration there")
    evaluation = None
    if (path := folder / EVALUATION).is_file():
        try:
            evaluation = Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError) as error:
            raise RunsError(f"{path}: expected what `fedad probe --json` prints: {error}") from None
    try:
        config = FedADConfig.load(folder / CONFIG)
    except ConfigError as error:
        raise RunsError(f"{folder / CONFIG}: no configuration of FedAD: {error}") from None
    rounds = records.read_records(folder / records.FILE_NAME)
    _require_plausible(folder / records.FILE_NAME, [record.round for record in rounds])
    return LoggedRun(
        name,
        config,
        rounds,
        Results.load(folder / FILE_NAME).rows if (folder / FILE_NAME).is_file() else [],
        evaluation,
        _read_by_round(folder / BY_ROUND),
    )


def _read_by_round(path: Path) -> list[SiteScores]:
    """Empty where there is no such file; half a last line, of a run that was stopped, is left out."""
    if not path.is_file():
        return []
    found = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise RunsError(f"{path}: expected UTF-8 text") from None
    for number, text in enumerate(lines, start=1):
        try:
            found.append(SiteScores.model_validate_json(text))
        except ValidationError as error:
            raise RunsError(f"{path}, line {number}: expected the scores of a laboratory: {error}") from None
    _require_plausible(path, [point.round for point in found])
    return found


def _require_plausible(path: Path, rounds: Sequence[int]) -> None:
    """RunsError for a round so late that the file must be damaged: a picture has a place for each round before it."""
    if rounds and max(rounds) >= MOST_ROUNDS:
        raise RunsError(f"{path}: round {max(rounds):,}: expected fewer than {MOST_ROUNDS:,}")


def read_rows(folders: Sequence[Path]) -> list[Row]:
    """The rows of every ``results.json`` in or below the folders.

    Raises:
        ResultsError: if one cannot be used, or two rows are about the same.
    """
    paths = sorted({path for folder in folders for path in folder.rglob(FILE_NAME)})
    rows = [row for path in paths for row in Results.load(path).rows]
    check_unique(rows)
    return rows


def narrowed(
    runs: Sequence[LoggedRun], rows: Sequence[Row], targets: Sequence[str] = (), protocols: Sequence[str] = ()
) -> tuple[list[LoggedRun], list[Row]]:
    """What concerns these targets and protocols; none named means all. A run that was never tested has no target.

    Raises:
        RunsError: naming a target or protocol that nothing was tested on or by, and those there are.
    """
    tested = [key for run in runs for key in run.tested] + [(row.target, row.protocol) for row in rows]
    for place, (word, wanted) in enumerate((("target", targets), ("protocol", protocols))):
        known = dict.fromkeys(key[place] for key in tested)
        if unknown := [name for name in wanted if name not in known]:
            raise RunsError(f"{word} {unknown[0]!r}: nothing was tested so; expected one of {', '.join(known)}")

    def concerned(target: str, protocol: str) -> bool:
        return (not targets or target in targets) and (not protocols or protocol in protocols)

    def of_run(run: LoggedRun) -> LoggedRun:
        evaluation = run.evaluation
        if evaluation:
            results = [result for result in evaluation.results if concerned(evaluation.target, result.name)]
            evaluation = evaluation.model_copy(update={"results": results})
        return replace(
            run, rows=[row for row in run.rows if concerned(row.target, row.protocol)], evaluation=evaluation
        )

    kept = [run for run in runs if not run.tested or any(concerned(*key) for key in run.tested)]
    return [*map(of_run, kept)], [row for row in rows if concerned(row.target, row.protocol)]


def grouped(runs: Sequence[LoggedRun]) -> list[Group]:
    """Seeds put together: same sites, same configuration but for seed and experiment."""
    found: dict[tuple[str, tuple[str, ...], str], list[LoggedRun]] = {}
    for run in runs:
        data = run.config.to_json()
        del data["seed"], data["federation"]["experiment"]
        target = run.evaluation.target if run.evaluation else ""
        found.setdefault((repr(data), tuple(run.sites), target), []).append(run)
    groups: dict[str, Group] = {}
    for members in found.values():
        label = _common_name(members)
        if label in groups:  # two configurations below one folder
            label = members[0].name
        groups[label] = Group(label, members)
    return _without_common_end(list(groups.values()))


def _common_name(runs: Sequence[LoggedRun]) -> str:
    """The folder that holds all seeds of a group; of a single run its own, without the seed's."""
    if len(runs) > 1:
        return os.path.commonpath([f"/{run.name}" for run in runs]).strip("/") or runs[0].config.method
    head, _, seed = runs[0].name.rpartition("/")
    return head if head and seed == str(runs[0].config.seed) else runs[0].name


def _without_common_end(groups: list[Group]) -> list[Group]:
    """A last folder that all labels share, such as the target's, tells nothing apart."""
    ends = {group.label.rpartition("/")[2] for group in groups}
    if len(groups) < 2 or len(ends) > 1 or not all("/" in group.label for group in groups):
        return groups
    return [Group(group.label.rpartition("/")[0], group.runs) for group in groups]
