"""A trained model on a site's own test patients: ``fedad slides evaluate``. No FLARE."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedad_components import records
from fedad_components.config import SILENT_MODES, ConfigError, read_settings
from fedad_components.files import sha256_of, write_atomic
from fedad_components.imaging.catalogue import DataSet
from fedad_components.mil.bags import Outcome
from fedad_components.mil.bins import SurvivalError
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.counts import CountsError, Grid
from fedad_components.mil.evaluate import EvaluationError
from fedad_components.mil.evaluate_classes import Classified
from fedad_components.mil.evaluate_survival import Cuts, Survived, risk_cuts_of_counts, risk_groups
from fedad_components.mil.evaluation_file import (
    CUT_DEPTH,
    LONGEST_METHOD,
    LONGEST_SITE,
    MOST_CUTS,
    NAME,
    SiteEvaluation,
    risk_grid,
)
from fedad_components.mil.federated_metrics import RiskTimeHistogram
from fedad_components.mil.losses import risk
from fedad_components.mil.site_bags import SiteBags, open_bags
from fedad_components.mil.splits import Split
from fedad_components.mil.state import EXPERIMENT, SavedModel, load_bag_model
from fedad_components.mil.trainer import split_of
from fedad_components.wire import shown

MODEL, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Evaluated:
    """A site's test patients, for its own eyes, and what it may hand over.

    Attributes:
        run: the patients.
        patients: pseudonyms, in the run's order.
        told: what leaves.
        notes: what the person who hands the counts over has to know.
    """

    run: Classified | Survived
    patients: tuple[str, ...]
    told: SiteEvaluation
    notes: tuple[str, ...] = ()

    def write_patients(self, path: str | Path) -> None:
        """A line for each patient, as CSV, for the owner alone to read: it never leaves the site."""
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        if isinstance(self.run, Classified):
            names = self.told.target.classes
            writer.writerow(["patient", "class", "predicted", *(f"probability of {name}" for name in names)])
            for patient, true, row in zip(self.patients, self.run.true, self.run.probability, strict=True):
                writer.writerow([patient, names[true], names[int(row.argmax())], *(f"{value:.6f}" for value in row)])
        else:
            writer.writerow(["patient", "time", "event", "risk", "risk group"])
            groups = risk_groups(self.run.risks, self.run.cuts)
            for row in zip(self.patients, self.run.times, self.run.events, self.run.risks, groups, strict=True):
                patient, time, event, value, group = row
                writer.writerow([patient, f"{time:g}", int(event), f"{value:.6f}", int(group)])
        write_atomic(path, lines.getvalue().encode("utf-8"))


def evaluate_site(
    results: str | Path,
    features: str | Path,
    site: str,
    *,
    device: torch.device | str = "cpu",
    min_cell: int | None = None,
    floor: int = 1,
    cuts: Sequence[float] = (),
    method: str = "federated",
) -> Evaluated:
    """Predict a site's test patients, those that the job's seed has kept away from its training there.

    Args:
        results: folder of a job's results: ``model.safetensors``, ``config.json`` and, to compare, ``rounds.jsonl``.
        features: folder that ``fedad slides prepare`` wrote.
        site: its name in the federation: the split depends on it.
        min_cell: fewest patients of a kind of which counts may be told; none: the job's, or ``floor``.
        floor: the site's own least count, whatever the job says.
        cuts: survival: agreed ones between risk groups; none: the median risk of the site's training patients, as a
            cell of a public grid.
        method: how the model came about, for the report.

    Raises:
        ConfigError, StateError: if configuration or model cannot be read.
        CatalogueError, SplitError: if the features are not such as the job trains on.
        EvaluationError: if they do not belong together, or there is no test patient.
        RecordsError: if ``rounds.jsonl`` is there and cannot be read.
    """
    _check_asked(site, method, cuts)
    results = Path(results)
    config = _configuration(results / CONFIG)
    model = _model(results / MODEL, config)
    least = _least(min_cell, floor, config)
    bags = open_bags(DataSet(id="features", kind="bags", folder=Path(features)), config)
    split = split_of(bags, config, site)
    compared = _check_training(results / records.FILE_NAME, site, bags, split)
    if not split.test:
        raise EvaluationError(f"site {site}: no patient is in the test part: expected more patients")
    found = predict(model.module, bags, split.test, device)
    targets = {row.owner: row.target for row in bags.rows if row.owner in found}
    of = (method, site, config.seed)
    if config.survival:
        outcomes = [target for target in targets.values() if isinstance(target, Outcome)]
        cut = tuple(cuts) or _training_cut(model.module, bags, split, config, device, site)
        run: Classified | Survived = Survived(
            *of,
            np.array([outcome.time for outcome in outcomes], dtype=np.float64),
            np.array([outcome.event for outcome in outcomes], dtype=np.bool_),
            _risks(found),
            cut,
        )
    elif cuts:
        raise EvaluationError(f"cuts {', '.join(map(str, cuts))}: expected none, as the job's target is classification")
    else:
        probability = torch.stack([logits.softmax(dim=1).mean(dim=0) for logits in found.values()])
        run = Classified(*of, np.array(list(targets.values()), dtype=np.int64), probability.double().numpy())
    names = tuple(owner.lstrip("\x00") for owner in found)
    told = SiteEvaluation.of(run, config, least, sha256_of(results / MODEL))
    return Evaluated(run, names, told, tuple(_notes(config, compared)))


@torch.no_grad()
def predict(
    module: nn.Module, bags: SiteBags, patients: Collection[str], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Owner to the logits of its bags ``(k, outputs)``, float32 on the CPU; all patches of a bag are seen.

    Args:
        module: in evaluation mode.
        patients: owners of rows.
    """
    module = module.to(device)
    found: dict[str, list[Tensor]] = {}
    for row in bags.rows:
        if row.owner in patients:
            logits = module(bags.bag(row).features.to(device)).logits
            found.setdefault(row.owner, []).append(logits.float().cpu())
    return {owner: torch.stack(logits) for owner, logits in found.items()}


def _check_asked(site: str, method: str, cuts: Sequence[float]) -> None:
    for what, name, longest in (("site", site, LONGEST_SITE), ("method", method, LONGEST_METHOD)):
        if not re.fullmatch(NAME, name) or len(name) > longest:
            raise EvaluationError(
                f"{what} {shown(name)}: expected 1 to {longest} letters, digits, spaces and ._()+-, a letter or digit "
                f"first"
            )
    if len(cuts) > MOST_CUTS or not all(map(math.isfinite, cuts)):
        raise EvaluationError(f"cuts: found {len(cuts)}: expected at most {MOST_CUTS}, each a number")


def _configuration(path: Path) -> HistoFLConfig:
    try:
        return HistoFLConfig.parse(read_settings(path))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if str(path) in text else f"{path}: {text}") from None


def _model(path: Path, config: HistoFLConfig) -> SavedModel:
    model = load_bag_model(path)
    expected = () if config.survival else config.target.classes
    outputs = model.module.classifier.out_features
    if (model.in_features, outputs, model.classes) != (config.model.in_features, config.target.outputs, expected):
        raise EvaluationError(f"{path}: a model of another job than the {CONFIG} beside it: expected both of one job")
    if model.experiment is None:
        raise EvaluationError(
            f"{path}: it does not say by which configuration it was trained ({EXPERIMENT}), so that its test patients "
            f"may have been trained on: run the job again, and take what it exports now"
        )
    if model.experiment != config.identity():
        raise EvaluationError(
            f"{path}: trained under another configuration than the {CONFIG} beside it, whose test patients may have "
            f"been trained on: copy both again from one job's results, and change neither"
        )
    return model


def _least(min_cell: int | None, floor: int, config: HistoFLConfig) -> int:
    job = config.counts.min_cell
    for bound, whose in ((job, "the job's counts.min_cell"), (floor, "this site's privacy.min_cell_count")):
        if min_cell is not None and min_cell < bound:
            raise EvaluationError(f"least count {min_cell}: expected {whose}, {bound}, or more")
    return min_cell or max(job, floor)


def _notes(config: HistoFLConfig, compared: bool) -> Iterator[str]:
    mode = config.privacy.mode
    if mode in SILENT_MODES:
        yield f"the counts are exact: the epsilon of {mode} does not cover their leaving"
    if not compared:
        yield (
            f"no {records.FILE_NAME} that says how many bags the site trained on: name and features could not be "
            f"compared, and are taken to be those of the training"
        )


def _check_training(path: Path, site: str, bags: SiteBags, split: Split) -> bool:
    """Refuse a split that is not the job's, which has test patients that the model was trained on.

    False where no round is there to compare with.
    """
    if not path.exists():
        return False
    rounds = records.read_records(path)
    names = sorted({name for record in rounds for name in record.participants})
    if site not in names:
        raise EvaluationError(
            f"site {site!r}: not in the job's rounds: expected one of {', '.join(names)}: the split into training and "
            f"test patients depends on the name"
        )
    trained = next((record.n_samples[site] for record in reversed(rounds) if site in record.n_samples), None)
    now = sum(row.owner in split.train for row in bags.rows)
    if trained is not None and trained != now:
        raise EvaluationError(
            f"site {site!r}: it trained on {trained} bags, and these features give {now}: expected those of the "
            f"training, as the split has changed with them and test patients may have been trained on"
        )
    return trained is not None


def _training_cut(
    module: nn.Module, bags: SiteBags, split: Split, config: HistoFLConfig, device: torch.device | str, site: str
) -> Cuts:
    """The site's median training risk, at the edge of a public cell: a single patient's risk it would be else."""
    risks = _risks(predict(module, bags, split.train, device))
    ones = np.ones(len(risks))
    try:
        return risk_cuts_of_counts(
            RiskTimeHistogram.of(ones, ones, risks, risk_grid(config, CUT_DEPTH), Grid(0.0, 2.0, 0))
        )
    except (SurvivalError, CountsError) as error:
        raise EvaluationError(f"site {site}: no cut between risk groups: {error}: give an agreed --cut") from None


def _risks(found: Mapping[str, Tensor]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of patients with one bag each."""
    return risk(torch.cat(list(found.values()))).double().numpy()
