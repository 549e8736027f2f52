"""One run of the benchmark: a variant, a seed, an unseen laboratory. Imports no FLARE.

A run keeps everything in its own folder, and goes on where it stopped: a finished extractor is not trained again.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from threadpoolctl import threadpool_limits

from fedad_components import __version__
from fedad_components.benchmark.by_round import ByRound
from fedad_components.benchmark.results import FILE_NAME as RESULTS
from fedad_components.benchmark.results import Facts, Results, Row
from fedad_components.benchmark.supervised import SupervisedTrainer, supervised_theta
from fedad_components.benchmark.variants import PRESETS, Variant, configuration, find_variant
from fedad_components.benchmark.wbc import Laboratories, load
from fedad_components.config import FedADConfig
from fedad_components.evaluation.protocols import Protocol, evaluate
from fedad_components.evaluation.results import Evaluation
from fedad_components.fedsd.state import extractor_part, initial_state, load_extractor, save_extractor
from fedad_components.fedsd.trainer import LocalTrainer, choose_device
from fedad_components.files import make_private_dir, write_atomic, write_tensors
from fedad_components.records import FILE_NAME, append_record
from fedad_components.signals import exit_with_parent
from fedad_components.simulation import Simulation

CONFIG, EXTRACTOR, TRAINED, EVALUATION = "config.json", "extractor.safetensors", "trained.json", "evaluation.json"
HEADS = "heads"
"""Folder of each laboratory's private state, for `fedad diagnose`."""


class Trained(BaseModel):
    """What training cost and where its loss ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int
    images: int
    seconds: float
    bytes: int
    nt_xent: float | None = None
    nt_xent_chance: float | None = None


@dataclass(frozen=True)
class Run:
    """Which run, and where."""

    variant: str
    seed: int
    target: str
    preset: str
    data_dir: Path
    out: Path
    device: str = "auto"
    by_round: bool = False
    """Whether each laboratory is probed after every round, for Figure 12."""

    @property
    def folder(self) -> Path:
        """``<out>/runs/<variant>/<target>/<seed>``."""
        return self.out / "runs" / self.variant / self.target / str(self.seed)

    @property
    def records(self) -> Path:
        """One line for each finished round: how far it is."""
        return self.folder / FILE_NAME

    @property
    def rounds(self) -> int:
        """How many are to be trained."""
        return PRESETS[self.preset].rounds

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.variant}, seed {self.seed}"


def finished_rounds(records: Path, since: float) -> int:
    """Lines of ``rounds.jsonl``, if the run was worked on after the time ``since`` (Unix seconds)."""
    try:
        return records.read_bytes().count(b"\n") if records.stat().st_mtime >= since else 0
    except FileNotFoundError:
        return 0


def use_cores(workers: int) -> None:
    """In a worker's process: its share of the CPU's cores, for scikit-learn's libraries too.

    Threads that wait for each other in a busy loop made an evaluation six times as long on a loaded machine. The worker
    ends with the process that started it, even if that was killed: else it would train on, beside the next attempt.
    """
    exit_with_parent()
    threads = max(1, (os.cpu_count() or 1) // workers)
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def open_results(out: Path, preset: str, command: str) -> Results:
    """``results.json`` of the folder, which is made if there is none.

    Raises:
        ResultsError: if it is of another preset, or cannot be read.
    """
    path = out / RESULTS
    if path.exists():
        results = Results.load(path)
        results.facts.require(preset, path)
        return results
    out.mkdir(parents=True, exist_ok=True)
    results = Results(facts=facts_now(preset, command))
    results.write(path)
    return results


def facts_now(preset: str, command: str) -> Facts:
    """Of results that are begun now."""
    versions = {"fedad": __version__, "torch": torch.__version__}
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Facts(preset=preset, command=command, versions=versions, date=date)


def execute(run: Run) -> list[Row]:
    """Train, unless that is done, and evaluate; the run's rows.

    Raises:
        DemoDataError: if the images are not there.
        TrainingError, ProbeError: from training and evaluation.
    """
    variant, preset = find_variant(run.variant), PRESETS[run.preset]
    laboratories = load(run.data_dir, run.target, preset.image_size, run.out / "cache")
    run.folder.mkdir(parents=True, exist_ok=True)
    config = configuration(variant, preset, run.seed, len(laboratories.sources))
    if not (run.folder / TRAINED).exists():
        _train(run, variant, config, laboratories)
    trained = Trained.model_validate_json((run.folder / TRAINED).read_text(encoding="utf-8"))
    extractor = load_extractor(run.folder / EXTRACTOR).to(choose_device(run.device))
    evaluation = evaluate(
        extractor,
        [source.at_most(preset.probe_images or len(source.labels)) for source in laboratories.sources],
        laboratories.target,
        preset.image_size,
        [Protocol(name) for name in preset.protocols],
        seed=run.seed,
    )
    write_atomic(run.folder / EVALUATION, evaluation.model_dump_json(indent=1).encode("utf-8"))
    return _rows(run, trained, evaluation)


def _train(run: Run, variant: Variant, config: FedADConfig, laboratories: Laboratories) -> None:
    began = time.monotonic()
    run.records.unlink(missing_ok=True)  # of an attempt that was interrupted
    write_atomic(run.folder / CONFIG, json.dumps(config.to_json(), indent=1).encode("utf-8"))
    if variant.training == "none":
        theta, cost = initial_state(config), {"steps": 0, "images": 0, "bytes": 0}
    else:
        theta, cost = _trained(run, variant, config, laboratories)
    save_extractor(run.folder / EXTRACTOR, theta, config)
    trained = Trained(seconds=time.monotonic() - began, **cost)
    write_atomic(run.folder / TRAINED, trained.model_dump_json().encode("utf-8"))


def _trained(
    run: Run, variant: Variant, config: FedADConfig, laboratories: Laboratories
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    pooled = variant.training == "pooled"
    sites = [laboratories.pooled(PRESETS[run.preset].max_images, run.seed)] if pooled else laboratories.sources
    device = choose_device(run.device)
    trainers: dict[str, LocalTrainer]
    if variant.labels:
        classes = laboratories.classes
        theta = supervised_theta(config, len(classes))
        trainers = {site.name: SupervisedTrainer(config, site, classes, device) for site in sites}
    else:
        theta = initial_state(config)
        trainers = {site.name: LocalTrainer(config, site.images, site.name, device) for site in sites}
    simulation = Simulation(config, trainers, theta)
    probe = ByRound(run.folder, config, laboratories, device) if run.by_round else None
    for _ in range(config.federation.rounds):
        append_record(run.records, record := simulation.run_round())
        if probe:
            probe(record.round, simulation.theta)
    for site, trainer in trainers.items():
        if private := trainer.site_state():
            write_tensors(make_private_dir(run.folder / HEADS) / f"{site}.safetensors", private, {})
    records, training = simulation.records, config.training
    steps = sum(
        math.ceil(count / training.batch_size) * training.epochs
        for record in records
        for count in record.n_samples.values()
    )
    last = [losses.contrastive for losses in records[-1].losses.values() if losses.contrastive is not None]
    theta = extractor_part(simulation.theta) if variant.labels else simulation.theta
    return theta, {
        "steps": steps,
        "images": sum(len(trainer.chosen) for trainer in trainers.values()),
        "bytes": sum(sum(record.bytes.values()) for record in records) if variant.training == "federated" else 0,
        "nt_xent": None if config.method == "fedema" or not last else float(np.mean(last)),
        "nt_xent_chance": None if variant.labels else math.log(2 * training.batch_size - 1),
    }


def _rows(run: Run, trained: Trained, evaluation: Evaluation) -> list[Row]:
    return [
        Row(
            method=run.variant,
            seed=run.seed,
            target=run.target,
            protocol=result.name,
            transductive=result.transductive,
            metrics={name: value for name, value in result.scores.model_dump().items() if value is not None},
            **trained.model_dump(),
        )
        for result in evaluation.results
    ]
