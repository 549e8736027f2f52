"""The templates of ``custom/`` in real sites: an own reader feeds training, an own filter stops a result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedad_components.config import FedADConfig
from fedad_components.demo.federation import SERVER, Federation
from fedad_components.flare.preflight import check
from fedad_components.flare.recipe import FedADRecipe, export_job
from fedad_components.records import FILE_NAME
from fedad_components.resources import resource_dir

pytestmark = pytest.mark.federation

N_IMAGES = 12


def _install(kit: Path, template: str) -> None:
    custom = kit / "local" / "custom"
    custom.mkdir(exist_ok=True)
    shutil.copyfile(resource_dir("custom") / template, custom / template)


def _give_data(federation: Federation, site: str, folder: Path) -> None:
    """Images that only the site's own reader can read."""
    folder.mkdir()
    rng = np.random.default_rng(len(site))
    for index in range(N_IMAGES):
        np.save(folder / f"{index}.npy", rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
    _install(federation.kit(site), "npy_reader.py")
    federation.site_paths(site).catalogue.write_text(
        f"version: 1\ndata_sets:\n  images:\n    folder: {folder}\n    pattern: '*.npy'\n"
        f"    reader: npy_reader:NpyReader\n",
        encoding="utf-8",
    )


def test_own_reader_feeds_training_and_own_filter_holds_a_result(tmp_path: Path) -> None:
    config = FedADConfig.parse(
        {
            "model": {"image_size": 32},
            "training": {"epochs": 1, "batch_size": 6},
            "federation": {"experiment": "custom", "rounds": 1, "min_sites": 1, "round_timeout": 120},
        }
    )
    job = export_job(FedADRecipe(config), tmp_path / "jobs")
    with Federation(tmp_path / "federation", ["free", "held"]) as federation:
        for site in federation.sites:
            _give_data(federation, site, tmp_path / site)
        held = federation.kit("held")
        _install(held, "hold_filter.py")
        privacy = held / "local" / "privacy.json"
        policy = json.loads(privacy.read_text(encoding="utf-8"))
        policy["scopes"][0]["task_result_filters"].insert(0, {"path": "hold_filter.HoldFilter", "args": {}})
        privacy.write_text(json.dumps(policy), encoding="utf-8")
        (federation.site_paths("held").root / "HOLD").touch()
        assert all(finding.ok for finding in check(held, network=False))

        federation.start()
        job_id = federation.submit(job)
        status = federation.wait(job_id, timeout=240)

        assert status == "FINISHED:COMPLETED", federation.server_log(job_id)
        records = federation.site_paths(SERVER).experiment("custom") / FILE_NAME
        (record,) = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
        assert record["participants"] == ["free"]
        assert record["n_samples"] == {"free": N_IMAGES}
        assert set(record["refused"]) == {"held"}
        assert "nothing leaves this site" in federation.site_log("held", job_id)
