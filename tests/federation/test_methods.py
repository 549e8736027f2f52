"""Methods beside FedAD as jobs over mutual TLS: they give the weights that the same experiment gives in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import checkpoint_of, give_images, job_of, records_of, small_config

from fedad_components.config import FedADConfig
from fedad_components.demo.federation import Federation
from fedad_components.fedsd.state import initial_state
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.imaging.cache import cache_side
from fedad_components.imaging.catalogue import Catalogue
from fedad_components.imaging.ingest import ingest
from fedad_components.simulation import Simulation

pytestmark = pytest.mark.federation

SITES = ["alpha", "beta"]
ROUNDS = 3
"""The first in which what a method keeps at a site meets a global model that others have changed is the second."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("methods")
    with Federation(folder / "federation", SITES) as federation:
        give_images(federation, folder / "images")
        for site in SITES:
            federation.set_policy(site, allow_aggregated_head=True, allow_shared_spectra=True)
        federation.start()
        yield federation


def simulated(config: FedADConfig, federation: Federation, cache: Path) -> Simulation:
    trainers = {}
    for site in SITES:
        data_set = Catalogue.load(federation.site_paths(site).catalogue).data_set(config.federation.data_set)
        images = ingest(data_set, cache / site, cache_side(config.model.image_size)).images
        trainers[site] = LocalTrainer(config, images, site)
    simulation = Simulation(config, trainers)
    for _ in range(ROUNDS):
        simulation.run_round()
    return simulation


@pytest.mark.parametrize("method", ["fedad", "moon", "fedema", "fedgala", "feddg", "feddis"])
def test_a_federation_gives_the_weights_of_the_simulation(federation: Federation, tmp_path: Path, method: str) -> None:
    config = FedADConfig.parse(small_config(method, ROUNDS).to_json() | {"method": method, "loss": {}, "atsa": {}})
    job_id = federation.submit(job_of(config, tmp_path / "jobs"))
    assert federation.wait(job_id, timeout=300) == "FINISHED:COMPLETED"
    simulation = simulated(config, federation, tmp_path / "cache")
    theta, start = load_file(checkpoint_of(federation, method)), initial_state(config)
    assert theta.keys() == simulation.theta.keys()
    # Another order of summation changes a last bit, and Adam's first steps turn its sign into a whole step.
    assert distance(theta, simulation.theta) < distance(simulation.theta, start) / 4
    for there, here in zip(records_of(federation, method), simulation.records, strict=True):
        for field in ("participants", "n_samples", "bytes"):
            assert getattr(there, field) == getattr(here, field)
        assert there.lambda_t == pytest.approx(here.lambda_t, rel=1e-2)
        assert there.instability == pytest.approx(here.instability, rel=0.1)
        for site in SITES:
            assert there.losses[site].model_dump() == pytest.approx(here.losses[site].model_dump(), rel=0.1, abs=0.02)


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(first[name] - second[name]).square().sum() for name in first]).sum().sqrt())
