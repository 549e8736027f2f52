"""Two scanners' real slides at two sites: prepared by the command, one round over mutual TLS, heatmap out.

A site's patients are split in three, which takes three of each class. There is one real slide a site, so that its other
five patients are bands cut from it, as plain TIFF files; classes are made up, every second line. The whole slide is the
first patient, and the one whose heatmap is drawn. Nobody's counts are told, as each class has one validation patient.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from scipy.stats import rankdata
from support import records_of

from fedad_components.algorithms import initial_state
from fedad_components.demo.encoder import FEATURES, write_encoder
from fedad_components.demo.federation import Federation
from fedad_components.files import sha256_of
from fedad_components.flare.persistor import RESULTS_DIR
from fedad_components.flare.recipe import HistoFLRecipe, export_job
from fedad_components.imaging.catalogue import VERSION, DataSet
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.model import GatedAttentionMIL
from fedad_components.mil.site_bags import open_bags
from fedad_components.mil.trainer import BagTrainer
from fedad_components.simulation import Simulation
from fedad_components.slides.bags import SlideBag, load_bags
from fedad_components.slides.reader import open_slide

pytestmark = pytest.mark.federation

FEDAD = str(Path(sys.executable).parent / "fedad")
SLIDES = {"site-1": "CMU-1-Small-Region.svs", "site-2": "tcga-cr-7395-01a-01-ts1.svs"}
MPP = {"site-1": "", "site-2": "0.25"}
"""Of each line: the second slide's file does not tell it."""
BANDS = 5


def fedad(*words: object) -> str:
    done = subprocess.run([FEDAD, *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_catalogue(folder: Path, slide: Path, mpp: str) -> Path:
    """The whole slide and its bands."""
    with open_slide(slide) as opened:
        width, height = opened.size
        found = opened.own_mpp
        rows = height // 2
        for number in range(BANDS):
            top = number * (height - rows) // (BANDS - 1)
            band = Image.fromarray(opened.read((0, top), 0, (width, rows)))
            band.save(folder / f"band {number}.tiff", **({"dpi": (25_400 / found[0],) * 2} if found else {}))
    catalogue = folder / "slides.csv"
    with open(catalogue, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("slide", "slide_id", "patient_id", "label", "mpp"))
        for number, path in enumerate([slide, *(folder / f"band {number}.tiff" for number in range(BANDS))]):
            lines.writerow((path, f"S{number}", f"P{number}", "ab"[number % 2], mpp))
    return catalogue


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each site, with ``slides.csv`` and ``features``; beside them the encoder."""
    data = os.environ.get("FEDAD_DATA")
    if not data or not all((Path(data) / "wsi" / name).is_file() for name in SLIDES.values()):
        pytest.skip("needs the slides of FEDAD_DATA/wsi")
    folder = tmp_path_factory.mktemp("hospitals")
    write_encoder(folder / "encoder.safetensors", seed=0)
    for site, name in SLIDES.items():
        (folder / site).mkdir()
        catalogue = write_catalogue(folder / site, Path(data) / "wsi" / name, MPP[site])
        how = ("--encoder", "fedad", "--weights", folder / "encoder.safetensors", "--preset", "biopsy")
        fedad("slides", "prepare", catalogue, "--out", folder / site / "features", *how)
    return folder


@pytest.fixture(scope="module")
def federation(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("slides") / "federation", list(SLIDES)) as federation:
        for site in SLIDES:
            entry = {"kind": "bags", "folder": str(hospitals / site / "features")}
            federation.site_paths(site).catalogue.write_text(
                yaml.safe_dump({"version": VERSION, "data_sets": {"slides": entry}}), encoding="utf-8"
            )
        federation.start()
        yield federation


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(first[name] - second[name]).square().sum() for name in second]).sum().sqrt())


def attention_of(bag: SlideBag, model: Path) -> np.ndarray:
    """By the bare model, without anything of the command's code."""
    module = GatedAttentionMIL(FEATURES, 2).eval()
    module.load_state_dict(load_file(model))
    with torch.inference_mode():
        return module(torch.from_numpy(bag.features)).attention.squeeze().numpy()


def test_from_real_slides_to_heatmaps(federation: Federation, hospitals: Path, tmp_path: Path) -> None:
    config = HistoFLConfig.parse(
        {
            "target": {"classes": ["a", "b"]},
            "model": {"in_features": FEATURES, "encoder_sha256": sha256_of(hospitals / "encoder.safetensors")},
            "training": {"device": "cpu", "epochs": 2},
            "federation": {"experiment": "slides", "rounds": 1, "min_sites": 2, "round_timeout": 300},
        }
    )
    job_id = federation.submit(export_job(HistoFLRecipe(config), tmp_path / "jobs"))
    assert federation.wait(job_id, timeout=400) == "FINISHED:COMPLETED"
    results = federation.download(job_id, tmp_path / "results") / "workspace" / RESULTS_DIR
    (record,) = records_of(federation, "slides")
    assert record.participants == sorted(SLIDES)
    assert record.n_samples == dict.fromkeys(SLIDES, 2)
    assert record.validation is None or record.validation.patients == 0

    trained, start = load_file(results / "model.safetensors"), initial_state(config)
    folders = {site: hospitals / site / "features" for site in SLIDES}
    data_sets = {site: DataSet(id="slides", kind="bags", folder=folder) for site, folder in folders.items()}
    trainers = {site: BagTrainer(config, open_bags(data_sets[site], config), site) for site in SLIDES}
    simulation = Simulation(config, trainers)
    simulation.run_round()
    moved, gap = distance(trained, start), distance(trained, simulation.theta)
    assert moved > 0.1
    # Another order of summation changes a last bit, and Adam's first steps turn its sign into a whole step.
    assert gap < moved / 4

    for site, folder in folders.items():
        maps = tmp_path / site
        first = next(load_bags(folder))
        fedad(
            *("slides", "heatmap", hospitals / site / "slides.csv", "--features", folder, "--slide", first.slide),
            *("--model", results / "model.safetensors", "--out", maps),
        )
        assert sorted(path.name for path in maps.iterdir()) == sorted(
            [f"{first.slide}.heatmap.png", f"{first.slide}.patches.png", "report.html", "scores.csv"]
        )
        rows = list(csv.DictReader((maps / "scores.csv").read_text().splitlines()))
        assert {row["slide"] for row in rows} == {first.slide}
        assert [(int(row["x"]), int(row["y"])) for row in rows] == [
            tuple(corner) for corner in first.coordinates.tolist()
        ]
        attention = np.array([float(row["attention"]) for row in rows])
        np.testing.assert_allclose(attention, attention_of(first, results / "model.safetensors"), rtol=1e-4)
        assert attention.sum() == pytest.approx(1, abs=1e-4)
        order = rankdata([float(row["percentile"]) for row in rows])
        np.testing.assert_array_equal(order, rankdata(attention))
        with Image.open(maps / f"{first.slide}.heatmap.png") as drawn:
            assert not drawn.info
            colours = np.asarray(drawn.convert("RGB")).reshape(-1, 3)
        assert len(np.unique(colours, axis=0)) > 1000
