"""Supervised FedAvg: what it descends, and that the labels' classifier travels and is averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage import data
from torch.nn import functional as F

from fedad_components.benchmark.supervised import SupervisedTrainer, build_classifier, supervised_theta
from fedad_components.config import FedADConfig
from fedad_components.evaluation.features import whole_view
from fedad_components.evaluation.images import LabelledImages
from fedad_components.fedsd.model import build_extractor
from fedad_components.simulation import Simulation

CLASSES = ["left", "middle", "right"]
CONFIG = FedADConfig.parse(
    {
        "model": {"image_size": 32, "norm": "group"},
        "loss": {"gamma": 0.0},
        "atsa": {"schedule": "fixed", "lambda_fixed": 0.0},
        "training": {"epochs": 1, "batch_size": 4, "max_images": 4},
    }
)


def site(name: str, count: int) -> LabelledImages:
    """Images that are their own mirror image, so that a mirrored view is the same."""
    halves = [data.immunohistochemistry()[20 * row : 20 * row + 32, :16] for row in range(count)]
    images = np.stack([np.concatenate([half, half[:, ::-1]], axis=1) for half in halves])
    return LabelledImages(name, images, [CLASSES[row % 2] for row in range(count)])


def test_a_site_descends_the_cross_entropy_of_its_chosen_images() -> None:
    north = site("north", 6)
    trainer = SupervisedTrainer(CONFIG, north, CLASSES, torch.device("cpu"))
    result = trainer.train_round(supervised_theta(CONFIG, 3), 0.0, 0)
    rows = trainer.chosen.tolist()
    assert len(rows) == 4
    model = torch.nn.Sequential(build_extractor(CONFIG.model, CONFIG.seed), build_classifier(CONFIG, 3))
    logits = model(whole_view(north.images[rows], 32, torch.device("cpu")))
    targets = torch.tensor([CLASSES.index(north.labels[row]) for row in rows])
    assert result.losses[0]["total"] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-4)
    assert {name for name in result.update if name.startswith("head.")} == {"head.weight", "head.bias"}


def test_the_sites_classifiers_are_averaged() -> None:
    sites = [site("north", 6), site("south", 3)]
    trainers = {images.name: SupervisedTrainer(CONFIG, images, CLASSES, torch.device("cpu")) for images in sites}
    simulation = Simulation(CONFIG, trainers, supervised_theta(CONFIG, 3))
    record = simulation.run_round()
    expected = (4 * trainers["north"].head.weight + 3 * trainers["south"].head.weight) / 7
    torch.testing.assert_close(simulation.theta["head.weight"], expected.detach(), atol=1e-6, rtol=1e-6)
    assert record.n_samples == {"north": 4, "south": 3}
    assert all(losses.contrastive is None and losses.total for losses in record.losses.values())
