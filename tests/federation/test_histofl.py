"""HistoFL as a job over mutual TLS, three hospitals: the weights of the simulation, the survey, privacy, refusals."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import log_tampering as tampering
import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file
from support import checkpoint_of, records_of

from fedad_components.algorithms import initial_state
from fedad_components.audit.event import Kind, parse
from fedad_components.audit.findings import FindingKind
from fedad_components.audit.verify import verify
from fedad_components.demo.federation import SERVER, Federation
from fedad_components.flare.persistor import RESULTS_DIR
from fedad_components.flare.recipe import HistoFLRecipe, export_job
from fedad_components.imaging.catalogue import VERSION
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.site_bags import SiteBags, write_bags
from fedad_components.mil.trainer import BagTrainer
from fedad_components.privacy.accountant import Charge, epsilon_unit
from fedad_components.privacy.ledger import Ledger
from fedad_components.privacy.plan import sample_rate, steps_per_round
from fedad_components.simulation import Simulation

pytestmark = pytest.mark.federation

SITES = ["site-0", "site-1", "site-2"]
ROUNDS = 3
UNITS = 200
"""Declared, of each hospital's kidney patients."""
PUBLIC = {name: {"min_cell_count": 1} for name in ("musk", "spread")}
"""Rules of data sets that are public, whose validation parts have few of a kind."""
GROUPS = ("local", "regional", "distant")
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


def spread() -> dict[str, list[Bag]]:
    """The same features, with how far the tumour has spread as the class: three of them."""
    with open(data("survival/tcga_kirc_cdr.csv"), encoding="utf-8", newline="") as file:
        stages = {row["case_id"]: STAGES.get(row["stage"], 1) for row in csv.DictReader(file)}
    return {
        site: [Bag(bag.id, bag.patient, bag.features, max(0, stages[bag.id] - 1)) for bag in bags]
        for site, bags in kidneys().items()
    }


def configuration(experiment: str, data_set: str, rounds: int = ROUNDS, **sections: Any) -> HistoFLConfig:
    return HistoFLConfig.parse(
        {
            "training": {"epochs": 1, "device": "cpu"},
            "stopping": {"patience": 0},
            **sections,
            "federation": {
                "experiment": experiment,
                "data_set": data_set,
                "rounds": rounds,
                "min_sites": 3,
                "round_timeout": 300,
            },
        }
    )


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("histofl")
    hospitals = {"musk": musk(), "kidneys": kidneys(), "spread": spread()}
    with Federation(folder / "federation", SITES) as federation:
        for site in SITES:
            for name, bags in hospitals.items():
                write_bags(folder / site / name, bags[site], GROUPS if name == "spread" else ("0", "1"))
            entries: dict[str, Any] = {
                name: {"kind": "bags", "folder": str(folder / site / name)} for name in hospitals
            }
            # The ledger refuses an epsilon for a data set that trained without one.
            entries["protected"] = {**entries["kidneys"], "units": UNITS}
            federation.site_paths(site).catalogue.write_text(
                yaml.safe_dump({"version": VERSION, "data_sets": entries}), encoding="utf-8"
            )
            federation.set_policy(site, data_sets=PUBLIC)
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


def changed_counts_are_found(federation: Federation, copies: Path) -> None:
    """The parties' logs agree on the counts, and the server's does not any more when one is changed in it."""
    for party in (SERVER, *SITES):
        shutil.copytree(federation.site_paths(party).audit, copies / party)
    root = federation.kit(SITES[0]) / "startup" / "rootCA.pem"
    assert not [finding for finding in verify([copies], root).findings if finding.kind is FindingKind.COUNTS_DIFFER]
    tampering.rewrite(copies / SERVER, tampering.other_counts, chain=True)
    (found,) = [finding for finding in verify([copies], root).findings if finding.kind is FindingKind.COUNTS_DIFFER]
    assert "'validation': sent" in found.detail
    assert "of round 0" in found.detail
    assert "of 'site-" in found.detail


def test_classification_gives_the_weights_of_the_simulation(federation: Federation, tmp_path: Path) -> None:
    config = configuration("musk", "musk", model={"in_features": 166}, counts={"min_cell": 1})
    job_id, status = run(federation, config, tmp_path)
    assert status == "FINISHED:COMPLETED"
    compare(federation, config, simulated(config, musk()), results_of(federation, job_id, tmp_path))
    changed_counts_are_found(federation, tmp_path / "copies")


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
    federation.set_policy(SITES[0], data_sets={**PUBLIC, "kidneys": {"min_cell_count": 50}})
    try:
        job_id, status = run(federation, config, tmp_path)
    finally:
        federation.set_policy(SITES[0], data_sets=PUBLIC)
    assert status != "FINISHED:COMPLETED"
    assert "policy-refused: min_cell_count" in server_log(federation, job_id, tmp_path)


def test_dp_sgd_without_declared_units_is_refused(federation: Federation, tmp_path: Path) -> None:
    config = configuration("private", "musk", model={"in_features": 166}, privacy={"mode": "dp_sgd"})
    job_id, status = run(federation, config, tmp_path)
    assert status != "FINISHED:COMPLETED"
    assert "data-refused" in server_log(federation, job_id, tmp_path)
    assert records_of(federation, "private") == []


def ledger_of(federation: Federation, site: str) -> Ledger:
    paths = federation.site_paths(site)
    return Ledger(paths.ledger, paths.ledger_head)


def test_dp_sgd_protects_patients_and_no_count_leaves(federation: Federation, tmp_path: Path) -> None:
    """Survival: the bins are given, as a survey would count events."""
    sigma, units_per_step = 2.0, 50
    config = configuration(
        "protected",
        "protected",
        model={"in_features": 16},
        target={"kind": "survival", "bins": 4, "edges": [365.0, 1000.0, 2000.0]},
        privacy={"mode": "dp_sgd", "noise_multiplier": sigma, "units_per_step": units_per_step},
    )
    job_id, status = run(federation, config, tmp_path)
    assert status == "FINISHED:COMPLETED"
    steps = steps_per_round(1, UNITS, units_per_step)
    for number, record in enumerate(records_of(federation, "protected")):
        assert (record.n_samples, record.losses, record.validation) == ({}, {}, None)
        spent = epsilon_unit([Charge(sigma, sample_rate(UNITS, units_per_step), steps * (number + 1))], 1e-5)
        assert record.claims.keys() == set(SITES)
        for site, claim in record.claims.items():
            assert (claim.unit, claim.units, claim.steps) == ("patient", UNITS, steps * (number + 1)), site
            assert claim.epsilon_unit == pytest.approx(spent, rel=1e-6)
            assert "adding or removing one patient" in str(claim)
    assert len(records_of(federation, "protected")) == ROUNDS
    fedad = str(Path(sys.executable).parent / "fedad")
    for site in SITES:
        entries = [row.entry for row in ledger_of(federation, site).entries("protected")]
        assert [(entry.mode, entry.unit, entry.round) for entry in entries] == [
            ("dp_sgd", "patient", number) for number in range(ROUNDS)
        ]
        assert counts_in(federation, site, Kind.RESULT_SENT, job_id) == []
    command = [fedad, "privacy", "ledger", "verify", "--kit", str(federation.kit(SITES[0]))]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    assert counts_in(federation, SERVER, Kind.UPDATE_RECEIVED, job_id) == []
    before, after = initial_state(config), load_file(checkpoint_of(federation, "protected"))
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_weight_noise_changes_what_leaves_and_claims_nothing(federation: Federation, tmp_path: Path) -> None:
    alpha = 0.1
    sections: dict[str, Any] = {"model": {"in_features": 166}, "counts": {"min_cell": 1}}
    noisy = configuration(
        "noisy", "musk", rounds=1, privacy={"mode": "weight_noise", "weight_noise_alpha": alpha}, **sections
    )
    _, status = run(federation, noisy, tmp_path)
    assert status == "FINISHED:COMPLETED"
    without = configuration("noisy", "musk", rounds=1, **sections)
    hospitals = musk()
    simulation = Simulation(without, {site: BagTrainer(without, SiteBags.of(hospitals[site]), site) for site in SITES})
    simulation.run_round()
    saved = load_file(checkpoint_of(federation, "noisy"))
    # The mean of three sites' noise, alpha std(W) each.
    name = "embed.0.weight"
    added = (saved[name] - simulation.theta[name]).std() / simulation.theta[name].std()
    assert float(added) == pytest.approx(alpha / len(SITES) ** 0.5, rel=0.1)
    (record,) = records_of(federation, "noisy")
    assert record.claims == {}
    assert record.n_samples
    for site in SITES:
        (row,) = [row for row in ledger_of(federation, site).entries("musk") if row.entry.experiment == "noisy"]
        assert (row.entry.mode, row.epsilon_unit) == ("weight_noise", None)


def test_three_classes_end_when_the_validation_gets_no_better(federation: Federation, tmp_path: Path) -> None:
    rounds, patience = 12, 1
    config = configuration(
        "spread",
        "spread",
        rounds=rounds,
        model={"in_features": 16},
        target={"classes": list(GROUPS)},
        training={"epochs": 2, "learning_rate": 1e-3, "device": "cpu"},
        counts={"min_cell": 1, "score_depth": 4},
        stopping={"patience": patience, "min_rounds": 1},
    )
    job_id, status = run(federation, config, tmp_path)
    assert status == "FINISHED:COMPLETED"
    records = records_of(federation, "spread")
    values = [record.validation.value for record in records if record.validation]
    assert len(values) == len(records) < rounds
    best = max(range(len(values)), key=lambda number: values[number] or 0.0)
    assert len(records) == best + patience + 1
    assert (values[best] or 0.0) > 0.6  # of chance .5; the features were drawn around the stage
    with safe_open(results_of(federation, job_id, tmp_path) / "model.safetensors", "pt") as file:
        assert file.metadata()["rounds"] == str(best)
        assert file.get_tensor("classifier.weight").shape[0] == len(GROUPS)


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(first[name] - second[name]).square().sum() for name in second]).sum().sqrt())
