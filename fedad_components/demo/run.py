"""``fedad demo``: FedAD from provisioning to the probe, on this machine."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console
from torch import nn

from fedad_components.algorithms.fedad import FedAD
from fedad_components.config import ConfigError, FedADConfig
from fedad_components.demo.data import DemoData, DemoDataError, Labelled, prepare_embedded, prepare_wbc
from fedad_components.demo.report import write_report
from fedad_components.demo.steps import REPORT_FILE, SUMMARY_FILE, DemoError, Hospital, federate, new_folder, say
from fedad_components.demo.summary import UNTRAINED, Summary, build_summary
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.probe import ProbeResult, linear_probe
from fedad_components.fedsd.model import build_extractor
from fedad_components.fedsd.state import load_extractor
from fedad_components.flare.recipe import FedADRecipe
from fedad_components.imaging.cache import cache_side
from fedad_components.imaging.catalogue import DataSet
from fedad_components.imaging.ingest import ingest
from fedad_components.records import RoundRecord

DECLARED_UNITS = {"embedded": 16, "wbc": 128}
"""Bundles that each hospital's catalogue declares: about eight images each. A demo's choice, too few for a real one."""
UNITS_PER_STEP = 4
SIGMA = 1.0
STRICT_SIGMA = 4.0
"""What the policy of the last hospital asks for: it refuses the job, and the others go on without it."""


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
    out = new_folder(options.out)
    say(console, f"1. images ({options.data})")
    try:
        data = _prepare(options, out / "data")
    except DemoDataError as error:
        raise DemoError(str(error)) from error
    done = federate(out, FedADRecipe(config), _hospitals(options, data), console, _told)
    probe = None
    if done.results and done.rounds:
        say(console, f"6. linear probe on {data.unseen.site}, which no hospital has seen")
        shutil.copyfile(done.results / FedAD.model_file, out / FedAD.model_file)
        probe = _probe(config, out / FedAD.model_file, data, out / "data" / "cache")
    summary = build_summary(
        done.rounds,
        status=done.status,
        job_id=done.job_id,
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
        say(
            console,
            f"   {probe.label}: macro F1 {probe.f1:.3f} (untrained {untrained.f1:.3f}), {probe.n_test} test images",
        )
    for site, claim in summary.privacy.sites.items():
        say(console, f"   {site}: {claim}")
    say(console, f"7. done in {summary.wall_s:.0f} s. Report: {out / REPORT_FILE}")
    return summary


def _hospitals(options: DemoOptions, data: DemoData) -> dict[str, Hospital]:
    """Under dp_sgd with declared units, and the last one with a policy that the job is below."""
    private = options.privacy == "dp_sgd"
    units = {"units": DECLARED_UNITS[options.data]} if private else {}
    strict = {"privacy": {"required_mode": "dp_sgd", "min_noise_multiplier": STRICT_SIGMA}} if private else {}
    last = list(data.sites)[-1]
    return {site: Hospital(entry | units, strict if site == last else {}) for site, entry in data.sites.items()}


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


def _told(record: RoundRecord) -> str:
    losses = "  ".join(f"{site} {loss.total:.3f}" for site, loss in record.losses.items() if loss.total is not None)
    told = f"loss {losses}" if losses else f"{len(record.participants)} updates, without losses or counts"
    return f"lambda_t {record.lambda_t:.3f}, Delta {record.instability:.4f}, {record.seconds:.0f} s; {told}"
