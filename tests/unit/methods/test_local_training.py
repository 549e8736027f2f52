"""Every method through the real trainer: what is on the wire, what stays, and that a restart changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from skimage import data
from torch import Tensor

from fedad_components.config import ConfigError, FedADConfig
from fedad_components.fedsd.model import two_layers
from fedad_components.fedsd.state import initial_state, wire_spec
from fedad_components.fedsd.trainer import METHOD_PREFIX, LocalTrainer
from fedad_components.methods import METHODS, MethodName
from fedad_components.methods.feddg import SPECTRA
from fedad_components.methods.fedema import ONLINE, SCALE, TARGET
from fedad_components.simulation import Simulation

ROOT = Path(__file__).parents[3]
NAMES = get_args(MethodName)


def images() -> np.ndarray:
    return np.stack([data.immunohistochemistry()[row : row + 18, :18] for row in range(0, 240, 40)])


def configuration(method: str, **sections: Any) -> FedADConfig:
    config = FedADConfig.parse({"method": method, "training": {"epochs": 1, "batch_size": 3}, **sections})
    return config.model_copy(update={"model": config.model.model_copy(update={"image_size": 16})})


def moved(theta: dict[str, Tensor], amount: float = 0.01) -> dict[str, Tensor]:
    """Another global model: as if other sites had contributed."""
    generator = torch.Generator().manual_seed(1)
    return {name: tensor + amount * torch.rand(tensor.shape, generator=generator) for name, tensor in theta.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", NAMES)
def test_a_round_sends_exactly_the_wires_tensors(method: str) -> None:
    config = configuration(method)
    trainer = LocalTrainer(config, images(), "north", "cpu")
    theta = initial_state(config)
    result = trainer.train_round(theta, 0.5 if method == "fedad" else 0.0, 0)
    assert {name: tuple(tensor.shape) for name, tensor in result.update.items()} == wire_spec(config)
    assert not same(result.update, theta)
    assert sum(result.losses[0][name] for name in ("contrastive", "alignment", "orthogonality")) == pytest.approx(
        result.losses[0]["total"]
    )


@pytest.mark.parametrize("method", NAMES)
def test_a_restart_between_rounds_changes_nothing(method: str) -> None:
    config = configuration(method)
    first, second = (LocalTrainer(config, images(), "north", "cpu") for _ in range(2))
    lambda_t = 0.5 if method == "fedad" else 0.0
    theta = moved(first.train_round(initial_state(config), lambda_t, 0).update)
    second.load_site_state(first.site_state())
    assert same(first.train_round(theta, lambda_t, 1).update, second.train_round(theta, lambda_t, 1).update)
    assert same(first.site_state(), second.site_state())


@pytest.mark.parametrize("method", ["fedprox_ssl", "moon", "fedema", "fedgala", "feddg", "feddis"])
def test_from_its_second_round_on_a_method_is_not_fedavg_ssl(method: str) -> None:
    updates = {}
    for name in (method, "fedavg_ssl"):
        config = configuration(name, baselines={"prox_mu": 10.0})
        trainer = LocalTrainer(config, images(), "north", "cpu")
        theta = moved(trainer.train_round(initial_state(config), 0.0, 0).update)
        updates[name] = trainer.train_round(theta, 0.0, 1).update
    assert not torch.equal(updates[method]["conv1.weight"], updates["fedavg_ssl"]["conv1.weight"])


def test_moon_keeps_the_model_that_it_sent() -> None:
    config = configuration("moon")
    trainer = LocalTrainer(config, images(), "north", "cpu")
    result = trainer.train_round(initial_state(config), 0.0, 0)
    assert same({METHOD_PREFIX + name: tensor for name, tensor in result.update.items()}, trainer.site_state())
    assert result.losses[0]["alignment"] == 0
    assert trainer.train_round(moved(result.update), 0.0, 1).losses[0]["alignment"] > 0


def test_fedema_starts_between_its_own_and_the_global_model() -> None:
    """At the first meeting mu = lambda_k d = tau; a site that is three times as far keeps three times as much."""
    config = configuration(
        "fedema", baselines={"ema_tau": 0.25, "ema_decay": 1.0}, training={"learning_rate": 1e-12, "batch_size": 3}
    )
    trainer = LocalTrainer(config, images(), "north", "cpu")
    own = trainer.train_round(initial_state(config), 0.0, 0).update
    assert SCALE not in trainer.method.kept  # type: ignore[union-attr]
    theta = moved(own)
    weights = [name for name in own if name.endswith(".weight")]
    second = trainer.train_round(theta, 0.0, 1).update
    for name in weights:
        torch.testing.assert_close(second[name], 0.25 * own[name] + 0.75 * theta[name], atol=1e-6, rtol=1e-5)
    further = {name: second[name] + 3 * (theta[name] - own[name]) for name in own}
    third = trainer.train_round(further, 0.0, 2).update
    for name in weights:
        torch.testing.assert_close(third[name], 0.75 * second[name] + 0.25 * further[name], atol=1e-5, rtol=1e-4)


def test_fedemas_target_follows_slowly_and_never_leaves() -> None:
    config = configuration("fedema", baselines={"ema_decay": 0.5})
    trainer = LocalTrainer(config, images(), "north", "cpu")
    start = initial_state(config)
    update = trainer.train_round(start, 0.0, 0).update
    kept = trainer.site_state()
    name = "conv1.weight"
    online, target = kept[METHOD_PREFIX + ONLINE + name], kept[METHOD_PREFIX + TARGET + name]
    assert torch.equal(online, update[name])
    assert 0 < float((target - start[name]).norm()) < float((online - start[name]).norm())
    assert not any(TARGET in name for name in update)


def test_feddg_passes_on_what_others_sent_and_nothing_is_averaged() -> None:
    config = configuration(
        "feddg",
        baselines={"dg_spectra": 4},
        federation={"update": "difference", "wire_dtype": "bfloat16"},
    )
    trainers = {
        site: LocalTrainer(config, shade, site, "cpu") for site, shade in (("a", images()), ("b", images() // 2))
    }
    simulation = Simulation(config, trainers)
    assert not simulation.theta[SPECTRA].any()
    simulation.run_round()
    assert not any(len(trainer.method._others) for trainer in trainers.values())  # type: ignore[union-attr]
    simulation.run_round()
    sent = {site: trainer.method.send()[SPECTRA] for site, trainer in trainers.items()}  # type: ignore[union-attr]
    first, second = sorted(sent, key=lambda site: sent[site][0, 0, 0, 0].item())
    for row, site in enumerate((first, second, first, second)):
        torch.testing.assert_close(simulation.theta[SPECTRA][row], sent[site][row], rtol=0.01, atol=0.001)
    for site, rows in ((first, (1, 3)), (second, (0, 2))):
        others = trainers[site].method._others  # type: ignore[union-attr]
        other = second if site == first else first
        torch.testing.assert_close(others, sent[other][list(rows)], rtol=0.01, atol=0.001)


def test_feddg_sends_the_same_few_spectra_in_each_round() -> None:
    config = configuration("feddg", baselines={"dg_spectra": 9, "dg_alpha": 0.2})
    trainer = LocalTrainer(config, images(), "north", "cpu")
    theta = initial_state(config)
    rounds = [trainer.train_round(theta, 0.0, number).update[SPECTRA] for number in range(2)]
    assert rounds[0].shape == (9, 3, 7, 7)  # frequencies up to 0.2 * 16 px
    assert torch.equal(*rounds)
    assert len(rounds[0].unique(dim=0)) == 6  # as many as there are images


def test_feddis_sends_shape_alone() -> None:
    config = configuration("feddis")
    trainer = LocalTrainer(config, images(), "north", "cpu")
    result = trainer.train_round(initial_state(config), 0.0, 0)
    parts = {name.split(".")[1] for name in result.update if name.startswith("head.")}
    assert parts == {"shape"}
    before = {name: tensor.clone() for name, tensor in trainer.site_state().items()}
    assert set(before) == {METHOD_PREFIX + name for name in two_layers(512, 128).state_dict()}
    assert result.losses[0]["alignment"] > 0
    trainer.train_round(moved(result.update), 0.0, 1)
    assert not same(before, trainer.site_state())  # it goes on from where it was, and is trained


@pytest.mark.parametrize("method", NAMES)
def test_a_method_brings_its_settings_and_takes_no_others(method: MethodName) -> None:
    config = FedADConfig.parse({"method": method})
    assert FedADConfig.parse(config.to_json()) == config  # as a job carries it
    for section, values in METHODS[method].settings.items():
        for name, value in values.items():
            assert getattr(getattr(config, section), name) == value
    if METHODS[method].settings:
        with pytest.raises(ConfigError, match=rf"loss.gamma is 2.0, and method '{method}' .* 0.0"):
            FedADConfig.parse({"method": method, "loss": {"gamma": 2.0}})


@pytest.mark.parametrize("method", [name for name in NAMES if name not in ("fedad", "fedavg_ssl")])
@pytest.mark.parametrize("mode", ["dp_sgd", "client_dp"])
def test_no_guarantee_is_stated_for_a_method_without_proof(method: str, mode: str) -> None:
    settings = {"method": method, "privacy": {"mode": mode}, "federation": {"update": "difference"}}
    if method != "fedbn_ssl":
        settings["model"] = {"norm": "group"}
    with pytest.raises(ConfigError, match=f"method '{method}' has no proof"):
        FedADConfig.parse(settings)


def test_the_documentation_names_every_method_its_source_and_what_it_shares() -> None:
    page = " ".join((ROOT / "docs" / "methods.md").read_text(encoding="utf-8").split())
    for name, card in METHODS.items():
        assert f"| `{name}` | {card.title} | {card.source} | {card.shares} |" in page
