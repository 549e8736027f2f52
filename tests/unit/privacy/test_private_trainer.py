"""Which trainer a configuration gets, and what it refuses. The theorem's conditions are in test_theorem.py."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from private_training import UNITS, configuration, make_trainer, start, tiles

from fedad_components.config import PrivacyConfig
from fedad_components.fedsd.trainer import LocalTrainer, TrainingError
from fedad_components.privacy import trainer as trainers
from fedad_components.privacy.trainer import PrivateTrainer
from fedad_components.privacy.units import UnitsError

MODES = get_args(PrivacyConfig.model_fields["mode"].annotation)


@pytest.mark.parametrize("mode", MODES)
def test_only_dp_sgd_gets_the_private_trainer_and_always_does(mode: str) -> None:
    config = configuration(privacy={"mode": mode}, federation={"update": "difference"})
    made = trainers.make_trainer(config, tiles(), "north", units=UNITS, declared_units=3, device="cpu")
    assert type(made) is (PrivateTrainer if mode == "dp_sgd" else LocalTrainer)
    other = LocalTrainer if mode == "dp_sgd" else make_trainer
    arguments = (config, tiles(), "north") if mode == "dp_sgd" else (config,)
    with pytest.raises(TrainingError, match=f"does not train under privacy.mode '{mode}'"):
        other(*arguments)  # type: ignore[operator]


@pytest.mark.parametrize("missing", [{"units": UNITS}, {"declared_units": 3}, {}])
def test_no_units_no_training(missing: dict) -> None:
    with pytest.raises(UnitsError, match=r"site north: .*declare `units: N`"):
        trainers.make_trainer(configuration(), tiles(), "north", device="cpu", **missing)


@pytest.mark.parametrize("units", [{0: [0, 1], 1: [1, 2]}, {0: [0, 0]}, {0: [9]}, {0: [-1]}])
def test_units_that_are_no_partition_are_refused(units: dict) -> None:
    with pytest.raises(UnitsError, match="disjoint"):
        make_trainer(configuration(), units={number: np.array(indices) for number, indices in units.items()})


def test_public_negatives_need_public_images() -> None:
    config = configuration(privacy={"negatives": "public", "public_data_set": "open"})
    for public_images in (None, tiles()[:0]):
        with pytest.raises(UnitsError, match="public_data_set 'open' has no images"):
            make_trainer(config, public_images=public_images)


def test_steps_follow_from_declared_numbers_alone() -> None:
    config = configuration(training={"epochs": 3}, privacy={"units_per_step": 8})
    trainer = make_trainer(config, declared_units=625)
    assert trainer.steps_per_round == 3 * 78
    assert trainer.sample_rate == pytest.approx(0.0128, abs=2**-24)


def test_a_site_without_images_trains_on_noise() -> None:
    """To refuse would tell that there are none."""
    trainer = make_trainer(configuration(1.0), tiles()[:0], units={})
    theta = start(trainer.config)
    update = trainer.train_round(theta, 0.5, 0).update
    assert not (update["bn1.weight"] == theta["bn1.weight"]).all()
