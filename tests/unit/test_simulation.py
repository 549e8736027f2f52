"""An experiment in one process, against a loop that is written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage import data

from fedad_components.atsa import ATSA
from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.simulation import Simulation, SimulationError


def images(count: int, start: int) -> np.ndarray:
    return np.stack([data.immunohistochemistry()[start + 20 * row :, :18][:18] for row in range(count)])


SITES = {"north": images(4, 0), "south": images(6, 200), "west": images(5, 350)}


def configuration(**federation: object) -> FedADConfig:
    config = FedADConfig.parse({"training": {"epochs": 1, "batch_size": 3}, "federation": federation})
    return config.model_copy(update={"model": config.model.model_copy(update={"image_size": 16})})


def trainers(config: FedADConfig) -> dict[str, LocalTrainer]:
    return {site: LocalTrainer(config, pixels, site, "cpu") for site, pixels in SITES.items()}


def test_two_rounds_equal_a_loop() -> None:
    config = configuration()
    simulation = Simulation(config, trainers(config))
    theta, lambda_t, local = initial_state(config), config.atsa.lambda_min, trainers(config)
    schedule = ATSA(config.atsa)
    for number in range(2):
        record = simulation.run_round()
        results = {site: trainer.train_round(theta, lambda_t, number) for site, trainer in local.items()}
        total = sum(len(pixels) for pixels in SITES.values())
        new = {
            name: sum(len(SITES[site]) / total * result.update[name].double() for site, result in results.items())
            for name in theta
        }
        parameters = [name for name in theta if "running" not in name]
        change = sum(float((new[name] - theta[name].double()).square().sum()) for name in parameters) ** 0.5
        delta = change / sum(float(theta[name].double().square().sum()) for name in parameters) ** 0.5
        assert record.instability == pytest.approx(delta, rel=1e-5)
        assert record.lambda_t == pytest.approx(lambda_t)
        lambda_t = schedule.update(delta)
        for name, tensor in simulation.theta.items():
            torch.testing.assert_close(tensor, new[name].float(), rtol=1e-5, atol=1e-6)
        theta = simulation.theta  # a last bit that differs grows in Adam's first steps


def test_the_wires_form_makes_no_difference_but_rounding() -> None:
    whole, difference = configuration(), configuration(update="difference")
    first, second = Simulation(whole, trainers(whole)), Simulation(difference, trainers(difference))
    assert first.run_round().bytes == second.run_round().bytes
    for name, tensor in first.theta.items():
        torch.testing.assert_close(tensor, second.theta[name], rtol=1e-5, atol=1e-6)


def test_only_the_drawn_sites_take_part() -> None:
    config = configuration(sites_per_round=2)
    simulation = Simulation(config, trainers(config))
    drawn = [simulation.run_round().participants for _ in range(4)]
    assert all(len(sites) == 2 for sites in drawn)
    assert len({tuple(sites) for sites in drawn}) > 1


def test_what_cannot_be_simulated_is_refused() -> None:
    config = configuration()
    with pytest.raises(SimulationError, match=r"1 site.* federation\.min_sites is 2"):
        Simulation(config, {"north": LocalTrainer(config, SITES["north"], "north", "cpu")})
    noisy = FedADConfig.parse(
        {"privacy": {"mode": "client_dp"}, "federation": {"update": "difference"}, "model": {"norm": "group"}}
    )
    with pytest.raises(SimulationError, match="'client_dp' needs a federation"):
        Simulation(noisy, trainers(config))
