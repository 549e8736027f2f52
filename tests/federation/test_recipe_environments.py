"""FedADRecipe in both of FLARE's environments: the simulator, and a federation in production form."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from nvflare.recipe import ProdEnv, SimEnv
from support import give_images, photographs, records_of, small_config

from fedad_components.config import ConfigError
from fedad_components.demo.federation import Federation
from fedad_components.flare.recipe import SITES_DIR, FedADRecipe
from fedad_components.flare.site import SIMULATED_SITES, SitePaths
from fedad_components.records import FILE_NAME, read_records

pytestmark = pytest.mark.federation


def test_the_simulator_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATED_SITES, "to be restored")
    config = small_config("simulated", 2)
    sites = tmp_path / "sites"
    for number, site in enumerate(["a", "b"]):
        photographs(tmp_path / "images" / site, number, count=12)
        entry = {"folder": str(tmp_path / "images" / site)}
        SitePaths(sites / site).create().catalogue.write_text(
            yaml.safe_dump({"version": 1, "data_sets": {"images": entry}})
        )
    env = SimEnv(clients=["a", "b"], workspace_root=str(tmp_path / "workspace"), extra={SITES_DIR: sites})
    run = FedADRecipe(config).run(env)
    result = Path(run.get_result())
    (rounds,) = result.rglob(f"fedad/{FILE_NAME}")
    assert [record.participants for record in read_records(rounds)] == [["a", "b"]] * 2
    assert list(result.rglob("extractor.safetensors"))
    assert all(list((sites / site / "state").rglob("round-000001.safetensors")) for site in ("a", "b"))


def test_a_simulation_without_sites_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIMULATED_SITES, raising=False)
    with pytest.raises(ConfigError, match=r"DIR/<site>/catalogue\.yaml"):
        FedADRecipe().run(SimEnv(clients=["a", "b"], workspace_root=str(tmp_path)))


def test_production_runs_it_with_sampled_sites_and_differences_in_bf16(tmp_path: Path) -> None:
    config = small_config(
        "production", 2, federation={"sites_per_round": 2, "update": "difference", "wire_dtype": "bfloat16"}
    )
    with Federation(tmp_path / "federation", ["alpha", "beta", "gamma"]) as federation:
        give_images(federation, tmp_path / "images")
        federation.start()
        env = ProdEnv(startup_kit_location=str(federation.kit("lead")), username=federation.people["lead"])
        run = FedADRecipe(config).run(env)
        assert federation.wait(run.get_job_id(), timeout=240) == "FINISHED:COMPLETED"
        records = records_of(federation, "production")
        assert [len(record.participants) for record in records] == [2, 2]
        assert all(count == 44713728 // 2 for record in records for count in record.bytes.values())
        assert all(record.instability > 0 for record in records)
