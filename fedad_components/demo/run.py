"""The demo: a federation from provisioning to the probe, on this machine, and nothing left running afterwards."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml
from rich.console import Console
from torch import nn

from fedad_components import records
from fedad_components.algorithms.fedad import FedAD
from fedad_components.config import ConfigError, FedADConfig
from fedad_components.demo.data import DemoData, DemoDataError, Labelled, prepare_embedded, prepare_wbc
from fedad_components.demo.federation import Federation, FederationError
from fedad_components.demo.report import write_report
from fedad_components.demo.summary import UNTRAINED, Summary, build_summary
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.probe import ProbeResult, linear_probe
from fedad_components.fedsd.model import build_extractor
from fedad_components.fedsd.state import load_extractor
from fedad_components.files import write_atomic
from fedad_components.flare.controller import STATS_GROUP
from fedad_components.flare.persistor import RESULTS_DIR
from fedad_components.flare.provision import KitError
from fedad_components.flare.recipe import FedADRecipe, export_job
from fedad_components.imaging.cache import cache_side
from fedad_components.imaging.catalogue import VERSION as CATALOGUE_VERSION
from fedad_components.imaging.catalogue import DataSet
from fedad_components.imaging.ingest import ingest
from fedad_components.records import RoundRecord, read_records

SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"

DECLARED_UNITS = {"embedded": 16, "wbc": 128}
"""Bundles that each hospital's catalogue declares: about eight images each. A demo's choice, too few for a real one."""
UNITS_PER_STEP = 4
SIGMA = 1.0
STRICT_SIGMA = 4.0
"""What the policy of the last hospital asks for: it refuses the job, and the others go on without it."""


class DemoError(RuntimeError):
    """A demo that could not run; the message says why, and what to do."""


@dataclass(frozen=True)
class DemoOptions:
    """What `fedad demo` was asked for. ``data_dir`` holds the blood-cell set, for ``data = "wbc"``."""

    out: Path
    data: str = "embedded"
    rounds: int = 4
    image_size: int = 96
    seed: int = 0
    data_dir: Path | None = None
    privacy: Literal["none", "dp_sgd"] = "none"

    def config(self) -> FedADConfig:
        """The paper's form, with what two cores can do in minutes: one epoch, few images, small batches.

        Raises:
            DemoError: if an option is out of range.
        """
        settings: dict[str, dict[str, Any]] = {
            "model": {"image_size": self.image_size},
            "training": {"epochs": 1, "batch_size": 16, "max_images": 256},
            "federation": {
                "experiment": "demo",
                "rounds": self.rounds,
                "round_timeout": 1800,
                "wait_after_quorum": 600,
            },
        }
        if self.privacy == "dp_sgd":
            settings["model"]["norm"] = "group"
            settings["training"]["max_images"] = 0
            settings["privacy"] = {"mode": "dp_sgd", "noise_multiplier": SIGMA, "units_per_step": UNITS_PER_STEP}
        try:
            return FedADConfig.parse({"seed": self.seed, **settings})
        except ConfigError as error:
            raise DemoError(str(error)) from None


def run_demo(options: DemoOptions, console: Console) -> Summary:
    """Run the demo and write ``summary.json``, ``report.html`` and ``extractor.safetensors`` into ``options.out``.

    Raises:
        DemoError: if the folder is in use, images are missing, or the federation does not do what it should in time.
    """
    started = time.monotonic()
    config = options.config()
    out = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        raise DemoError(f"{out} is not empty: choose a new folder, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    try:
        console.print(f"1. images ({options.data})", highlight=False)
        data = _prepare(options, out / "data")
        console.print(f"2. kits for a server, {len(data.sites)} hospitals and an operator", highlight=False)
        with Federation(out / "federation", sites=list(data.sites)) as federation:
            for site, entry in data.sites.items():
                units = {"units": DECLARED_UNITS[options.data]} if options.privacy == "dp_sgd" else {}
                _register(federation.site_paths(site).catalogue, config.federation.data_set, entry | units)
            if options.privacy == "dp_sgd":
                strict = {"required_mode": "dp_sgd", "min_noise_multiplier": STRICT_SIGMA}
                federation.set_policy(list(data.sites)[-1], privacy=strict)
            console.print("3. starting them: FLARE processes, mutual TLS over loopback", highlight=False)
            federation.start()
            job = export_job(FedADRecipe(config), out / "jobs")
            job_id = federation.submit(job)
            console.print(f"4. job {job_id} submitted with the operator's kit", highlight=False)
            console.print("   the first round takes a minute or two: each site starts PyTorch", style="dim")
            progress = _Progress(federation, job_id, config, console)
            status = federation.wait(job_id, timeout=600 + 600 * options.rounds, on_poll=progress)
            console.print(f"5. {status}; downloading the result", highlight=False)
            results = _download(federation, job_id, out / "result")
            if status != "FINISHED:COMPLETED":
                console.print(federation.server_log(job_id)[-2000:], highlight=False, markup=False)
    except (DemoDataError, FederationError, KitError) as error:
        raise DemoError(str(error)) from error
    rounds = read_records(results / records.FILE_NAME) if results else []
    probe = None
    if results and rounds:
        console.print(f"6. linear probe on {data.unseen.site}, which no hospital has seen", highlight=False)
        shutil.copyfile(results / FedAD.model_file, out / FedAD.model_file)
        probe = _probe(config, out / FedAD.model_file, data, out / "data" / "cache")
    summary = build_summary(
        rounds,
        status=status,
        job_id=job_id,
        data=data,
        config=config,
        probe=probe,
        wall_s=time.monotonic() - started,
        notes=_privacy_notes(options, list(data.sites)),
    )
    summary.write(out / SUMMARY_FILE)
    write_report(summary, out / REPORT_FILE)
    if probe:
        untrained = probe.references[UNTRAINED]
        console.print(
            f"   {probe.label}: macro F1 {probe.f1:.3f} (untrained {untrained.f1:.3f}), {probe.n_test} test images",
            highlight=False,
        )
    for site, claim in summary.privacy.sites.items():
        console.print(f"   {site}: {claim}", highlight=False, soft_wrap=True)
    console.print(f"7. done in {summary.wall_s:.0f} s. Report: {out / REPORT_FILE}", highlight=False, soft_wrap=True)
    return summary


def _privacy_notes(options: DemoOptions, sites: list[str]) -> list[str]:
    if options.privacy == "none":
        return []
    return [
        f"{sites[-1]}'s policy requires a noise multiplier of at least {STRICT_SIGMA:g}, and the job has {SIGMA:g}: it "
        f"refuses, by the rule's name, and the others go on. A few rounds on a few hundred images learn next to "
        f"nothing under this noise: read the epsilons, not the score."
    ]


def _prepare(options: DemoOptions, folder: Path) -> DemoData:
    if options.data == "embedded":
        return prepare_embedded(folder, options.seed)
    if options.data == "wbc" and options.data_dir:
        return prepare_wbc(options.data_dir, folder, options.seed)
    raise DemoError(f"--data {options.data}: expected embedded, or wbc with the folder of its images")


def _register(catalogue: Path, data_set: str, entry: dict[str, Any]) -> None:
    _write_yaml(catalogue, {"version": CATALOGUE_VERSION, "data_sets": {data_set: entry}})


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, yaml.safe_dump(content, sort_keys=False).encode("utf-8"))


def _download(federation: Federation, job_id: str, dest: Path) -> Path | None:
    """The folder with ``rounds.jsonl`` in the downloaded result; None if the job did not finish a round."""
    dest.mkdir(exist_ok=True)
    federation.download(job_id, dest)
    found = next(dest.rglob(f"{RESULTS_DIR}/{records.FILE_NAME}"), None)
    return found.parent if found else None


def _probe(config: FedADConfig, extractor: Path, data: DemoData, cache_dir: Path) -> ProbeResult:
    """A linear probe on the trained extractor's features, and beside it one on an untrained extractor's."""
    train, test = data.unseen.train, data.unseen.test
    train_images = _pixels(train, "unseen-train", cache_dir, config)
    test_images = _pixels(test, "unseen-test", cache_dir, config)

    def probe(module: nn.Module) -> ProbeResult:
        train_x, test_x = (
            extract_features(module, images, config.model.image_size) for images in (train_images, test_images)
        )
        return linear_probe(train_x, train.labels, test_x, test.labels, data.unseen.label)

    untrained = probe(build_extractor(config.model, config.seed))
    return probe(load_extractor(extractor)).compared_with(UNTRAINED, untrained)


def _pixels(split: Labelled, name: str, cache_dir: Path, config: FedADConfig) -> npt.NDArray[np.uint8]:
    """The split's images ``(n, S, S, 3)`` in its order, read as a hospital's images are."""
    folder = Path(os.path.commonpath([path.parent for path in split.files]))
    paths = tuple(str(path.relative_to(folder)) for path in split.files)
    data_set = DataSet(id=name, folder=folder, files=paths, max_rejected=1.0)
    cached = ingest(data_set, cache_dir, cache_side(config.model.image_size))
    row = {path: number for number, path in enumerate(cached.files)}
    if missing := [path for path in paths if path not in row]:
        raise DemoError(f"{len(missing)} images of the unseen site cannot be used: {cached.account.summary()}")
    return np.stack([cached.images[row[path]] for path in paths])


class _Progress:
    """Prints a line for each finished round, from what FLARE's ``show_stats`` tells the operator."""

    def __init__(self, federation: Federation, job_id: str, config: FedADConfig, console: Console) -> None:
        self._federation, self._job_id, self._config, self._console = federation, job_id, config, console
        self._printed = 0
        self._line = ""

    def __call__(self, status: str) -> None:
        if status != "RUNNING":
            self._say(f"   {status.lower()}")
            return
        stats = self._stats()
        for record in map(RoundRecord.model_validate, stats.get("records", [])[self._printed :]):
            # Not as Rich's markup, which would take a refusal in its brackets for a style.
            line = _round_line(record, self._config.federation.rounds)
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)
            self._printed += 1
        if targets := stats.get("targets"):
            self._say(
                f"   round {_of(stats['current_round'], stats['rounds'])}: lambda_t {stats['lambda_t']:.3f}, "
                f"{len(stats['answered'])} of {len(targets)} sites answered"
            )

    def _say(self, line: str) -> None:
        if line != self._line and self._console.is_terminal:
            self._console.print(line, style="dim", highlight=False)
        self._line = line

    def _stats(self) -> dict[str, Any]:
        try:
            reply = self._federation.session().show_stats(self._job_id, "server")
        except Exception:  # a job that starts or ends has no stats; FLARE raises several kinds then
            return {}
        return reply.get("server", {}).get(STATS_GROUP, {})


def _of(number: int, rounds: int) -> str:
    """A round by its number, from 0 as everywhere else, and the last one."""
    return f"{number} of 0-{rounds - 1}"


def _round_line(record: RoundRecord, rounds: int) -> str:
    losses = "  ".join(f"{site} {loss.total:.3f}" for site, loss in record.losses.items() if loss.total is not None)
    told = f"loss {losses}" if losses else f"{len(record.participants)} updates, without losses or counts"
    refused = "".join(f"  [{site}: {reason}]" for site, reason in record.refused.items())
    return (
        f"   round {_of(record.round, rounds)}: lambda_t {record.lambda_t:.3f}, Delta {record.instability:.4f}, "
        f"{record.seconds:.0f} s; {told}{refused}"
    )
