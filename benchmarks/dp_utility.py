"""What differential privacy costs in usefulness: a probe on an unseen laboratory after training at several epsilons.

    FEDAD_DATA=/data python benchmarks/dp_utility.py --json dp_utility.json --figure dp_utility.svg

White blood cells from four laboratories, a fifth is never seen. The real trainers, the real mean and the real lambda_t
run in one process, without FLARE. Every run starts from the same weights: a few steps of FedSD on the package's own
public pictures, since `affine_and_head` trains no convolution. The noise multiplier is the one that the accountant
returns for each epsilon (adding or removing one bundle, PRV). "inf" clips likewise and adds no noise. Two rows without
training by the laboratories stand beside: the public weights themselves, and random ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fedad_components.config import FedADConfig  # noqa: E402
from fedad_components.demo.data import Labelled, prepare_embedded, prepare_wbc  # noqa: E402
from fedad_components.evaluation.features import extract_features, read_images  # noqa: E402
from fedad_components.evaluation.probe import linear_probe  # noqa: E402
from fedad_components.fedsd.model import build_extractor  # noqa: E402
from fedad_components.fedsd.state import initial_state, load_wire_state  # noqa: E402
from fedad_components.imaging.cache import cache_side  # noqa: E402
from fedad_components.imaging.catalogue import DataSet  # noqa: E402
from fedad_components.imaging.ingest import ingest  # noqa: E402
from fedad_components.privacy.accountant import noise_multiplier_for  # noqa: E402
from fedad_components.privacy.plan import sample_rate, steps_per_round  # noqa: E402
from fedad_components.privacy.trainer import PrivateTrainer, make_trainer  # noqa: E402
from fedad_components.privacy.units import assign_units  # noqa: E402
from fedad_components.simulation import Simulation  # noqa: E402

UNITS, UNIT_SIZE, UNITS_PER_STEP = 24, 8, 8
IMAGE_SIZE = 96
DELTA = 1e-5
EPSILONS = (math.inf, 8.0, 3.0, 1.0)
TRAINABLE = ("all", "affine_and_head")
NO_NOISE = 1e-12
"""Stands for epsilon = inf: the configuration takes no zero."""


def configuration(seed: int, rounds: int, learning_rate: float, **privacy: Any) -> FedADConfig:
    mode = {"mode": "dp_sgd", "units_per_step": UNITS_PER_STEP, "unit_size": UNIT_SIZE, "delta": DELTA, **privacy}
    return FedADConfig.parse(
        {
            "seed": seed,
            "model": {"image_size": IMAGE_SIZE, "norm": "group"},
            "training": {"epochs": 1, "learning_rate": learning_rate},
            "privacy": mode if privacy else {},
            "federation": {"rounds": rounds},
        }
    )


def images_of(entry: dict[str, Any], name: str, cache: Path) -> np.ndarray:
    """A site's images, read as a hospital's are, in an order drawn from their number alone."""
    images = ingest(DataSet(id=name, **entry), cache, cache_side(IMAGE_SIZE)).images
    return images[np.random.default_rng(0).permutation(len(images))[: UNITS * UNIT_SIZE]]


def public_weights(folder: Path, seed: int, steps: int) -> dict[str, torch.Tensor]:
    """theta after FedSD on the package's own pictures, in batches of 64."""
    embedded = prepare_embedded(folder / "public", seed)
    images = np.concatenate([images_of(entry, site, folder / "cache") for site, entry in embedded.sites.items()])
    config = configuration(seed, 1, 5e-4)
    epochs = max(1, steps // (len(images) // config.training.batch_size))
    config = config.model_copy(update={"training": config.training.model_copy(update={"epochs": epochs})})
    return make_trainer(config, images, "public").train_round(initial_state(config), 0.0, 0).update


def federate(
    config: FedADConfig, theta: dict[str, torch.Tensor], sites: dict[str, np.ndarray]
) -> dict[str, torch.Tensor]:
    """All rounds of an experiment, site after site; theta of the last."""
    names = [str(number) for number in range(UNITS * UNIT_SIZE)]
    trainers: dict[str, PrivateTrainer] = {}
    for site, images in sites.items():
        units = assign_units([None] * len(images), names[: len(images)], "bundle", UNITS, os.urandom(32))
        trainer = make_trainer(config, images, site, units=units, declared_units=UNITS)
        assert isinstance(trainer, PrivateTrainer)
        trainers[site] = trainer
    simulation = Simulation(config, trainers, theta)
    for _ in range(config.federation.rounds):
        simulation.run_round()
    return simulation.theta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--public-steps", type=int, default=60, help="steps of FedSD on public pictures beforehand")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time, a thread each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="plot F1 over epsilon, .svg or .png")
    arguments = parser.parse_args()
    root = os.environ.get("FEDAD_DATA")
    if not root:
        parser.error("set FEDAD_DATA to the folder that holds wbc/")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            rows += run(Path(root) / "wbc", Path(folder) / str(seed), seed, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n")
    if arguments.figure:
        plot(rows, arguments.figure)


def run(data_dir: Path, folder: Path, seed: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    data = prepare_wbc(data_dir, folder / "wbc", seed)
    sites = {site: images_of(entry, site, folder / "cache") for site, entry in data.sites.items()}
    train, test = (read_images(part.files, cache_side(IMAGE_SIZE)) for part in (data.unseen.train, data.unseen.test))
    start = public_weights(folder, seed, arguments.public_steps)
    steps = steps_per_round(1, UNITS, UNITS_PER_STEP) * arguments.rounds
    rate = sample_rate(UNITS, UNITS_PER_STEP)
    print(f"seed {seed}: {len(sites)} laboratories, {UNITS} bundles each, q = {rate:.3f}, {steps} steps", flush=True)

    def scored(trainable: str, epsilon: float | None, sigma: float | None, theta: dict[str, torch.Tensor]) -> dict:
        score = probe(theta, train, test, data.unseen.train, data.unseen.test, data.unseen.label)
        print(f"  {trainable:<18} epsilon {epsilon!s:>5}  sigma {sigma or 0:6.3f}  macro F1 {score:.3f}", flush=True)
        return {"seed": seed, "trainable": trainable, "epsilon": epsilon, "sigma": sigma, "f1": score}

    plain = configuration(seed, arguments.rounds, arguments.learning_rate)
    rows = [scored("random weights", None, None, initial_state(plain)), scored("public weights", None, None, start)]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        runs = {}
        for trainable in TRAINABLE:
            for epsilon in EPSILONS:
                sigma = noise_multiplier_for(epsilon, rate, steps, DELTA) if math.isfinite(epsilon) else None
                config = configuration(
                    seed,
                    arguments.rounds,
                    arguments.learning_rate,
                    trainable=trainable,
                    noise_multiplier=sigma or NO_NOISE,
                )
                runs[pool.submit(federate, config, start, sites)] = (trainable, epsilon if sigma else None, sigma)
        rows += [scored(*runs[done], done.result()) for done in as_completed(runs)]
    return rows


def probe(
    theta: dict[str, torch.Tensor],
    train: np.ndarray,
    test: np.ndarray,
    train_labels: Labelled,
    test_labels: Labelled,
    label: str,
) -> float:
    """Macro F1 of a linear probe on the unseen laboratory."""
    config = configuration(0, 1, 1e-3)
    extractor = build_extractor(config.model)
    load_wire_state(theta, extractor, norm=config.model.norm)
    features = (extract_features(extractor, images, IMAGE_SIZE) for images in (train, test))
    return linear_probe(next(features), train_labels.labels, next(features), test_labels.labels, label).f1


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """F1 over epsilon, one line for each choice of trainable weights, references as levels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    panel = figure.subplots()
    places = {epsilon: place for place, epsilon in enumerate(sorted(EPSILONS))}
    for trainable, marker in zip(TRAINABLE, "os", strict=True):
        scores = [
            [row["f1"] for row in rows if row["trainable"] == trainable and (row["epsilon"] or math.inf) == epsilon]
            for epsilon in places
        ]
        panel.plot(list(places.values()), [np.mean(values) for values in scores], marker=marker, label=trainable)
    for reference, style in (("public weights", "--"), ("random weights", ":")):
        panel.axhline(
            float(np.mean([row["f1"] for row in rows if row["trainable"] == reference])),
            linestyle=style,
            color="#8a97a5",
            label=reference,
        )
    panel.set_xticks(list(places.values()), ["∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in places])
    panel.set_xlabel(f"ε of a laboratory: adding or removing one bundle, δ = {DELTA:g}, PRV accountant")
    panel.set_ylabel("macro F1, unseen laboratory")
    panel.set_ylim(0, 1)
    panel.legend(frameon=False, ncols=2)
    figure.savefig(path)


if __name__ == "__main__":
    main()
