"""One run of a study: a variant and a seed, through the same trainer, monitor and rounds as a job. Imports no FLARE."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedad_components.benchmark.histofl.cohort import Cohort, joined
from fedad_components.benchmark.histofl.outcome import FILE_NAME, Classes, Outcome, Survival
from fedad_components.benchmark.histofl.studies import STUDIES
from fedad_components.benchmark.histofl.study import Study, Variant
from fedad_components.benchmark.run import CONFIG
from fedad_components.files import write_atomic
from fedad_components.mil import bags
from fedad_components.mil.bins import SurvivalError
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.evaluate_survival import risk_cuts
from fedad_components.mil.losses import risk
from fedad_components.mil.site_bags import SiteBags
from fedad_components.mil.site_evaluation import predict
from fedad_components.mil.splits import Split, SplitError
from fedad_components.mil.trainer import BagTrainer, build_model
from fedad_components.records import FILE_NAME as ROUNDS
from fedad_components.records import append_record
from fedad_components.simulation import Simulation

POOL = "central"


@dataclass(frozen=True)
class Run:
    """Which run, and where."""

    study_name: str
    variant_name: str
    seed: int
    data_dir: Path
    out: Path
    epochs: int
    """Most local epochs."""

    @cached_property
    def study(self) -> Study:
        """The study of that name."""
        return STUDIES[self.study_name]

    @cached_property
    def variant(self) -> Variant:
        """The row of that name."""
        return self.study.variant(self.variant_name)

    @property
    def folder(self) -> Path:
        """``<out>/runs/<variant>/<seed>``."""
        return self.out / "runs" / self.variant_name / str(self.seed)

    @property
    def outcome(self) -> Path:
        """There when the run is done."""
        return self.folder / FILE_NAME

    @property
    def records(self) -> Path:
        """One line for each finished round: how far it is."""
        return self.folder / ROUNDS

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.variant.title}, seed {self.seed}"

    @property
    def rounds(self) -> int:
        """At most."""
        return self.config(1).federation.rounds if self.variant.training != "none" else 1

    def config(self, sites: int) -> HistoFLConfig:
        """Over so many sites."""
        return self.study.configuration(self.variant, self.seed, sites, self.epochs)


def execute(run: Run) -> Outcome:
    """Train and test; what is on disk already is read instead.

    A cohort that cannot be trained so (too few events for the bins, say) gives an outcome that says why.

    Raises:
        StudyError: if the data cannot be used.
    """
    if run.outcome.exists():
        return Outcome.load(run.outcome)
    cohort = run.study.load(run.data_dir)
    facts: dict[str, Any] = {"method": run.variant_name, "title": run.variant.title, "seed": run.seed}
    try:
        splits = cohort.splits(run.config(len(cohort.sites)))
        cohort = cohort.prepared(splits)
        outcome = (
            _untrained(run, cohort, splits, facts)
            if run.variant.training == "none"
            else _trained(run, cohort, splits, facts)
        )
    except (SurvivalError, SplitError) as error:
        outcome = Outcome(**facts, impossible=str(error))
    run.folder.mkdir(parents=True, exist_ok=True)
    write_atomic(run.outcome, outcome.model_dump_json(indent=1).encode("utf-8"))
    return outcome


def _untrained(run: Run, cohort: Cohort, splits: Mapping[str, Split], facts: Mapping[str, Any]) -> Outcome:
    scores = cohort.scores[run.variant.score]
    cuts = risk_cuts([scores[patient] for patient in joined(splits).train])
    survived = {
        site: _survival(of_site, {patient: scores[patient] for patient in splits[site].test})
        for site, of_site in cohort.sites.items()
    }
    return Outcome(**facts, survived=survived, cuts=cuts)


def _trained(run: Run, cohort: Cohort, splits: Mapping[str, Split], facts: Mapping[str, Any]) -> Outcome:
    began = time.monotonic()
    training = _who_trains(run.variant, cohort, splits)
    config = run.config(len(training))
    trainers = {site: BagTrainer(config, of_site, site, split=split) for site, (of_site, split) in training.items()}
    run.folder.mkdir(parents=True, exist_ok=True)
    run.records.unlink(missing_ok=True)  # of an attempt that was interrupted
    write_atomic(run.folder / CONFIG, json.dumps(config.to_json(), indent=1).encode("utf-8"))
    simulation = Simulation(config, trainers)
    for _ in range(config.federation.rounds):
        append_record(run.records, simulation.run_round())
        if simulation.stopped:
            break
    records = simulation.records
    best = [record.round for record in records if record.validation is not None and record.validation.best]
    cost = {
        "rounds": len(records),
        "chosen_round": best[-1] if best else None,
        "steps": sum(sum(record.n_samples.values()) for record in records if record.losses) * config.training.epochs,
        "seconds": time.monotonic() - began,
        "bytes": sum(sum(record.bytes.values()) for record in records) if run.variant.training == "federated" else 0,
    }
    facts = {**facts, **cost}
    theta = simulation.best or simulation.theta
    cuts: tuple[float, ...] = ()
    if config.survival:
        known = [predicted(theta, config, of_site, split.train) for of_site, split in training.values()]
        cuts = risk_cuts([value for of_site in known for value in _risks(of_site).values()])
    last = Outcome(**facts, **_tested(simulation.theta, config, cohort, splits), cuts=cuts)
    return Outcome(
        **facts, **_tested(theta, config, cohort, splits), cuts=cuts, last=next(iter(last.whole.scores().values()))
    )


def _tested(
    theta: Mapping[str, Tensor], config: HistoFLConfig, cohort: Cohort, splits: Mapping[str, Split]
) -> dict[str, Any]:
    """What a model says of every site's test patients, as :class:`Outcome` has it."""
    logits = {site: predicted(theta, config, of_site, splits[site].test) for site, of_site in cohort.sites.items()}
    if config.survival:
        return {"survived": {site: _survival(cohort.sites[site], _risks(of_site)) for site, of_site in logits.items()}}
    return {"classified": {site: _classes(cohort.sites[site], of_site) for site, of_site in logits.items()}}


def _who_trains(variant: Variant, cohort: Cohort, splits: Mapping[str, Split]) -> dict[str, tuple[SiteBags, Split]]:
    """The bags of each site that trains, and its patients in three parts."""
    if variant.training == "pooled":
        return {POOL: (cohort.pooled, joined(splits))}
    sites = [variant.site] if variant.training == "alone" else list(cohort.sites)
    return {site: (cohort.sites[site], splits[site]) for site in sites}


def predicted(
    theta: Mapping[str, Tensor], config: HistoFLConfig, of_site: SiteBags, patients: frozenset[str]
) -> dict[str, Tensor]:
    """Logits ``(C,)`` or ``(R,)`` of each patient, who has one bag."""
    model = build_model(config)
    model.load_state_dict(dict(theta))
    return {owner: logits[0] for owner, logits in predict(model.eval(), of_site, patients).items()}


def _risks(logits: Mapping[str, Tensor]) -> dict[str, float]:
    return {patient: float(risk(of_patient)) for patient, of_patient in logits.items()}


def _classes(of_site: SiteBags, logits: Mapping[str, Tensor]) -> Classes:
    true = {row.owner: row.target for row in of_site.rows}
    return Classes(
        true=[true[patient] for patient in logits],
        probability=[of_patient.double().softmax(dim=-1).tolist() for of_patient in logits.values()],
    )


def _survival(of_site: SiteBags, risks: Mapping[str, float]) -> Survival:
    seen = {row.owner: row.target for row in of_site.rows if isinstance(row.target, bags.Outcome)}
    return Survival(
        times=[seen[patient].time for patient in risks],
        events=[seen[patient].event for patient in risks],
        risks=list(risks.values()),
    )


def outcomes_in(out: Path, study: Study) -> list[Outcome]:
    """Every run that is done, in the order of the study's rows and of the seeds."""
    found = []
    for variant in study.variants:
        paths = (out / "runs" / variant.name).glob(f"*/{FILE_NAME}")
        of_variant = [Outcome.load(path) for path in paths]
        found += sorted(of_variant, key=lambda outcome: outcome.seed)
    return found
