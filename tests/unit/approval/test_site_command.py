"""`fedad site`: what a reviewer reads and does, and that it says no in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from approval_jobs import META, Authority, kit, renewed, signed
from typer.testing import CliRunner, Result

from fedad_components.approval.content import JobContent
from fedad_components.cli.site import app
from fedad_components.config import FedADConfig
from fedad_components.flare.approval import approvals_of
from fedad_components.flare.recipe import FedADRecipe, export_job
from fedad_components.resources import resource_dir

SITE = "hospital-a"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def as_json(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def content(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> JobContent:
    """FedAD's own job as a site receives it, with a name that a terminal would obey."""
    exported = export_job(FedADRecipe(), tmp_path_factory.mktemp("jobs"))
    files = {
        path.relative_to(exported / "app").as_posix(): path.read_bytes()
        for path in (exported / "app").rglob("*")
        if path.is_file()
    }
    archive = signed(authority.person("lead"), tmp_path_factory.mktemp("app"), files)
    return JobContent.from_archive("app", archive, {**META, **renewed(7), "name": "job \x1b[31mred"})


@pytest.fixture
def site(authority: Authority, content: JobContent, tmp_path: Path) -> Path:
    folder = kit(tmp_path / SITE, SITE, authority)
    for name in ("catalogue.yaml", "policy.yaml"):
        (folder / "local" / "fedad" / name).write_bytes((resource_dir("provisioning") / "site" / name).read_bytes())
    approvals_of(folder).receive(content, content.meta["job_id"])
    return folder


def test_a_reviewer_sees_what_waits_approves_it_and_it_waits_no_more(site: Path, content: JobContent) -> None:
    (waiting,) = as_json("review", site)
    assert (waiting["digest"], waiting["state"], waiting["times"]) == (content.digest, "pending", 1)
    table = run("review", site)
    assert content.digest[:16] in table.stdout
    assert "\x1b" not in table.stdout

    shown = as_json("review", site, content.digest[:12])
    assert shown["files"] == content.file_digests
    assert shown["meta"] == META | {"name": content.job_name}
    assert shown["page"]["rounds"] == FedADConfig().federation.rounds
    assert shown["page"]["leaves"]["tensors"]
    page = run("review", site, content.meta["job_id"])
    assert page.exit_code == 0
    assert f"digest {content.digest}" in page.stdout
    assert "Leaves with each round" in page.stdout
    assert '"@ALL"' in page.stdout
    assert "\x1b" not in page.stdout

    done = run("approve", site, content.digest, "--by", "A. Reviewer", "--note", "protocol 12")
    assert done.exit_code == 0, done.output
    assert "approved by A. Reviewer; now have the same job submitted again" in done.stdout
    assert as_json("review", site) == []
    assert "No job waits." in run("review", site).stdout
    (decided,) = as_json("review", site, "--all")
    assert [decision["note"] for decision in decided["decisions"]] == ["protocol 12"]
    assert "approved by A. Reviewer (account " in run("review", site, content.digest).stdout


def test_an_approval_can_be_withdrawn_and_a_rejection_has_a_reason(site: Path, content: JobContent) -> None:
    assert run("reject", site, content.digest).exit_code == 2
    as_json("approve", site, content.digest)
    rejected = as_json("reject", site, content.digest, "--reason", "no vote")
    assert [decision["state"] for decision in rejected["decisions"]] == ["approved", "rejected"]
    again = run("reject", site, content.digest, "--reason", "no vote")
    assert again.exit_code == 1
    assert "already rejected" in again.stderr


@pytest.mark.parametrize("command", ["review", "approve"])
def test_what_is_no_job_and_no_sites_kit_is_said_in_words(site: Path, tmp_path: Path, command: str) -> None:
    unknown = run(command, site, "0" * 64)
    assert unknown.exit_code == 1
    expected = "a digest or its first" if command == "approve" else "a job id, or a digest or its first"
    assert f"0 jobs of this site; expected {expected}" in unknown.stderr
    elsewhere = run(command, tmp_path, "0" * 64)
    assert elsewhere.exit_code == 1
    assert "no startup kit" in elsewhere.stderr
    (site / "startup" / "fed_client.json").rename(site / "startup" / "fed_admin.json")
    person = run(command, site, "0" * 64)
    assert person.exit_code == 1
    assert "not a site's kit" in person.stderr


def test_a_copy_that_somebody_changed_is_not_shown_as_the_job(site: Path, content: JobContent) -> None:
    meta = site / "local" / "fedad" / "approvals" / content.digest / "job" / "meta.json"
    meta.write_text(meta.read_text().replace('"min_clients": 2', '"min_clients": 1'))
    shown = run("review", site, content.digest)
    assert shown.exit_code == 1
    assert "not the job of this digest any more" in shown.stderr
