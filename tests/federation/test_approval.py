"""A site that requires approval, in a real federation: only the approved job runs, no changed one and no clone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import give_images, job_of, small_config
from typer.testing import CliRunner

from fedad_components.audit.event import Event, Kind, Outcome
from fedad_components.audit.reading import read
from fedad_components.audit.verify import verify
from fedad_components.cli.site import app
from fedad_components.demo.federation import Federation

pytestmark = [pytest.mark.federation, pytest.mark.timeout(2400)]

CAREFUL, OPEN = "alpha", "beta"
EXPERIMENT = "approved"
TIMEOUT = 900.0


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("approval")
    with Federation(folder / "federation", [CAREFUL, OPEN]) as running:
        give_images(running, folder / "images")
        running.set_policy(CAREFUL, require_approval=True)
        running.start(timeout=240)
        yield running


def fedad_site(federation: Federation, command: str, *arguments: str) -> Any:
    done = CliRunner().invoke(app, [command, str(federation.kit(CAREFUL)), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(federation: Federation, job_id: str) -> str:
    """What the careful site answered to the deployment of a job that did not run."""
    assert federation.wait(job_id, timeout=TIMEOUT) == "FINISHED:FAILED_TO_RUN"
    (answer,) = [
        line
        for line in federation.session().get_job_meta(job_id)["job_deploy_detail"]
        if line.startswith(f"{CAREFUL}: ")
    ]
    return str(answer)


def decisions(federation: Federation) -> list[Event]:
    paths = [federation.site_paths(CAREFUL).audit]
    return [located.event for located in read(paths) if located.event.event is Kind.JOB_APPROVAL]


def test_only_the_approved_job_runs(federation: Federation, tmp_path: Path) -> None:
    job = job_of(small_config(EXPERIMENT, 1, federation={"round_timeout": 900}), tmp_path / "jobs")

    first = federation.submit(job)
    answer = refused(federation, first)
    (waiting,) = fedad_site(federation, "review")
    digest = waiting["digest"]
    assert f"held until this site's reviewer approves job digest {digest}" in answer
    assert waiting["last_job_id"] == first
    assert waiting["submitter"] == federation.people["lead"]
    assert not (federation.kit(CAREFUL) / first / f"app_{CAREFUL}").exists()

    shown = fedad_site(federation, "review", first)
    assert shown["page"]["would_run"], shown["page"]["refusals"]
    assert shown["page"]["experiment"] == EXPERIMENT
    assert set(shown["files"]) == {"config/config_fed_client.json", "config/config_fed_server.json"}

    fedad_site(federation, "approve", digest, "--by", "A. Reviewer")
    second = federation.submit(job)  # signed anew, another id, another time: the same job
    assert federation.wait(second, timeout=TIMEOUT) == "FINISHED:COMPLETED"

    changed = Path(shutil.copytree(job, tmp_path / "changed" / job.name))
    config = changed / "app" / "config" / "config_fed_client.json"
    config.write_bytes(config.read_bytes() + b" ")
    answer = refused(federation, federation.submit(changed))
    assert "held until" in answer
    assert digest not in answer

    other_meta = Path(shutil.copytree(job, tmp_path / "meta" / job.name))
    meta = json.loads((other_meta / "meta.json").read_text())
    (other_meta / "meta.json").write_text(json.dumps({**meta, "resource_spec": {CAREFUL: {"num_of_gpus": 0}}}))
    answer = refused(federation, federation.submit(other_meta))
    assert "held until" in answer
    assert digest not in answer

    assert f"cloned from '{second}': a clone" in refused(federation, federation.session().clone_job(second))

    fedad_site(federation, "reject", digest, "--reason", "withdrawn after a talk with the committee")
    assert f"rejected job digest {digest}" in refused(federation, federation.submit(job))
    assert len(fedad_site(federation, "review")) == 2

    told = [(event.outcome, (event.reason or "").partition(":")[0].split(" by ")[0]) for event in decisions(federation)]
    assert told == [
        (Outcome.REFUSED, "held"),
        (Outcome.SUCCESS, "approved"),
        (Outcome.SUCCESS, "deployed"),
        (Outcome.REFUSED, "held"),
        (Outcome.REFUSED, "held"),
        (Outcome.REFUSED, "refused"),
        (Outcome.REFUSED, "rejected"),
        (Outcome.REFUSED, "refused"),
    ]
    log = federation.site_paths(CAREFUL).audit
    assert "committee" not in "".join(path.read_text() for path in log.iterdir())
    verification = verify([log], federation.kit(CAREFUL) / "startup" / "rootCA.pem")
    assert verification.verified, verification.findings
