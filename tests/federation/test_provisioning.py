"""The provisioned federation as it runs: who may connect, who may submit, what the server builds, what stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nvflare.fuel.flare_api.api_spec import NoConnection
from support import heed_interrupts

from fedad_components.demo.federation import Federation
from fedad_components.flare.preflight import check

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("federation"), ["site-1", "site-2"]) as running:
        running.start()
        yield running
        running.stop()
        assert running.processes() == []


@pytest.fixture
def foreign_job(tmp_path: Path) -> Path:
    """A job without any code, made of a FLARE component that is in FLARE's own allow list, but not in FedAD's."""
    job = tmp_path / "foreign"
    config = job / "app" / "config"
    config.mkdir(parents=True)
    (job / "meta.json").write_text(
        json.dumps({"name": "foreign", "min_clients": 2, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}})
    )
    controller = {
        "id": "eval",
        "path": "nvflare.app_common.workflows.cross_site_model_eval.CrossSiteModelEval",
        "args": {},
    }
    (config / "config_fed_server.json").write_text(json.dumps({"format_version": 2, "workflows": [controller]}))
    trainer = {"path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}}
    (config / "config_fed_client.json").write_text(
        json.dumps({"format_version": 2, "executors": [{"tasks": ["train"], "executor": trainer}]})
    )
    return job


def test_both_sites_register_over_mutual_tls(federation: Federation) -> None:
    assert federation.connected() == {"site-1", "site-2"}
    log = federation.server_log()
    for site in federation.sites:
        assert f"SSL {site}]" in log  # FLARE names the identity of the certificate that it verified


def test_preflight_of_running_kits(federation: Federation) -> None:
    site = {finding.what: finding for finding in check(federation.kit("site-1"))}
    assert site.pop("catalogue").ok is False
    assert all(finding.ok for finding in site.values()), site
    assert all(finding.ok for finding in check(federation.kit("lead")))


def test_preflight_names_a_certificate_of_another_authority(federation: Federation) -> None:
    findings = {finding.what: finding for finding in check(federation.rogue_kit("site-1"))}
    assert findings["server"].ok is False
    assert "certificate" in findings["server"].detail


def test_rogue_site_is_refused(federation: Federation) -> None:
    federation.start_kit(federation.rogue_kit("site-1"), "rogue")
    log = federation.rogue_kit("site-1") / "console.log"
    try:
        deadline = time.monotonic() + 30
        while "CERTIFICATE_VERIFY_FAILED" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert "CERTIFICATE_VERIFY_FAILED" in log.read_text()
        assert federation.connected() == {"site-1", "site-2"}
    finally:
        federation.kill_site("rogue")


def test_member_may_look_but_not_submit(federation: Federation, foreign_job: Path) -> None:
    assert federation.session("member").list_jobs() is not None
    with pytest.raises(Exception, match=r"(?i)not authorized"):
        federation.submit(foreign_job, user="member")
    assert federation.session("lead").list_jobs() == []


def test_lead_has_no_shell(federation: Federation) -> None:
    with pytest.raises(Exception, match=r"(?i)not authorized"):
        federation.session("lead").ls_target("server")


def test_job_with_an_unlisted_class_does_not_run(federation: Federation, foreign_job: Path) -> None:
    job_id = federation.submit(foreign_job)
    assert federation.wait(job_id, timeout=90) != "FINISHED:COMPLETED"
    logs = federation.server_log() + federation.server_log(job_id) + federation.site_log("site-1", job_id)
    assert "is not in allow_list" in logs
    assert (federation.server_kit / "storage" / "jobs" / job_id).is_dir()


def test_job_with_code_is_refused(federation: Federation, foreign_job: Path) -> None:
    custom = foreign_job / "app" / "custom"
    custom.mkdir()
    (custom / "mine.py").write_text("")
    job_id = federation.submit(foreign_job)
    assert federation.wait(job_id, timeout=90) == "FINISHED:FAILED_TO_RUN"


def test_killed_site_can_come_back(federation: Federation) -> None:
    assert federation.processes("site-2")
    federation.kill_site("site-2")
    assert federation.processes("site-2") == []
    federation.start_site("site-2")
    deadline = time.monotonic() + 60
    while federation.server_log().count("New client site-2@") < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert federation.server_log().count("New client site-2@") == 2


def test_server_can_be_killed_and_started_again(federation: Federation) -> None:
    jobs = {job["job_id"] for job in federation.session().list_jobs()}
    federation.kill_server()
    assert federation.connected() == set()
    federation.start_server()
    federation.wait_ready(60)
    assert {job["job_id"] for job in federation.session().list_jobs()} == jobs


def test_rogue_operator_is_refused(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    kit = federation.rogue_kit("lead")
    with pytest.raises(NoConnection):
        new_secure_session(federation.people["lead"], str(kit), timeout=5.0)


_DRIVER = """
import sys, time
from fedad_components.demo.federation import Federation
with Federation(sys.argv[1], ["site-1"]) as federation:
    federation.start()
    print("pids", *[process.pid for process in federation.processes()], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_driver_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(tmp_path / "work")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=heed_interrupts,
    )
    try:
        assert driver.stdout is not None
        line = next(line for line in driver.stdout if line.startswith("pids"))
        pids = [int(text) for text in line.split()[1:]]
        assert len(pids) == 2
        driver.send_signal(number)
        driver.wait(timeout=30)
    finally:
        driver.kill()
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
