"""What is killed in the middle of a round: a training process, a site, the server. The experiment goes on."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from support import checkpoint_of, give_images, job_of, records_of, small_config, until

from fedad_components.demo.federation import Federation

pytestmark = pytest.mark.federation

SITES = ["alpha", "beta", "gamma"]
ROUND_SECONDS = 120
SLOW = {"epochs": 3}  # a round long enough to be hit in its middle


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("faults")
    with Federation(folder / "federation", SITES) as running:
        give_images(running, folder / "images")
        running.start()
        yield running
        running.stop()
        assert running.processes() == []


def trainer(federation: Federation, site: str) -> psutil.Process | None:
    """The process that trains at a site."""
    for process in federation.processes(site):
        try:
            if "fedad_components.worker" in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def busy_in_round(federation: Federation, site: str, experiment: str, number: int) -> psutil.Process:
    """Wait until a site's training process works on a round; that process."""

    def working() -> psutil.Process | None:
        process = trainer(federation, site)
        if len(records_of(federation, experiment)) < number or process is None:
            return None
        try:
            before = process.cpu_times().user
            process.wait(0.5)
        except psutil.TimeoutExpired:
            return process if process.cpu_times().user - before > 0.1 else None
        except psutil.Error:
            return None
        return None

    return until(working, ROUND_SECONDS * (number + 1), f"{site} trains round {number}")


def test_a_killed_training_process_costs_its_site_one_round(federation: Federation, tmp_path: Path) -> None:
    job_id = federation.submit(job_of(small_config("trainer", 3, training=SLOW), tmp_path))
    busy_in_round(federation, "beta", "trainer", 1).send_signal(signal.SIGKILL)
    assert federation.wait(job_id, timeout=300) == "FINISHED:COMPLETED"
    first, hit, after = records_of(federation, "trainer")
    assert first.participants == SITES
    assert hit.participants == ["alpha", "gamma"]
    assert "worker-died" in hit.refused["beta"]
    assert after.participants == SITES
    assert "killed by SIGKILL" in federation.site_log("beta", job_id)


def test_the_job_completes_without_a_site_that_lost_power(federation: Federation, tmp_path: Path) -> None:
    config = small_config("power", 3, training=SLOW, federation={"wait_after_quorum": 10})
    job_id = federation.submit(job_of(config, tmp_path))
    busy_in_round(federation, "gamma", "power", 1)
    federation.kill_site("gamma")
    try:
        assert federation.wait(job_id, timeout=300) == "FINISHED:COMPLETED"
        first, hit, after = records_of(federation, "power")
        assert first.participants == SITES
        assert hit.participants == after.participants == ["alpha", "beta"]
        assert hit.refused == {"gamma": "no answer in time"}
    finally:
        federation.start_site("gamma")
        federation.wait_ready()


def test_a_killed_server_resumes_with_the_same_result(federation: Federation, tmp_path: Path) -> None:
    """An interrupted experiment ends with bit-equal weights, lambda and heads: nothing was lost, nothing done twice."""
    whole = federation.submit(job_of(small_config("whole", 4), tmp_path / "whole"))
    assert federation.wait(whole, timeout=300) == "FINISHED:COMPLETED"

    job = job_of(small_config("broken", 4), tmp_path / "broken")
    killed = federation.submit(job)
    until(lambda: len(records_of(federation, "broken")) == 2, 2 * ROUND_SECONDS, "two rounds")
    federation.kill_server()
    saved = len(records_of(federation, "broken"))
    federation.start_server()
    federation.wait_ready(timeout=120)
    assert federation.status(killed) == "FINISHED:ABANDONED"

    resumed = federation.submit(job)
    assert federation.wait(resumed, timeout=300) == "FINISHED:COMPLETED"
    log = "".join(path.read_text() for path in federation.download(resumed, tmp_path / "result").rglob("log.txt"))
    match = re.search(r"resumes at round (\d+) with lambda_t = ([\d.]+)", log)
    assert match
    start = int(match[1])
    assert saved - 1 <= start <= saved  # the kill may have come between a round's record and its checkpoint
    assert float(match[2]) == records_of(federation, "whole")[start].lambda_t

    expected, records = records_of(federation, "whole"), records_of(federation, "broken")
    assert [record.round for record in records] == [0, 1, 2, 3]
    assert [record.lambda_t for record in records] == [record.lambda_t for record in expected]
    assert [record.instability for record in records] == [record.instability for record in expected]
    assert same(checkpoint_of(federation, "broken"), checkpoint_of(federation, "whole"))
    for site in SITES:
        state = federation.site_paths(site).state
        assert same(state / "broken/round-000003.safetensors", state / "whole/round-000003.safetensors")


def same(one: Path, other: Path) -> bool:
    """Whether two safetensors files hold bit-equal tensors."""
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_finished_experiment_says_so_and_changes_nothing(federation: Federation, tmp_path: Path) -> None:
    before = checkpoint_of(federation, "whole").read_bytes()
    job_id = federation.submit(job_of(small_config("whole", 4), tmp_path))
    assert federation.wait(job_id, timeout=120) == "FINISHED:COMPLETED"
    assert checkpoint_of(federation, "whole").read_bytes() == before


def test_another_configuration_under_the_same_name_is_refused(federation: Federation, tmp_path: Path) -> None:
    job_id = federation.submit(job_of(small_config("whole", 6, loss={"gamma": 0.0}), tmp_path / "jobs"))
    assert federation.wait(job_id, timeout=120) != "FINISHED:COMPLETED"
    log = "".join(path.read_text() for path in federation.download(job_id, tmp_path / "result").rglob("log.txt"))
    assert "written by this experiment under another configuration" in log


def test_a_quorum_that_fails_ends_the_job_and_names_the_sites(federation: Federation, tmp_path: Path) -> None:
    config = small_config("quorum", 2, federation={"data_set": "absent"})
    job_id = federation.submit(job_of(config, tmp_path / "jobs"))
    assert federation.wait(job_id, timeout=180) != "FINISHED:COMPLETED"
    log = "".join(path.read_text() for path in federation.download(job_id, tmp_path / "result").rglob("log.txt"))
    assert "0 good update(s), the quorum federation.min_sites is 2" in log
    for site in SITES:
        assert f"{site}: the site reports EXECUTION_EXCEPTION (data-refused)" in log
        assert "no data set 'absent'" in federation.site_log(site, job_id)
