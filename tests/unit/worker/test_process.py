"""The training process, for real: it trains, dies, hangs, refuses, and is started again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from skimage import data

from fedad_components.config import FedADConfig
from fedad_components.demo.tiles import write_png
from fedad_components.fedsd.state import initial_state, wire_spec
from fedad_components.records import Losses
from fedad_components.wire import Reason
from fedad_components.worker.process import (
    RoundOrder,
    TrainedRound,
    TrainingAborted,
    TrainingError,
    TrainingProcess,
    WorkerSettings,
)

pytestmark = pytest.mark.slow

CONFIG = FedADConfig.parse({"model": {"image_size": 32}, "training": {"epochs": 2, "batch_size": 4}})
THETA = initial_state(CONFIG)


def settings(folder: Path, **change: Any) -> WorkerSettings:
    values = {
        "config": CONFIG.to_json(),
        "site": "a",
        "job_id": "job",
        "catalogue": str(folder / "catalogue.yaml"),
        "state_dir": str(folder / "state"),
        "cache_dir": str(folder / "cache"),
        "ledger": str(folder / "privacy" / "ledger.sqlite"),
        "ledger_head": str(folder / "state" / "ledger_head.json"),
        "unit_key": str(folder / "privacy" / "unit_key"),
    }
    return WorkerSettings(**{**values, **change})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    picture = data.immunohistochemistry()
    write_png(folder / "images", [picture[row : row + 48, :48] for row in range(0, 384, 48)])
    entry = {"folder": str(folder / "images")}
    (folder / "catalogue.yaml").write_text(yaml.safe_dump({"version": 1, "data_sets": {"images": entry}}))
    return folder


@pytest.fixture
def worker(site: Path) -> Iterator[TrainingProcess]:
    process = TrainingProcess(settings(site), site / "log" / "worker.log")
    yield process
    process.stop()
    assert process.pid is None


def train(worker: TrainingProcess, number: int = 0, **options: Any) -> TrainedRound:
    return worker.train(THETA, RoundOrder(number, 0.1, rules={}), **{"timeout": 120, **options})


def train_until_it_fails(worker: TrainingProcess, number: int) -> None:
    while True:
        train(worker, number)


def test_rounds_share_one_process_and_its_death_costs_one_round(worker: TrainingProcess, site: Path) -> None:
    epochs: list[int] = []
    first = train(worker, 0, on_epoch=lambda epoch, losses: epochs.append(epoch))
    assert epochs == [0, 1]
    assert first.meta["n_samples"] == 8
    assert first.meta["losses"].keys() == set(Losses.model_fields)
    assert len(first.meta["ledger_head"]) == 64
    assert {name: tuple(tensor.shape) for name, tensor in first.theta_k.items()} == wire_spec(CONFIG)
    assert not torch.equal(first.theta_k["conv1.weight"], THETA["conv1.weight"])
    assert all(torch.equal(tensor, initial_state(CONFIG)[name]) for name, tensor in THETA.items())

    pid = worker.pid
    second = train(worker, 1)
    assert worker.pid == pid
    assert pid is not None

    threading.Timer(0.2, lambda: os.kill(pid, signal.SIGKILL)).start()
    with pytest.raises(TrainingError, match=r"killed by SIGKILL.*memory") as died:
        train_until_it_fails(worker, 2)
    assert died.value.reason is Reason.WORKER_DIED
    repeated = train(worker, 1)  # a new process, from the state with which round 1 began
    assert worker.pid != pid
    assert all(torch.equal(tensor, second.theta_k[name]) for name, tensor in repeated.theta_k.items())
    assert (site / "log" / "worker.log").stat().st_size > 0


def test_a_round_that_takes_too_long_is_ended(worker: TrainingProcess) -> None:
    with pytest.raises(TrainingError, match="round_timeout") as late:
        train(worker, timeout=0.5)
    assert late.value.reason is Reason.TIMED_OUT
    assert worker.pid is None


def test_an_aborted_job_ends_it(worker: TrainingProcess) -> None:
    started = time.monotonic()
    with pytest.raises(TrainingAborted):
        train(worker, should_stop=lambda: time.monotonic() - started > 1)
    assert worker.pid is None


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"catalogue": "/nowhere/catalogue.yaml"}, Reason.DATA_REFUSED, r"/nowhere/catalogue\.yaml"),
        ({"config": {"federation": {"data_set": "absent"}}}, Reason.DATA_REFUSED, "no data set 'absent'"),
    ],
)
def test_a_site_that_cannot_train_says_why(site: Path, change: dict[str, Any], reason: Reason, message: str) -> None:
    worker = TrainingProcess(settings(site, **change), site / "worker.log")
    with pytest.raises(TrainingError, match=message) as refused:
        train(worker)
    assert refused.value.reason is reason
    assert worker.pid is None


def test_a_site_with_fewer_units_than_a_step_uses_is_refused_by_its_data(site: Path) -> None:
    catalogue = site / "few.yaml"
    entry = {"folder": str(site / "images"), "units": 4}
    catalogue.write_text(yaml.safe_dump({"version": 1, "data_sets": {"images": entry}}))
    config = {"privacy": {"mode": "dp_sgd", "unit": "bundle", "units_per_step": 8}, "model": {"norm": "group"}}
    worker = TrainingProcess(settings(site, catalogue=str(catalogue), config=config), site / "worker.log")
    with pytest.raises(TrainingError, match="more than the 4 declared units") as refused:
        train(worker)
    assert refused.value.reason is Reason.DATA_REFUSED


def test_two_processes_cannot_share_a_sites_state(worker: TrainingProcess, site: Path) -> None:
    train(worker)
    other = TrainingProcess(settings(site), site / "other.log")
    with pytest.raises(TrainingError, match="locked by another process") as refused:
        train(other)
    assert refused.value.reason is Reason.STATE_REFUSED


def test_an_orphan_ends_itself(site: Path) -> None:
    """The job process is killed: its training process must give up lock and GPU."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:  # pragma: no cover - a job process that starts a worker and is then killed
        worker = TrainingProcess(settings(site), site / "orphan.log")
        worker._start()
        os.write(write, str(worker.pid).encode())
        time.sleep(60)
        os._exit(0)
    pid = int(os.read(read, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
