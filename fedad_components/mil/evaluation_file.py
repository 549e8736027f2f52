"""What a site hands over of its test patients: counts on the job's public grids, as a JSON file, and reading it back.

Whoever puts the sites' files together reads strangers' files: everything in them is checked. No FLARE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from fedad_components.mil.config import HistoFLConfig, TargetConfig
from fedad_components.mil.counts import Counts, CountsError, Grid, Ints
from fedad_components.mil.evaluate import ALL_SITES, EvaluationError
from fedad_components.mil.evaluate_classes import ClassCounts, Classified
from fedad_components.mil.evaluate_survival import SurvivalCounts, Survived
from fedad_components.mil.federated_metrics import Confusion, RiskSetTable, RiskTimeHistogram, ScoreHistogram
from fedad_components.mil.survival_metrics import PairCounts
from fedad_components.mil.tables import score_grid, time_grid

LARGEST_FILE = 1 << 24
MOST_PATIENTS = 10_000_000
"""Of a site: more are absurd, and their pairs would no longer be counted exactly."""
RISK_DEPTH, CUT_DEPTH = 9, 7
"""2^depth cells of a risk, from -R to 0: in which pairs are told, where patients may be; in which a median is."""

NAME = r"^[0-9A-Za-z][0-9A-Za-z ._()+-]*$"
"""Of sites and methods, which are printed where the files come together: nothing that a terminal obeys."""
LONGEST_SITE, LONGEST_METHOD, MOST_CUTS = 128, 64, 16

Table = dict[str, Any]
"""Counts as :meth:`~fedad_components.mil.counts.Counts.as_dict` gives them."""


class SiteEvaluation(BaseModel):
    """What a site hands over: no patient, and no count of fewer than ``min_cell`` of a kind of patients."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[1] = 1
    method: Annotated[str, Field(pattern=NAME, max_length=LONGEST_METHOD)]
    site: Annotated[str, Field(pattern=NAME, max_length=LONGEST_SITE)]
    seed: int
    target: TargetConfig
    model_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    min_cell: Annotated[int, Field(ge=1)]
    confusion: Table | None = None
    scores: Annotated[list[Table], Field(max_length=64)] = []
    pairs: Annotated[list[Table], Field(max_length=64)] = []
    """Survival: one. Classification: one of each class; none where ``min_cell`` is 1."""
    risk_sets: Table | None = None
    cuts: Annotated[list[FiniteFloat], Field(max_length=MOST_CUTS)] = []
    """Between the risk groups."""

    @classmethod
    def of(cls, run: Classified | Survived, config: HistoFLConfig, least: int, model_sha256: str) -> SiteEvaluation:
        """What of a site's test patients may leave, with no count below ``least``."""
        shared: dict[str, Any] = {
            "method": run.method,
            "site": run.site,
            "seed": run.seed,
            "target": config.target,
            "model_sha256": model_sha256,
            "min_cell": least,
        }
        if isinstance(run, Survived):
            counted = SurvivalCounts.of(run, risk_grid(config), time_grid(config), least)
            return cls(
                **shared, pairs=[counted.pairs.as_dict()], risk_sets=counted.table.as_dict(), cuts=list(run.cuts)
            )
        classes = ClassCounts.of(run, score_grid(config), least)
        return cls(
            **shared,
            confusion=classes.counted.as_dict(),
            scores=[table.as_dict() for table in classes.histograms],
            pairs=[table.as_dict() for table in classes.pairs or ()],
        )

    def run(self) -> ClassCounts | SurvivalCounts:
        """The counts, checked.

        Raises:
            EvaluationError: if they are not counts of this target.
        """
        try:
            if self.site == ALL_SITES:
                raise CountsError(f"{ALL_SITES!r} is no site's name: expected the one of the federation")
            return self._survival() if self.target.kind == "survival" else self._classes()
        except (CountsError, ValueError) as error:
            raise EvaluationError(f"{self.method}, {self.site}, seed {self.seed}: {error}") from None

    def _classes(self) -> ClassCounts:
        classes = self.target.outputs
        confusion = Confusion.from_dict(self.confusion or {})
        scores = tuple(ScoreHistogram.from_dict(table) for table in self.scores)
        pairs = tuple(PairCounts.from_dict(table) for table in self.pairs)
        if confusion.counts.shape != (classes, classes) or len(scores) != classes:
            raise CountsError(f"counts of another number of classes than {classes}")
        if len(pairs) != (classes if self.min_cell > 1 else 0):
            raise CountsError(f"{len(pairs)} tables of pairs for {classes} classes")
        if self.risk_sets is not None or self.cuts:
            raise CountsError("risk groups of classes: expected none")
        _check_patients(confusion.counts, 1, "confusion")
        of_class = confusion.counts.sum(axis=1)
        _check_patients(of_class, self.min_cell, "confusion")
        for number, (table, positive) in enumerate(zip(scores, of_class.tolist(), strict=True)):
            what, others = f"scores of class {number}", int(of_class.sum()) - positive
            _check_grids(table, [(0.0, 1.0)], what)
            _check_patients(table.counts, self.min_cell, what)
            if table.counts.sum(axis=1).tolist() != [others, positive]:
                raise CountsError(f"{what}: expected {others} patients that are not, and {positive} that are of it")
            if pairs and pairs[number].counts.sum() != positive * others:
                raise CountsError(f"pairs of class {number}: expected {positive * others}, as the confusion tells")
        return ClassCounts(self.method, self.site, self.seed, confusion, scores, pairs or None)

    def _survival(self) -> SurvivalCounts:
        if len(self.pairs) != 1:
            raise CountsError(f"{len(self.pairs)} tables of pairs: expected one")
        if self.confusion is not None or self.scores:
            raise CountsError("tables of classes, of survival: expected none")
        table = RiskSetTable.from_dict(self.risk_sets or {})
        if len(table.counts) != len(self.cuts) + 1:
            raise CountsError(f"{len(table.counts)} risk groups, {len(self.cuts)} cuts between them")
        if any(low >= high for low, high in pairwise(self.cuts)):
            raise CountsError(f"risk groups cut at {self.cuts}: expected each cut above the one before")
        times = (0.0, self.target.horizon)
        _check_grids(table, [times], "risk_sets")
        _check_patients(table.counts, self.min_cell, "risk_sets")
        patients, pairs = int(table.counts.sum()), self._pairs(times)
        if isinstance(pairs, RiskTimeHistogram):
            if pairs.counts.sum() != patients:
                raise CountsError(f"pairs of {pairs.counts.sum()} patients, risk_sets of {patients}: expected as many")
        elif pairs.counts.sum() > (most := (patients or MOST_PATIENTS) * ((patients or MOST_PATIENTS) - 1) // 2):
            raise CountsError(f"{pairs.counts.sum()} pairs of patients: {patients or MOST_PATIENTS} make {most}")
        return SurvivalCounts(self.method, self.site, self.seed, pairs, table, _rule(self.cuts))

    def _pairs(self, times: tuple[float, float]) -> PairCounts | RiskTimeHistogram:
        if self.min_cell > 1:
            return PairCounts.from_dict(self.pairs[0])
        pairs = RiskTimeHistogram.from_dict(self.pairs[0])
        _check_grids(pairs, [(-float(self.target.bins), 0.0), times], "pairs")
        _check_patients(pairs.counts, 1, "pairs")
        return pairs


def read_evaluation(path: str | Path) -> SiteEvaluation:
    """A site's file.

    Raises:
        EvaluationError: if it is not one, naming the file and what is wrong.
    """
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise EvaluationError(
                f"{path}: larger than {LARGEST_FILE} bytes: expected what fedad slides evaluate wrote"
            )
        found = SiteEvaluation.model_validate_json(path.read_bytes())
        found.run()
        return found
    except OSError as error:
        raise EvaluationError(f"{path}: {error.strerror}: expected what fedad slides evaluate wrote") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise EvaluationError(f"{path}: {place!r}: {first['msg']}: expected what fedad slides evaluate wrote") from None
    except EvaluationError as error:
        raise EvaluationError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


def check_together(evaluations: Mapping[str, SiteEvaluation]) -> None:
    """Whether the sites' files can be added up.

    Args:
        evaluations: by the name of their file.

    Raises:
        EvaluationError: naming two files and what differs, with the fix.
    """
    (first, one), *others = evaluations.items()
    models: dict[tuple[str, int], tuple[str, SiteEvaluation]] = {}
    for name, other in evaluations.items():
        before, same = models.setdefault((other.method, other.seed), (name, other))
        if other.model_sha256 != same.model_sha256 and other.method == "federated":
            raise EvaluationError(
                f"{before} and {name}: two models of seed {other.seed} ({same.model_sha256[:12]}…, "
                f"{other.model_sha256[:12]}…): expected the same model.safetensors at every site"
            )
        if other.cuts != same.cuts:
            middle = [round(float(np.mean(pair)), 3) for pair in zip(same.cuts, other.cuts, strict=False)]
            options = " ".join(f"--cut {cut:g}" for cut in middle)
            raise EvaluationError(
                f"{before} and {name}: risk groups cut at {same.cuts} and {other.cuts}: expected the same at every "
                f"site: agree on one, such as {options}, and evaluate again with it"
            )
    for name, other in others:
        if other.target != one.target:
            raise EvaluationError(f"{first} and {name}: two different targets: expected evaluations of one job")
        if other.min_cell != one.min_cell and 1 in (other.min_cell, one.min_cell):
            raise EvaluationError(
                f"{first} and {name}: least counts of {one.min_cell} and {other.min_cell}: expected both above 1, or "
                f"none: evaluate again with --min-cell {max(one.min_cell, other.min_cell)}"
            )


def risk_grid(config: HistoFLConfig, depth: int = RISK_DEPTH) -> Grid:
    """Of risks: minus the sum of R survival probabilities."""
    return Grid(-float(config.target.bins), 0.0, depth)


def _check_grids(table: Counts, expected: list[tuple[float, float]], what: str) -> None:
    found = [(grid.low, grid.high) for grid in table.grids]
    if found != expected:
        raise CountsError(f"{what}: on grids from and to {found}: expected {expected}")


def _check_patients(counts: Ints, least: int, what: str) -> None:
    if counts.max(initial=0) > MOST_PATIENTS:
        raise CountsError(f"{what}: a count of {counts.max()} patients: expected {MOST_PATIENTS} or fewer")
    if ((counts > 0) & (counts < least)).any():
        raise CountsError(f"{what}: a count below the file's own min_cell {least}")


def _rule(cuts: Sequence[float]) -> str:
    return f"cut at a predicted risk of {', '.join(f'{cut:.3f}' for cut in cuts)}, agreed or fixed on training patients"
