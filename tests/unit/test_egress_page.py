"""The security officer's page: it lists what really leaves, and refuses what a site would refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedad_components.cli.egress import REFUSED, app
from fedad_components.config import FedADConfig
from fedad_components.egress_page import MEANINGS, PATHS, EgressPage, Tensor, by_group, make_page
from fedad_components.fedsd.state import initial_state
from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, class_path
from fedad_components.flare.channels import JOB_CHANNELS_ID
from fedad_components.flare.egress import StrictEgress
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.provision import JOB_CHANNELS, PRIVACY_SCOPE, harden, provision, read_project
from fedad_components.flare.recipe import FedADRecipe, HistoFLRecipe, export_job
from fedad_components.flare.site import SitePaths, SitePolicy
from fedad_components.imaging.catalogue import Catalogue
from fedad_components.job_reader import LARGEST_FILE, SIGNATURES, printable
from fedad_components.mil.config import HistoFLConfig
from fedad_components.privacy.ledger import Entry, Ledger
from fedad_components.privacy.plan import make_plan
from fedad_components.tensors import encode, payload_bytes
from fedad_components.wire import SentMeta

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
EXECUTOR = class_path(FedADExecutor)
PRIVATE: dict[str, Any] = {
    "model": {"norm": "group", "image_size": 32},
    "privacy": {"mode": "dp_sgd", "units_per_step": 32},
    "federation": {"rounds": 3},
}


PUBLIC = {**PRIVATE, "privacy": {**PRIVATE["privacy"], "negatives": "public", "public_data_set": "scans"}}


def exported(folder: Path, **sections: Any) -> Path:
    return export_job(FedADRecipe(FedADConfig.parse(sections)), folder)


def page(job: Path, **options: Any) -> EgressPage:
    return make_page(job, CLASS_ALLOW_LIST, executor=EXECUTOR, scope=PRIVACY_SCOPE, **options)


def data_sets(folder: Path, **entry: Any) -> Any:
    path = folder / "catalogue.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "data_sets": {"images": {"folder": str(folder), **entry}}}))
    return Catalogue.load(path).data_sets


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"image_size": 32, "norm": "local"}, "federation": {"wire_dtype": "bfloat16", "rounds": 7}},
        {"loss": {"head": "aggregated"}},
    ],
)
def test_tensors_and_bytes_are_those_of_a_real_update(tmp_path: Path, sections: dict[str, Any]) -> None:
    shown, config = page(exported(tmp_path, **sections)), FedADConfig.parse(sections)
    update = encode(initial_state(config), config)
    assert {tensor.name: (tensor.shape, tensor.dtype) for tensor in shown.tensors} == {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in update.items()
    }
    assert shown.bytes_per_round == payload_bytes(update)
    assert shown.to_json()["leaves"]["bytes_total"] == payload_bytes(update) * config.federation.rounds
    groups = by_group(shown.tensors)
    assert sum(len(tensors) for tensors in groups.values()) == len(update)
    assert ("head" in groups) == (config.loss.head == "aggregated")
    assert ("the projection head" in shown.stays) == (config.loss.head == "private")


def test_every_field_of_the_meta_has_a_meaning() -> None:
    assert list(MEANINGS) == list(SentMeta.model_fields)


def test_under_dp_no_count_and_no_loss_leaves_and_epsilon_is_planned(tmp_path: Path) -> None:
    job = exported(tmp_path, **PRIVATE)
    shown = page(job, data_sets=data_sets(tmp_path, units=625))
    assert shown.refusals == ()
    assert set(shown.meta or {}) == {"config_digest", "round", "claim", "ledger_head", "checkpoint"}
    assert "the number of images, and every loss" in shown.stays
    plan = make_plan(units=625, units_per_step=32, rounds=3, epochs=3, delta=1e-5, unit_size=8, noise_multiplier=2.0)
    assert shown.claim is not None
    assert (shown.claim.steps, shown.claim.sample_rate) == (plan.steps, plan.sample_rate)
    assert shown.claim.epsilon_unit == pytest.approx(plan.epsilon_unit)
    assert shown.claim.epsilon_record == pytest.approx(plan.epsilon_record)
    text = shown.to_json()["privacy"]["planned_text"]
    assert all(word in text for word in ("bundle", "delta = 1e-05", "PRV accountant"))


def test_a_job_of_histofl_says_which_counts_leave_from_how_many_patients_on(tmp_path: Path) -> None:
    def shown(**sections: Any) -> EgressPage:
        config = HistoFLConfig.parse({"model": {"in_features": 8}, **sections})
        return page(export_job(HistoFLRecipe(config), tmp_path / f"job-{len(list(tmp_path.iterdir()))}"))

    found = shown(counts={"min_cell": 7, "score_depth": 6})
    text = "; ".join(found.to_json()["leaves"]["counts"])
    assert all(word in text for word in ("k = 7", "2^6 cells", "every other round", "confusion", "below k", "pairs"))
    assert "bags" in (found.meta or {})["n_samples"]
    assert "Bags stayed" in found.statement
    assert "images" not in found.statement.lower()
    survival = "; ".join(shown(target={"kind": "survival"}).counts)
    assert all(word in survival for word in ("k = 5", "round 0: events", "2^7 cells", "pairs"))
    assert "confusion" not in survival
    agreed = shown(target={"kind": "survival", "edges": [1.0, 2.0, 3.0]})
    assert not any("round 0" in count for count in agreed.counts)
    private = shown(privacy={"mode": "dp_sgd"}, federation={"rounds": 3})
    assert private.counts == ()
    assert "the number of bags, and every loss" in private.stays
    assert "all bags of one patient" in private.statement
    assert page(exported(tmp_path / "images")).counts == ()


def test_the_command_prints_the_counts(tmp_path: Path) -> None:
    config = HistoFLConfig.parse({"model": {"in_features": 8}, "counts": {"min_cell": 9}})
    result = CliRunner().invoke(app, ["show", str(export_job(HistoFLRecipe(config), tmp_path))])
    told = " ".join(result.stdout.split())
    assert "Counts of patients: k = 9 patients (counts.min_cell)" in told
    assert "no small counts" not in told


@pytest.mark.parametrize("name", ["events", "validation"])
def test_the_table_of_what_leaves_says_the_same_of_counts(name: str) -> None:
    assert f"| `{name}` | {MEANINGS[name]} |" in SECURITY.read_text()


def test_a_budget_that_the_plan_passes_is_noted(tmp_path: Path) -> None:
    policy = SitePolicy.model_validate({"privacy": {"max_epsilon": 0.1}})
    shown = page(exported(tmp_path, **PRIVATE), policy=policy, data_sets=data_sets(tmp_path, units=625))
    assert any(note.startswith("max_epsilon: ") and "budget 0.1" in note for note in shown.notes)


@pytest.mark.parametrize("mode", ["none", "weight_noise", "dp_sgd"])
def test_the_statement_of_the_mode_stands_on_the_page(tmp_path: Path, mode: str) -> None:
    shown = page(exported(tmp_path, **{**PRIVATE, "privacy": {"mode": mode}}))
    assert ("(epsilon, delta)-DP" in shown.statement) == (mode == "dp_sgd")
    assert "{" not in shown.statement
    assert shown.claim is None


@pytest.mark.parametrize(
    ("sections", "policy", "entry", "by"),
    [
        ({"loss": {"head": "aggregated"}}, {}, {}, "allow_aggregated_head"),
        ({"method": "feddg"}, {"allow_aggregated_head": True}, {}, "allow_shared_spectra"),
        ({}, {"privacy": {"required_mode": "dp_sgd"}}, {}, "required_mode"),
        (PRIVATE, {"privacy": {"min_noise_multiplier": 3.0}}, {"units": 625}, "min_noise_multiplier"),
        ({"federation": {"data_set": "others"}}, {}, {}, "catalogue"),
        (PRIVATE, {}, {}, "catalogue"),
        (PRIVATE, {}, {"units": 8}, "catalogue"),
        (PUBLIC, {"public_data_sets": ["scans"]}, {"units": 625}, "catalogue"),
    ],
)
def test_the_rule_that_refuses_is_named(
    tmp_path: Path, sections: dict[str, Any], policy: dict[str, Any], entry: dict[str, Any], by: str
) -> None:
    shown = page(
        exported(tmp_path, **sections), policy=SitePolicy.model_validate(policy), data_sets=data_sets(tmp_path, **entry)
    )
    assert [refusal.by for refusal in shown.refusals] == [by]


def edit(job: Path, change: Any, name: str = "app/config/config_fed_client.json") -> None:
    content = json.loads((job / name).read_text())
    change(content)
    (job / name).write_text(json.dumps(content))


def executor_of(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["executors"][0]["executor"]
    return found


METRICS = {"id": "metrics", "path": "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent", "args": {}}
PRIVACY_FILTER = {"tasks": ["*"], "filters": [{"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars"}]}
CONTROL = "\x1b[2J\nWould run at"


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (lambda content: content["components"].append(METRICS), "class_allow_list"),
        (lambda content: content["components"].append(JOB_CHANNELS), "job"),
        (lambda content: content["components"].append({"id": "x", "path": EXECUTOR, "args": {}}), "job"),
        (lambda content: content["task_result_filters"].append(PRIVACY_FILTER), "class_allow_list"),
        (lambda content: content["task_data_filters"].append({"tasks": ["*"], "filters": [{"path": EXECUTOR}]}), "job"),
        (
            lambda content: content["task_result_filters"].append(
                {"tasks": ["*"], "filters": [{"path": class_path(StrictEgress)}]}
            ),
            "job",
        ),
        (lambda content: executor_of(content).update(path="my.Executor"), "class_allow_list"),
        (lambda content: executor_of(content).update(name="Other"), "job"),
        (lambda content: executor_of(content)["args"].update(folder="/"), "job"),
        (lambda content: executor_of(content)["args"]["config"].update(note=1), "job"),
        (lambda content: executor_of(content)["args"].update(config=[]), "job"),
        (lambda content: executor_of(content)["args"]["config"].update(seed=10**400), "job"),
        (lambda content: executor_of(content)["args"]["config"].update(method=[]), "job"),
        (lambda content: content["executors"].append(content["executors"][0]), "job"),
        (lambda content: content["executors"].append({"tasks": ["x"], "executor": {"path": "my.Executor"}}), "job"),
        (lambda content: content.update(note=1), "job"),
        (lambda content: content.update(executors=3), "job"),
        (lambda content: content.update(executors=[]), "job"),
    ],
)
def test_a_job_that_names_anything_else_is_refused(tmp_path: Path, change: Any, by: str) -> None:
    job = exported(tmp_path)
    edit(job, change)
    assert by in {refusal.by for refusal in page(job).refusals}
    shown = show(job)
    assert shown.exit_code == REFUSED
    assert "Would run" not in shown.output


def test_the_id_of_the_guards_is_named(tmp_path: Path) -> None:
    job = exported(tmp_path)
    edit(job, lambda content: content["components"].append(JOB_CHANNELS))
    (refusal,) = page(job).refusals
    assert f"'{JOB_CHANNELS_ID}'" in refusal.why


@pytest.mark.parametrize(
    ("change", "by", "word"),
    [
        (lambda meta: meta.update(scope="another"), "privacy scope", "'another'"),
        (lambda meta: meta.update(scope=[PRIVACY_SCOPE]), "privacy scope", "expected none"),
        (lambda meta: meta.update(deploy_map={}), "job", "deploy_map"),
        (lambda meta: meta.update(deploy_map=["app"]), "job", "deploy_map"),
        (lambda meta: meta["deploy_map"].update(other=["site-1"]), "job", "'other'"),
        (lambda meta: meta["deploy_map"].update({"../app": ["site-1"]}), "job", "'../app'"),
        (lambda meta: meta["deploy_map"].update(app=[{"sites": ["site-1"]}]), "job", "'app'"),
    ],
)
def test_a_job_for_another_scope_or_app_is_refused(tmp_path: Path, change: Any, by: str, word: str) -> None:
    job = exported(tmp_path)
    edit(job, change, "meta.json")
    (refusal,) = page(job).refusals
    assert refusal.by == by
    assert word in refusal.why


def test_the_scope_may_be_fedads_and_the_sites_are_shown(tmp_path: Path) -> None:
    job = exported(tmp_path)
    edit(job, lambda meta: meta.update(scope=PRIVACY_SCOPE, deploy_map={"app": ["server", "site-1"]}), "meta.json")
    assert page(job).to_json()["deployed"] == {"app": ["server", "site-1"]}
    ran = show(job)
    assert ran.exit_code == 0, ran.output
    assert "app goes to server, site-1" in ran.output
    assert "Would run at a site with the default policy" in ran.output


DEEP = '{"a":' * 3000 + "1" + "}" * 3000


@pytest.mark.parametrize("name", ["meta.json", "app/config/config_fed_client.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"scope": "x", "scope": ""}',
        b"[" * 100_000,
        DEEP.encode(),
        f'{{"scope": {DEEP}, "executors": [{{"executor": {{"path": {DEEP}}}}}]}}'.encode(),
        b" " * (LARGEST_FILE + 1),
    ],
)
def test_a_file_that_is_not_what_fedad_exports_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    job = exported(tmp_path)
    (job / name).write_bytes(content)
    shown = show(job)
    assert shown.exit_code == REFUSED
    assert f"'{name}'" in shown.output
    assert "Would run" not in shown.output


def test_a_configuration_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    job = exported(tmp_path)
    path = job / "app" / "config" / "config_fed_client.json"
    path.write_text(path.read_text().replace('"seed": 0', f'"seed": {DEEP}'))
    assert show(job).exit_code == REFUSED


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """FLARE and this page might each take the other one."""
    job = exported(tmp_path)
    path = job / "app" / "config" / "config_fed_client.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 0, "seed": 1'))
    (refusal,) = page(job).refusals
    assert "twice" in refusal.why


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("app/custom/leak.py", "byoc"),
        ("app/config/config_exchange.json", "job"),
        ("app/config/environment.json", "job"),
        ("app/config/config_fed_client.conf", "job"),
        ("app/config_fed_client.json", "job"),
        ("app/.__nvfl_evil.py", "job"),
        (f"app/config/{CONTROL}", "job"),
        (f"{CONTROL}/leak.py", "job"),
    ],
)
def test_a_job_with_a_file_of_its_own_is_refused(tmp_path: Path, name: str, by: str) -> None:
    job = exported(tmp_path)
    (job / name).parent.mkdir(exist_ok=True)
    (job / name).write_text("{}")
    (refusal,) = page(job).refusals
    assert refusal.by == by
    named = Path("app/custom") if by == "byoc" else name  # the folder is enough
    assert refusal.why.startswith(f"{str(named)!a}:")
    assert "\x1b" not in show(job).output
    assert "\nWould run" not in show(job).output


def link_to(target: str) -> Any:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize("make", [link_to("/etc"), link_to("/etc/passwd"), link_to("nowhere"), os.mkfifo, Path.mkdir])
@pytest.mark.parametrize(
    "name",
    [
        "meta.json",
        "other",
        "app/custom",
        "app/config",
        "app/config/config_fed_client.json",
        f"app/config/{SIGNATURES[0]}",
    ],
)
def test_what_is_no_plain_file_is_refused_unread(tmp_path: Path, name: str, make: Any) -> None:
    job = exported(tmp_path)
    path = job / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)
    shown = show(job)
    if (name, make) == ("other", Path.mkdir):  # an empty folder
        assert shown.exit_code == 0
    else:
        assert shown.exit_code == REFUSED
        assert name.removesuffix("/config") in shown.output  # an empty app/config is an app without configuration
        assert "Would run" not in shown.output


def test_the_job_itself_may_be_no_link(tmp_path: Path) -> None:
    exported(tmp_path)
    (tmp_path / "link").symlink_to("fedad_job")
    refused = show(tmp_path / "link")
    assert refused.exit_code == 1
    assert "no link" in refused.output


def test_folders_without_end_are_not_entered(tmp_path: Path) -> None:
    job = exported(tmp_path)
    (job / "app" / "/".join("d" * 100)).mkdir(parents=True)
    (refusal,) = page(job).refusals
    assert refusal.why.startswith("'app/d':")


def test_nothing_of_the_job_reaches_the_terminal_raw(tmp_path: Path) -> None:
    job = exported(tmp_path).rename(tmp_path / CONTROL)
    assert "\x1b" not in show(job).output
    edit(job, lambda meta: meta["deploy_map"].update(app=[CONTROL], **{CONTROL: ["x"]}), "meta.json")
    edit(job, lambda content: executor_of(content)["args"]["config"].update({CONTROL: CONTROL, "method": CONTROL}))
    refused = show(job)
    assert refused.exit_code == REFUSED
    assert "\x1b" not in refused.output
    assert "\nWould run" not in refused.output
    assert "unknown key" in refused.output
    missing = show(tmp_path / f"{CONTROL}2")
    assert missing.exit_code == 1
    assert "\x1b" not in missing.output


def test_printable_escapes_what_a_terminal_would_obey() -> None:
    assert printable("a [b] 'c' \\ \x1b[31m\n\u202e\udc80é") == "a [b] 'c' \\ \\x1b[31m\\n\\u202e\\udc80\\xe9"


@pytest.mark.parametrize(
    "privacy",
    [
        {"noise_multiplier": 1e-300},
        {"noise_multiplier": 1e-200, "units_per_step": 625},
        {"delta": 5e-324},
    ],
)
def test_absurd_figures_are_a_note(tmp_path: Path, privacy: dict[str, Any]) -> None:
    job = exported(tmp_path, **{**PRIVATE, "privacy": {**PRIVATE["privacy"], **privacy}})
    policy = SitePolicy.model_validate({"privacy": {"min_noise_multiplier": 1e-320, "max_epsilon": None}})
    shown = page(job, policy=policy, data_sets=data_sets(tmp_path, units=625))
    assert shown.claim is None
    assert [note.partition(":")[0] for note in shown.notes] == ["no epsilon can be planned"]


def test_a_signed_job_is_what_was_exported(tmp_path: Path) -> None:
    job = exported(tmp_path)
    for folder in (job, job / "app", job / "app" / "config"):
        for name in SIGNATURES:
            (folder / name).write_text("{}")
    assert page(job).refusals == ()


def test_the_table_of_paths_stands_in_the_documentation() -> None:
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n")) for line in SECURITY.read_text().splitlines() if line.startswith("|")
    ]
    cells = [tuple(row[:3]) for row in rows]
    for way in PATHS:
        assert (way.name, way.flare, way.fedad) in cells


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = read_project()
    project["participants"] = [
        item for item in project["participants"] if item["name"] in ("fl.example.org", "hospital-a")
    ]
    kit = provision(project, tmp_path_factory.mktemp("kits")) / "hospital-a"
    SitePaths.of_kit(kit).catalogue.write_text(
        yaml.safe_dump({"version": 1, "data_sets": {"images": {"folder": str(kit), "units": 625}}})
    )
    return kit


def show(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["show", *map(str, arguments)])


def test_the_command_says_whether_this_site_would_run_it(kit: Path, tmp_path: Path) -> None:
    job = exported(tmp_path / "jobs", **PRIVATE)
    ran = show(job, "--kit", kit)
    assert ran.exit_code == 0, ran.output
    assert f"Would run at {kit}" in ran.output
    assert "adding or removing one bundle (delta = 1e-05, PRV accountant)" in ran.output
    as_json = json.loads(show(job, "--kit", kit, "--json").output)
    assert as_json["would_run"] is True
    assert as_json["leaves"]["tensors"][0] == {
        "name": "conv1.weight",
        "shape": [64, 3, 3, 3],
        "dtype": "float32",
        "bytes": 6912,
    }
    refused = show(exported(tmp_path / "other", loss={"head": "aggregated"}))
    assert refused.exit_code == REFUSED
    assert "allow_aggregated_head" in refused.output
    assert show(tmp_path).exit_code == 1
    assert show(job, "--kit", tmp_path).exit_code == 1


def test_a_kit_without_the_guards_would_refuse_every_result(kit: Path, tmp_path: Path) -> None:
    """As one hardened by an earlier release; hardening it again is enough."""
    old = tmp_path / "hospital-a"
    shutil.copytree(kit, old)
    path = old / "local" / "privacy.json"
    content = json.loads(path.read_text())
    del content["components"], content["scopes"][0]["task_data_filters"]
    path.write_text(json.dumps(content))
    job = exported(tmp_path / "jobs")
    refused = json.loads(show(job, "--kit", old, "--json").output)
    assert {item["by"] for item in refused["refusals"]} == {"channels", "ingress"}
    assert all("fedad provision harden" in item["why"] for item in refused["refusals"])
    harden(old)
    assert show(job, "--kit", old).exit_code == 0


def test_groups_are_layers() -> None:
    names = ("conv1.weight", "layer1.0.bn1.bias", "layer1.1.conv1.weight")
    groups = by_group([Tensor(name, (1,), "float32", 4) for name in names])
    assert {group: len(tensors) for group, tensors in groups.items()} == {"conv1": 1, "layer1": 2}


def test_a_data_set_with_rounds_of_the_other_kind_is_refused_as_the_ledger_will(kit: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    shutil.copytree(kit, used)
    paths = SitePaths.of_kit(used)
    Ledger(paths.ledger, paths.ledger_head).charge(
        Entry(data_set="images", experiment="e", job_id="j", round=0, mode="none"), max_epsilon=10.0
    )
    job = exported(tmp_path, **PRIVATE)
    refused = json.loads(show(job, "--kit", used, "--json").output)
    assert [refusal["by"] for refusal in refused["refusals"]] == ["ledger"]
    assert "charged for 1 rounds without differential privacy" in refused["refusals"][0]["why"]
    assert show(job, "--kit", used).exit_code == 3
    paths.policy.write_text("privacy: {max_epsilon: null}\n")
    assert show(job, "--kit", used).exit_code == 0
