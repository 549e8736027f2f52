"""Every way out of a site's processes, tried in real ones: what FLARE lets out by itself, and what leaves with FedAD.

Two sites try the same; from one the guard was taken away, which shows what FLARE does and that the tap hears it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import give_images, job_of, records_of, small_config

from fedad_components.demo.federation import Federation
from fedad_components.flare.preflight import check
from fedad_components.flare.provision import JOB_CHANNELS, SITE_CHANNELS
from fedad_components.records import RoundRecord

TAMPER = Path(__file__).parent / "tamper"
sys.path.append(str(TAMPER))

from leaks import ERROR_EVENT, PATHS, RESULTS, marker  # noqa: E402

pytestmark = pytest.mark.federation

SITES = ["honest", "guarded", "bare"]


@dataclass
class Tried:
    """What the server heard, and the answers of the console, site by site."""

    federation: Federation
    job_id: str
    status: str
    heard: bytes
    asked: dict[str, list[str]] = field(default_factory=dict)

    @property
    def records(self) -> list[RoundRecord]:
        return records_of(self.federation, "paths")


def take_away_the_guards(kit: Path) -> None:
    for name, ours in (("privacy.json", JOB_CHANNELS), ("resources.json.default", SITE_CHANNELS)):
        path = kit / "local" / name
        content = json.loads(path.read_text())
        content["components"].remove(ours)
        path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    folder = tmp_path_factory.mktemp("paths")
    frames = folder / "frames"
    frames.mkdir()
    config = small_config("paths", 3, federation={"min_sites": 1, "wait_after_quorum": 20})
    env = {"PYTHONPATH": str(TAMPER), "TAMPER_FRAMES": str(frames), "TAMPER_LEAK": "guarded,bare"}
    asked: dict[str, list[str]] = {"guarded": [], "bare": []}
    with Federation(folder / "federation", SITES, env=env) as federation:
        give_images(federation, folder / "images")
        take_away_the_guards(federation.kit("bare"))
        federation.start()
        job_id = federation.submit(job_of(config, folder / "jobs"))

        def ask(_status: str) -> None:
            session, administrator = federation.session("lead"), federation.session("project_admin")
            for site, answers in asked.items():
                for question in (
                    lambda site=site: session.show_errors(job_id, "client", [site]),
                    lambda site=site: session.show_stats(job_id, "client", [site]),
                    lambda site=site: administrator.get_client_env([site]),
                ):
                    with contextlib.suppress(Exception):  # the job has not started, or is over
                        answers.append(json.dumps(question()))

        status = federation.wait(job_id, timeout=240, on_poll=ask)
        heard = b"".join(path.read_bytes() for path in frames.iterdir())
        yield Tried(federation, job_id, status, heard, asked)
        federation.stop()
        assert federation.processes() == []
    for path in frames.iterdir():
        path.unlink()


def heard_from(tried: Tried, path: str, site: str) -> bool:
    """Whether the server heard the marker of a path, from a site: each site puts its name behind the marker."""
    return f"{marker(path)}:{site}".encode() in tried.heard


@pytest.mark.parametrize("path", PATHS)
def test_flare_lets_it_out_and_the_guard_does_not(tried: Tried, path: str) -> None:
    assert heard_from(tried, path, "bare")
    assert not heard_from(tried, path, "guarded")
    assert not heard_from(tried, path, "honest")


@pytest.mark.parametrize("path", RESULTS)
def test_nothing_leaves_beside_a_result_or_an_error(tried: Tried, path: str) -> None:
    for site in SITES:
        assert not heard_from(tried, path, site)


def test_nothing_else_carries_a_marker(tried: Tried) -> None:
    assert b":guarded" not in tried.heard


def test_each_refusal_stands_in_the_sites_log(tried: Tried) -> None:
    log = tried.federation.site_log("guarded", tried.job_id)
    for channel in ("'leak'", "'fed.event'", "'aux_communication'"):
        assert any(channel in line and "It did not leave this site" in line for line in log.splitlines()), channel
    assert "unexpected public property 'leak'" in log
    assert "unexpected header 'note'" in log
    assert "not the result" in log or "unexpected key 'note'" in log


def refused(tried: Tried, number: int, site: str) -> Any:
    return next(record for record in tried.records if record.round == number).refused.get(site)


def test_the_job_goes_on_and_names_the_refusals(tried: Tried) -> None:
    assert tried.status == "FINISHED:COMPLETED", tried.federation.server_log(tried.job_id)
    assert [record.participants for record in tried.records] == [["honest"]] * 3
    assert refused(tried, 0, "guarded") == "the site reports TASK_RESULT_FILTER_ERROR"
    assert refused(tried, 1, "guarded") == "the site reports EXECUTION_EXCEPTION (worker-died)"
    assert refused(tried, 2, "guarded") == "no answer in time"


def test_a_site_without_the_guard_sends_no_result(tried: Tried) -> None:
    for number in range(3):
        assert refused(tried, number, "bare") == "the site reports TASK_RESULT_FILTER_ERROR"
    assert "the other paths out of this process are not guarded" in tried.federation.site_log("bare", tried.job_id)
    assert "channels" in {
        finding.what for finding in check(tried.federation.kit("bare"), network=False) if not finding.ok
    }


def test_the_console_brings_no_content_of_a_guarded_site(tried: Tried) -> None:
    """FLARE keeps errors that are events for `show_errors`, statistics for `show_stats`, and tells a site's folders."""
    bare, guarded = "".join(tried.asked["bare"]), "".join(tried.asked["guarded"])
    kits = {site: str(tried.federation.kit(site)) for site in ("bare", "guarded")}
    assert marker(ERROR_EVENT) in bare
    assert "current_tasks" in bare
    assert kits["bare"] in bare
    assert marker(ERROR_EVENT) not in guarded
    assert "current_tasks" not in guarded
    assert kits["guarded"] not in guarded
