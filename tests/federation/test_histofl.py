"""HistoFL as a job over mutual TLS, three hospitals: the weights of the simulation, the survey, refusals by policy."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file
from support import checkpoint_of, records_of

from fedad_components.algorithms import initial_state
from fedad_components.audit.event import Kind, parse
from fedad_components.demo.federation import SERVER, Federation
from fedad_components.flare.persistor import RESULTS_DIR
from fedad_components.flare.recipe import HistoFLRecipe, export_job
from fedad_components.imaging.catalogue import VERSION
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.site_bags import SiteBags, write_bags
from fedad_components.mil.trainer import BagTrainer
from fedad_components.simulation import Simulation

pytestmark = pytest.mark.federation

SITES = ["site-0", "site-1", "site-2"]
ROUNDS = 3
STAGES = {"Stage I": 0, "Stage II": 1, "Stage III": 2, "Stage IV": 3}


def data(path: str) -> Path:
    folder = os.environ.get("FEDAD_DATA")
    if not folder or not (Path(folder) / path).is_file():
        pytest.skip(f"needs FEDAD_DATA/{path}")
    return Path(folder) / path


def musk() -> dict[str, list[Bag]]:
    """MUSK1 (UCI): 92 molecules, each a bag of conformations of 166 features; every third of a class to a site."""
    content = np.load(data("mil/musk1.npz"), allow_pickle=False)
    features = (content["X"] - content["X"].mean(axis=0)) / content["X"].std(axis=0)
    bags: dict[str, list[Bag]] = {site: [] for site in SITES}
    turns = [0, 0]
    for number in np.unique(content["bag"]):
        rows = content["bag"] == number
        label = int(content["y"][rows][0])
        site = SITES[turns[label] % len(SITES)]
        turns[label] += 1
        bags[site].append(Bag(f"m{number}", f"m{number}", torch.from_numpy(features[rows]).float(), label))
    return bags


def kidneys() -> dict[str, list[Bag]]:
    """TCGA-KIRC: real outcomes at HistoFL's three sites. The features are synthetic, drawn around grade and stage."""
    generator = np.random.default_rng(0)
    bags: dict[str, list[Bag]] = {site: [] for site in SITES}
    with open(data("survival/tcga_kirc_cdr.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not row["os_days"]:
                continue
            features = generator.normal(size=(6, 16)).astype(np.float32)
            features[:, 0] += STAGES.get(row["stage"], 1)
            features[:, 1] += int(row["grade"][1]) if row["grade"][1:].isdigit() else 2
            outcome = Outcome(float(row["os_days"]), row["event"] == "1")
            site = row["histofl_site"].replace("_", "-")
            bags[site].append(Bag(row["case_id"], row["case_id"], torch.from_numpy(features), outcome))
    return bags


def configuration(experiment: str, data_set: str, **sections: Any) -> HistoFLConfig:
    return HistoFLConfig.parse(
        {
            "training": {"epochs": 1, "device": "cpu"},
            "stopping": {"patience": 0},
            **sections,
            "federation": {
                "experiment": experiment,
                "data_set": data_set,
                "rounds": ROUNDS,
                "min_sites": 3,
                "round_timeout": 300,
            },
        }
    )


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("histofl")
    hospitals = {"musk": musk(), "kidneys": kidneys()}
    with Federation(folder / "federation", SITES) as federation:
        for site in SITES:
            for name, bags in hospitals.items():
                write_bags(folder / site / name, bags[site], ("0", "1"))
            entries = {name: {"kind": "bags", "folder": str(folder / site / name)} for name in hospitals}
            federation.site_paths(site).catalogue.write_text(
                yaml.safe_dump({"version": VERSION, "data_sets": entries}), encoding="utf-8"
            )
            # MUSK1 is public, and its validation sets are of four molecules.
            federation.set_policy(site, data_sets={"musk": {"min_cell_count": 1}})
        federation.start()
        yield federation


def run(federation: Federation, config: HistoFLConfig, folder: Path) -> tuple[str, str]:
    job_id = federation.submit(export_job(HistoFLRecipe(config), folder / "jobs"))
    return job_id, federation.wait(job_id, timeout=400)


def counts_in(federation: Federation, party: str, kind: Kind, job_id: str) -> list[tuple[int | None, str, str]]:
    """Round, name and digest of all counts in a party's compliance log."""
    files = sorted(federation.site_paths(party).audit.glob("*.jsonl"))
    events = [parse(line).event for file in files for line in file.read_bytes().splitlines()]
    return [
        (event.round, name, digest)
        for event in events
        if event.event == kind and event.job_id == job_id
        for name, digest in (event.counts or {}).items()
    ]


def results_of(federation: Federation, job_id: str, folder: Path) -> Path:
    return federation.download(job_id, folder / "results") / "workspace" / RESULTS_DIR


def server_log(federation: Federation, job_id: str, folder: Path) -> str:
    return "".join(path.read_text() for path in federation.download(job_id, folder / "result").rglob("log.txt"))


def simulated(config: HistoFLConfig, hospitals: Mapping[str, list[Bag]]) -> Simulation:
    trainers = {site: BagTrainer(config, SiteBags.of(hospitals[site]), site) for site in SITES}
    simulation = Simulation(config, trainers)
    for _ in range(ROUNDS):
        simulation.run_round()
    return simulation


def compare(federation: Federation, config: HistoFLConfig, simulation: Simulation, results: Path) -> None:
    saved = load_file(checkpoint_of(federation, config.federation.experiment))
    theta = {name: tensor for name, tensor in saved.items() if not name.startswith("best.")}
    start = initial_state(config)
    assert theta.keys() == simulation.theta.keys()
    # Another order of summation changes a last bit, and Adam's first steps turn its sign into a whole step.
    assert distance(theta, simulation.theta) < distance(simulation.theta, start) / 4
    for there, here in zip(records_of(federation, config.federation.experiment), simulation.records, strict=True):
        for field in ("participants", "n_samples", "bytes", "lambda_t"):
            assert getattr(there, field) == getattr(here, field)
        assert (there.validation is None) == (here.validation is None)
        if there.validation and here.validation:
            assert there.validation.patients == here.validation.patients
            assert there.validation.value == pytest.approx(here.validation.value, abs=0.05)
    with safe_open(results / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(theta)
    assert (results / "last.safetensors").is_file()


def test_classification_gives_the_weights_of_the_simulation(federation: Federation, tmp_path: Path) -> None:
    config = configuration("musk", "musk", model={"in_features": 166}, counts={"min_cell": 1})
    job_id, status = run(federation, config, tmp_path)
    assert status == "FINISHED:COMPLETED"
    compare(federation, config, simulated(config, musk()), results_of(federation, job_id, tmp_path))


def test_survival_surveys_the_events_first(federation: Federation, tmp_path: Path) -> None:
    config = configuration(
        "kidneys",
        "kidneys",
        model={"in_features": 16},
        target={"kind": "survival", "bins": 4},
        counts={"min_cell": 5, "time_depth": 6},
    )
    job_id, status = run(federation, config, tmp_path)
    assert status == "FINISHED:COMPLETED"
    simulation = simulated(config, kidneys())
    results = results_of(federation, job_id, tmp_path)
    compare(federation, config, simulation, results)
    with safe_open(results / "model.safetensors", "pt") as file:
        edges = yaml.safe_load(file.metadata()["bin_edges"])
    assert edges == pytest.approx(simulation.bin_edges)
    assert len(edges) == 3
    received = counts_in(federation, SERVER, Kind.UPDATE_RECEIVED, job_id)
    sent = [counts for site in SITES for counts in counts_in(federation, site, Kind.RESULT_SENT, job_id)]
    assert sorted(sent) == sorted(received)
    assert [number for number, name, _ in sorted(sent) if name == "events"] == [0, 0, 0]
    assert {number for number, name, _ in sent if name == "validation"} == {1, 2}


def test_a_site_that_allows_no_such_count_is_named(federation: Federation, tmp_path: Path) -> None:
    config = configuration("refused", "kidneys", model={"in_features": 16}, target={"kind": "survival"})
    federation.set_policy(SITES[0], data_sets={"kidneys": {"min_cell_count": 50}, "musk": {"min_cell_count": 1}})
    try:
        job_id, status = run(federation, config, tmp_path)
    finally:
        federation.set_policy(SITES[0], data_sets={"musk": {"min_cell_count": 1}})
    assert status != "FINISHED:COMPLETED"
    assert "policy-refused: min_cell_count" in server_log(federation, job_id, tmp_path)


def test_dp_sgd_without_declared_units_is_refused(federation: Federation, tmp_path: Path) -> None:
    config = configuration("private", "musk", model={"in_features": 166}, privacy={"mode": "dp_sgd"})
    job_id, status = run(federation, config, tmp_path)
    assert status != "FINISHED:COMPLETED"
    assert "data-refused" in server_log(federation, job_id, tmp_path)
    assert records_of(federation, "private") == []


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(first[name] - second[name]).square().sum() for name in second]).sum().sqrt())
