"""What a kit holds after provisioning, and what `fedad provision check` says about a kit that was changed."""

from __future__ import annotations

import contextlib
import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedad_components.cli.provision import app
from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, SERVER_CLASS_ALLOW_LIST
from fedad_components.flare.preflight import Finding, check, interpreter
from fedad_components.flare.provision import (
    AUDIT_RECORDER,
    JOB_APPROVAL,
    JOB_AUDIT,
    JOB_CHANNELS,
    RECORDED_JOBS,
    SITE_CHANNELS,
    STRICT_EGRESS,
    KitError,
    harden,
    provision,
    read_project,
)
from fedad_components.flare.site import SiteError, SitePaths, SitePolicy
from fedad_components.resources import resource_dir

SERVER, SITE, LEAD = "fl.example.org", "hospital-a", "lead@example.org"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = read_project()
    keep = {SERVER, SITE, LEAD}
    project["participants"] = [item for item in project["participants"] if item["name"] in keep]
    return provision(project, tmp_path_factory.mktemp("provision"))


@pytest.fixture
def site(kits: Path, tmp_path: Path) -> Path:
    """A site's kit that a test may damage."""
    return Path(shutil.copytree(kits / SITE, tmp_path / SITE))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**_json(path), **changes}), encoding="utf-8")


def _bad(kit: Path) -> set[str]:
    return {finding.what for finding in check(kit, network=False) if not finding.ok}


def test_no_private_key_is_readable_by_others(kits: Path) -> None:
    holders = [path for path in kits.parent.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in holders} == {"server.key", "client.key", "cert.json"}
    for path in holders:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path


@pytest.mark.parametrize(("name", "expected"), [(SERVER, SERVER_CLASS_ALLOW_LIST), (SITE, CLASS_ALLOW_LIST)])
def test_allow_list_is_exactly_the_packages(kits: Path, name: str, expected: tuple[str, ...]) -> None:
    resources = _json(kits / name / "local" / "resources.json.default")
    assert sorted(resources["class_allow_list"]) == sorted(expected)
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert all(path.startswith("fedad_components.flare.") and not path.endswith(".") for path in CLASS_ALLOW_LIST)


@pytest.mark.parametrize("name", [SERVER, SITE])
def test_nobody_brings_code_or_a_shell_and_only_a_lead_submits(kits: Path, name: str) -> None:
    permissions = _json(kits / name / "local" / "authorization.json.default")["permissions"]
    assert set(permissions) == {"project_admin", "lead", "org_admin", "member"}
    for role, rights in permissions.items():
        assert rights["byoc"] == rights["shell_commands"] == "none", role
        assert (rights["submit_job"] != "none") == (role == "lead"), role


def test_strict_egress_is_the_last_filter_of_the_only_scope(kits: Path) -> None:
    policy = _json(kits / SITE / "local" / "privacy.json")
    (scope,) = policy["scopes"]
    assert policy["default_scope"] == scope["name"]
    assert scope["task_result_filters"][-1] == {"path": "fedad_components.flare.egress.StrictEgress", "args": {}}
    assert scope["task_data_filters"][0] == {"path": "fedad_components.flare.ingress.StrictIngress", "args": {}}
    assert not (kits / SITE / "local" / "privacy.json.sample").exists()


def test_every_channel_of_a_site_is_guarded(kits: Path) -> None:
    assert JOB_CHANNELS in _json(kits / SITE / "local" / "privacy.json")["components"]
    assert SITE_CHANNELS in _json(kits / SITE / "local" / "resources.json.default")["components"]
    assert JOB_CHANNELS["path"] in CLASS_ALLOW_LIST


def test_every_party_writes_the_compliance_log(kits: Path) -> None:
    for name in (SERVER, SITE):
        assert AUDIT_RECORDER in _json(kits / name / "local" / "resources.json.default")["components"]
        assert stat.S_IMODE(SitePaths.of_kit(kits / name).audit.stat().st_mode) == 0o700
    jobs = _json(kits / SERVER / "local" / "resources.json.default")["components"]
    assert RECORDED_JOBS in [item["path"] for item in jobs if item["id"] == "job_manager"]
    assert JOB_AUDIT in _json(kits / SITE / "local" / "privacy.json")["components"]


def test_a_site_deploys_no_job_but_through_the_approval_which_its_policy_requires(kits: Path) -> None:
    components = _json(kits / SITE / "local" / "resources.json.default")["components"]
    assert [item for item in components if item["id"] == "app_deployer"] == [JOB_APPROVAL]
    policy = SitePaths.of_kit(kits / SITE).policy
    assert yaml.safe_load(policy.read_text(encoding="utf-8"))["require_approval"] is True


def test_a_policy_without_the_line_requires_approval_too(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    assert SitePolicy.load(path).require_approval is True
    path.write_text("allow_aggregated_head: true\n", encoding="utf-8")
    assert SitePolicy.load(path).require_approval is True
    path.write_text("require_approval: false\n", encoding="utf-8")
    assert SitePolicy.load(path).require_approval is False


def test_hardening_keeps_what_the_kits_own_policy_denies(site: Path) -> None:
    path = site / "local" / "authorization.json.default"
    policy = _json(path)
    policy["permissions"]["lead"]["operate"] = "none"
    policy["permissions"]["lead"]["byoc"] = "any"
    path.write_text(json.dumps(policy), encoding="utf-8")
    harden(site)
    rights = _json(path)["permissions"]["lead"]
    assert (rights["operate"], rights["byoc"], rights["submit_job"]) == ("none", "none", "any")


def test_server_keeps_jobs_in_its_kit(kits: Path) -> None:
    resources = _json(kits / SERVER / "local" / "resources.json.default")
    components = {item["id"]: item for item in resources["components"]}
    assert components["job_manager"]["args"]["uri_root"] == "storage/jobs"
    storage = "fedad_components.flare.storage.KitStorage"
    assert components["job_store"]["path"] == storage
    assert resources["snapshot_persistor"]["args"]["storage"]["path"] == storage
    assert "/tmp" not in json.dumps(resources)


def test_storage_lies_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedad_components.flare.storage import KitStorage

    monkeypatch.chdir(tmp_path)
    storage = KitStorage()
    storage.create_object(uri="storage/jobs/1", data=b"job", meta={})
    assert storage.get_data("storage/jobs/1") == b"job"
    assert (tmp_path / "storage" / "jobs" / "1").is_dir()


def test_mutual_tls_signed_jobs_and_no_log_streaming(kits: Path) -> None:
    server = _json(kits / SERVER / "startup" / "fed_server.json")
    client = _json(kits / SITE / "startup" / "fed_client.json")
    person = _json(kits / LEAD / "startup" / "fed_admin.json")
    assert server["servers"][0]["connection_security"] == "mtls"
    assert client["client"]["connection_security"] == person["admin"]["connection_security"] == "mtls"
    assert server["require_signed_jobs"] is client["require_signed_jobs"] is True
    resources = _json(kits / SITE / "local" / "resources.json.default")
    assert resources["allow_log_streaming"] is False
    assert not any("log" in item["id"] for item in resources["components"])


def test_private_folder_has_an_empty_catalogue_and_the_strictest_policy(kits: Path) -> None:
    paths = SitePaths.of_kit(kits / SITE)
    for folder in (paths.root, paths.state, paths.cache):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert yaml.safe_load(paths.catalogue.read_text(encoding="utf-8"))["data_sets"] == {}
    assert SitePolicy.load(paths.policy) == SitePolicy()
    assert SitePolicy().allow_aggregated_head is False


def test_hardening_again_changes_nothing_and_keeps_the_sites_own_files(site: Path) -> None:
    SitePaths.of_kit(site).policy.write_text("allow_aggregated_head: true\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert harden(site) == "client"
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


def test_hardening_a_kit_made_without_the_builder_gives_the_same_kit(kits: Path, tmp_path: Path) -> None:
    project = read_project()
    keep = {SERVER, SITE, LEAD}
    project["participants"] = [item for item in project["participants"] if item["name"] in keep]
    project["builders"] = [item for item in project["builders"] if "fedad" not in item["path"]]
    project["builders"][1]["args"].pop("require_signed_jobs")
    plain = provision(project, tmp_path)
    for name in keep:
        harden(plain / name)
        for part in ("local", "startup"):
            for path in (kits / name / part).rglob("*"):
                if path.is_file() and path.suffix not in {".key", ".crt", ".pem"}:
                    twin = plain / name / path.relative_to(kits / name)
                    same = (
                        _json(twin) == _json(path) if ".json" in path.name else twin.read_bytes() == path.read_bytes()
                    )
                    assert same, path.relative_to(kits)


def test_hardening_refuses_what_it_cannot_make_safe(site: Path, tmp_path: Path) -> None:
    with pytest.raises(KitError, match="no startup kit"):
        harden(tmp_path)
    override = site / "local" / "resources.json"
    override.write_text("{}", encoding="utf-8")
    with pytest.raises(KitError, match=r"resources\.json: overrides"):
        harden(site)
    override.unlink()
    (site / "local" / "signature.json").write_text("{}", encoding="utf-8")
    with pytest.raises(KitError, match="signed"):
        harden(site)


def test_preflight_of_a_fresh_kit_only_misses_data(kits: Path) -> None:
    assert _bad(kits / SITE) == {"catalogue"}
    assert _bad(kits / SERVER) == _bad(kits / LEAD) == set()


def test_the_python_of_the_shell_has_to_be_the_one_with_fedad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(script: str) -> Finding:
        (tmp_path / "python3").write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
        (tmp_path / "python3").chmod(0o755)
        return interpreter()

    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on PATH" in interpreter().detail
    assert "has no FedAD" in answers("exit 1").detail  # a python3 without it
    other = answers("echo 0.0.1 2.9.0")
    assert not other.ok
    assert "0.0.1 and 2.9.0" in other.detail
    assert answers(f'exec {sys.executable} "$@"').ok


def test_preflight_finds_each_weakening(site: Path, kits: Path, tmp_path: Path) -> None:
    local, startup = site / "local", site / "startup"

    def finds(what: str) -> None:
        assert what in _bad(site)
        shutil.rmtree(site)
        shutil.copytree(kits / SITE, site)

    _edit(local / "resources.json.default", class_allow_list=[*CLASS_ALLOW_LIST, "os.path."])
    finds("class allow list")
    (local / "resources.json").write_text("{}", encoding="utf-8")  # FLARE would then use its own, longer list
    finds("class allow list")
    _edit(local / "authorization.json.default", permissions={"lead": "any"})
    finds("code inside a job")
    (local / "authorization.json.default").unlink()  # FLARE would then authorize everything
    finds("authorization")
    _edit(local / "privacy.json", scopes=[{"name": "fedad", "task_result_filters": []}])
    finds("egress")
    (local / "privacy.json").unlink()
    finds("egress")
    inwards = [{"path": STRICT_EGRESS, "args": {}, "direction": "in"}]  # then nothing that leaves is filtered
    _edit(local / "privacy.json", scopes=[{"name": "fedad", "task_result_filters": inwards}])
    finds("egress")
    policy = _json(local / "privacy.json")
    _edit(local / "privacy.json", components=[])
    finds("channels")
    _edit(local / "privacy.json", scopes=[{**policy["scopes"][0], "task_data_filters": []}])
    finds("ingress")
    resources = _json(local / "resources.json.default")
    resources["components"].remove(SITE_CHANNELS)
    _edit(local / "resources.json.default", components=resources["components"])
    finds("channels")
    resources = _json(local / "resources.json.default")
    resources["components"].remove(JOB_APPROVAL)
    _edit(local / "resources.json.default", components=resources["components"])
    finds("approval")
    resources = _json(local / "resources.json.default")
    resources["components"].remove(AUDIT_RECORDER)
    _edit(local / "resources.json.default", components=resources["components"])
    finds("compliance log")
    _edit(local / "privacy.json", components=[JOB_CHANNELS])
    finds("compliance log")
    _edit(startup / "fed_client.json", require_signed_jobs=False)
    finds("signed jobs")
    _edit(startup / "fed_client.json", client={"connection_security": "tls"})
    finds("mutual TLS")
    client = _json(startup / "fed_client.json")["client"]
    _edit(startup / "fed_client.json", client={**client, "fqsn": "hospital-z"})
    finds("certificate's name")
    (startup / "client.key").chmod(0o644)
    finds("file modes")
    shutil.copyfile(kits / LEAD / "startup" / "client.key", startup / "client.key")
    finds("private key")
    (local / "fedad" / "policy.yaml").write_text("allow_head: true\n", encoding="utf-8")
    finds("site policy")
    misspelt = "data_sets: {imagse: {required_mode: dp_sgd}}\n"  # the rule would apply to nothing
    (local / "fedad" / "policy.yaml").write_text(misspelt, encoding="utf-8")
    finds("site policy")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("startup/fed_client.json", '{"servers": []}', "server"),
        ("startup/fed_client.json", '{"client": null}', "startup"),
        ("local/privacy.json", '{"scopes": ["x"], "default_scope": "x"}', "egress"),
        ("local/privacy.json", '{"scopes": [{"name": "x", "task_result_filters": 3}], "default_scope": "x"}', "egress"),
        ("local/authorization.json.default", '{"permissions": {"lead": 3}}', "authorization"),
        ("local/resources.json.default", '{"class_allow_list": 3}', "class allow list"),
    ],
)
def test_a_file_of_another_shape_is_found_and_never_a_traceback(site: Path, name: str, content: str, what: str) -> None:
    (site / name).write_text(content, encoding="utf-8")
    assert what in {finding.what for finding in check(site) if not finding.ok}
    with contextlib.suppress(KitError):
        harden(site)


def test_hardening_again_keeps_a_sites_own_filters_before_strict_egress(kits: Path, tmp_path: Path) -> None:
    kit = tmp_path / SITE
    shutil.copytree(kits / SITE, kit)
    privacy = kit / "local" / "privacy.json"
    own, strict = {"path": "hold_filter.HoldFilter", "args": {}}, {"path": STRICT_EGRESS, "args": {}}
    for filters in ([own, strict], [strict, own], [own]):
        _edit(privacy, scopes=[{"name": "fedad", "properties": {}, "task_result_filters": filters}])
        harden(kit)
        assert _json(privacy)["scopes"][0]["task_result_filters"] == [own, strict]
    _edit(privacy, default_scope="another")
    with pytest.raises(KitError, match="'another' is none of its scopes"):
        harden(kit)


@pytest.mark.parametrize("name", ["../../outside", "", "a/b"])
def test_a_projects_name_cannot_lead_out_of_the_workspace(tmp_path: Path, name: str) -> None:
    with pytest.raises(KitError, match="project name"):
        provision(read_project() | {"name": name}, tmp_path / "workspace")
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KitError, match="file"):
        provision(read_project(), tmp_path / "file" / "workspace")


@pytest.mark.parametrize("text", ["allow_head: true", "allow_aggregated_head: perhaps", "- 1", "a: [", "\x00"])
def test_policy_is_never_guessed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SiteError, match=r"policy\.yaml"):
        SitePolicy.load(path)


def test_project_without_the_builder_is_refused(tmp_path: Path) -> None:
    project = read_project()
    project["builders"] = [item for item in project["builders"] if "fedad" not in item["path"]]
    path = tmp_path / "project.yml"
    path.write_text(yaml.safe_dump(project), encoding="utf-8")
    with pytest.raises(KitError, match="FedADBuilder"):
        read_project(path)


@pytest.mark.parametrize("name", ["server.yml", "hospital.yml", "lead.yml"])
def test_participants_of_the_distributed_flow_share_the_projects_settings(name: str) -> None:
    folder = resource_dir("provisioning")
    ours = yaml.safe_load((folder / "distributed" / name).read_text(encoding="utf-8"))
    project = read_project()
    assert ours["name"] == project["name"]
    assert [item["path"] for item in ours["builders"]] == [item["path"] for item in project["builders"][:3]]
    known = {item["name"]: item for item in project["participants"]}
    for participant in ours["participants"]:
        assert participant.items() <= known[participant["name"]].items()


def test_init_writes_every_file_once_and_kits_come_from_them(tmp_path: Path) -> None:
    run = CliRunner()
    assert run.invoke(app, ["init", str(tmp_path)]).exit_code == 0
    for name in ("provisioning", "custom"):
        for path in resource_dir(name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (tmp_path / name / path.relative_to(resource_dir(name))).read_bytes() == path.read_bytes()
    refused = run.invoke(app, ["init", str(tmp_path)])
    assert refused.exit_code == 1
    assert "--force" in refused.output
    (tmp_path / "file").touch()
    refused = run.invoke(app, ["init", str(tmp_path / "file")])
    assert refused.exit_code == 1
    assert "cannot be written" in refused.output
    assert run.invoke(app, ["init", str(tmp_path), "--force"]).exit_code == 0

    made = run.invoke(app, ["kits", str(tmp_path / "provisioning" / "project.yml"), "--out", str(tmp_path / "ws")])
    assert made.exit_code == 0, made.output
    assert "hospital-d" in made.output
    kit = tmp_path / "ws" / "fedad" / "prod_00" / "hospital-d"
    checked = run.invoke(app, ["check", str(kit), "--no-network"])
    assert checked.exit_code == 1
    assert "no data set yet" in checked.output
    assert run.invoke(app, ["harden", str(kit)]).exit_code == 0
    assert run.invoke(app, ["harden", str(tmp_path)]).exit_code == 1
