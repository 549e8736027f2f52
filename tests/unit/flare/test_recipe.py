"""The recipe, the job in the repository and the allow list say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedad_components.config import FedADConfig
from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, class_path
from fedad_components.flare.audit import JobAudit
from fedad_components.flare.channels import JobChannels
from fedad_components.flare.egress import StrictEgress
from fedad_components.flare.ingress import StrictIngress
from fedad_components.flare.recipe import FedADRecipe, HistoFLRecipe, export_job

JOBS = Path(__file__).parents[3] / "jobs"


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def components(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["path"]] if isinstance(value.get("path"), str) else []
        return own + [path for item in value.values() for path in components(item)]
    return [path for item in value for path in components(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("recipe", [FedADRecipe, HistoFLRecipe])
def test_the_jobs_in_the_repository_are_what_the_recipes_export(
    tmp_path: Path, recipe: type[FedADRecipe] | type[HistoFLRecipe]
) -> None:
    exported = export_job(recipe(), tmp_path)
    command = f"fedad job export --out jobs --force --set algorithm={recipe.algorithm}"
    assert tree(JOBS / exported.name) == tree(exported), f"run: {command}"


def test_the_job_holds_json_only(tmp_path: Path) -> None:
    exported = export_job(FedADRecipe(), tmp_path)
    assert {path.suffix for path in exported.rglob("*") if path.is_file()} == {".json"}
    assert not list(exported.rglob("custom"))  # whose existence alone would make it a job with custom code


def test_the_allow_list_is_what_the_job_and_the_site_need(tmp_path: Path) -> None:
    exported = export_job(FedADRecipe(), tmp_path)
    built = {path for file in exported.rglob("config_*.json") for path in components(json.loads(file.read_text()))}
    guards = {
        class_path(kind) for kind in (JobAudit, JobChannels, StrictEgress, StrictIngress)
    }  # of a site's privacy.json
    assert built == set(CLASS_ALLOW_LIST) - guards
    assert all(path.startswith("fedad_components.") for path in CLASS_ALLOW_LIST)


def test_server_and_sites_get_the_same_configuration(tmp_path: Path) -> None:
    config = FedADConfig.parse({"loss": {"gamma": 0.5}, "federation": {"min_sites": 3, "experiment": "trial"}})
    exported = export_job(FedADRecipe(config, name="trial"), tmp_path)
    server = json.loads((exported / "app/config/config_fed_server.json").read_text())
    client = json.loads((exported / "app/config/config_fed_client.json").read_text())
    server_config = server["workflows"][0]["args"]["config"]
    client_config = client["executors"][0]["executor"]["args"]["config"]
    assert FedADConfig.parse(server_config) == FedADConfig.parse(client_config) == config
    assert json.loads((exported / "meta.json").read_text())["min_clients"] == 3


def test_an_export_replaces_the_one_before(tmp_path: Path) -> None:
    stale = export_job(FedADRecipe(), tmp_path) / "app" / "custom" / "code.py"
    stale.parent.mkdir()
    stale.write_text("print()")
    assert not (export_job(FedADRecipe(), tmp_path) / "app" / "custom").exists()


@pytest.mark.parametrize("name", ["../escape", "", "a b/c"])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        FedADRecipe(name=name)
