"""Whole runs on three small laboratories of real tissue: what is trained, kept, and repeated."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data
from typer.testing import CliRunner

from fedad_components.benchmark import run as runs
from fedad_components.benchmark.results import Results, ResultsError
from fedad_components.benchmark.run import CONFIG, HEADS, TRAINED, Run, execute, finished_rounds, open_results
from fedad_components.benchmark.variants import (
    ALWAYS,
    JITTERED,
    PRESETS,
    VARIANTS,
    Preset,
    configuration,
    find_variant,
    honest,
)
from fedad_components.benchmark.wbc import load, write_catalogue
from fedad_components.cli import app
from fedad_components.demo.data import DemoDataError
from fedad_components.evaluation.catalogued import labelled_images
from fedad_components.evaluation.site_vectors import read_head
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.imaging.cache import cache_side
from fedad_components.imaging.catalogue import Catalogue
from fedad_components.records import read_records

TINY = Preset(image_size=32, batch_size=8, rounds=2, epochs=1, max_images=16)
PICTURES = {"north": data.immunohistochemistry(), "south": data.retina()[300:1100, 300:1100], "east": data.astronaut()}


@pytest.fixture(scope="module")
def laboratories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 24 images each at each laboratory, and one class of 3 at the unseen one."""
    folder = tmp_path_factory.mktemp("laboratories")
    rows = []
    for site, picture in PICTURES.items():
        generator = np.random.default_rng(len(site))
        for label, count in (("left", 24), ("right", 24), ("rare", 3)):
            for number in range(count):
                file = Path("images") / site / label / f"{number}.png"
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                row, column = generator.integers(0, 150, 2)
                column += {"left": 0, "right": 300, "rare": 150}[label]
                Image.fromarray(picture[row : row + 40, column : column + 40]).save(folder / file)
                role, split = (
                    ("unseen_target", "target") if site == "east" else ("client", "test" if number > 19 else "train")
                )
                group = f"slide-{number % 6}" if site == "east" else ""
                rows.append([file, site, label, role, split, group])
    with open(folder / "benchmark.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["file", "site", "label", "role", "split", "group"], *rows])
    return folder


def test_the_catalogue_names_the_very_images(laboratories: Path, tmp_path: Path) -> None:
    write_catalogue(laboratories, tmp_path / "catalogue.yaml")
    catalogue = Catalogue.load(tmp_path / "catalogue.yaml")
    for target in ("east", "north"):
        loaded = load(laboratories, target, 32, tmp_path)
        for wanted, name in [(source, source.name) for source in loaded.sources] + [
            (loaded.target, f"{target}-unseen")
        ]:
            found, unlabelled = labelled_images(catalogue.data_set(name), tmp_path / "cache", cache_side(32))
            assert unlabelled == 0
            assert np.array_equal(found.images, wanted.images)
            assert found.labels == wanted.labels
            assert found.units.tolist() == wanted.units.tolist()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "PRESETS", {"quick": TINY})


def test_the_unseen_laboratory_is_nowhere_in_training(laboratories: Path, tmp_path: Path) -> None:
    loaded = load(laboratories, "east", 32, tmp_path)
    assert [source.name for source in loaded.sources] == ["north", "south"]
    assert [len(source.labels) for source in loaded.sources] == [43, 43]  # without those kept for tests
    assert loaded.left_out == {"rare": 3}
    assert set(loaded.target.labels) == {"left", "right"}
    assert len(set(loaded.target.units.tolist())) == 6
    other = load(laboratories, "north", 32, tmp_path)
    assert [(source.name, len(source.labels)) for source in other.sources] == [("east", 51), ("south", 43)]
    with pytest.raises(DemoDataError, match="'west': no such laboratory; expected one of east, north, south"):
        load(laboratories, "west", 32, tmp_path)


def test_every_variant_is_a_configuration() -> None:
    for name, variant in VARIANTS.items():
        config = configuration(variant, PRESETS["full"], seed=3, sites=4)
        assert config.seed == 3
        assert (config.views.stain_jitter > 0) == name.endswith(JITTERED)
        assert config.federation.min_sites == (1 if variant.training == "pooled" else 4)
    assert set(ALWAYS) <= VARIANTS.keys()
    assert honest(["moon"]) == [
        name
        for name in VARIANTS
        if name.removesuffix(JITTERED) in ("random", "private_head", "fedavg_ssl", "moon", "centralized_supervised")
    ]
    assert "moon" + JITTERED in honest(["moon"])
    private = configuration(VARIANTS["private_head"], PRESETS["full"], 0, 4)
    assert (private.loss.gamma, private.atsa.lambda_fixed, private.loss.head) == (0, 0, "private")


def test_a_row_may_deviate_in_settings() -> None:
    variant = find_variant("moon@baselines.moon_mu=5+views.hue=0.1" + JITTERED)
    config = configuration(variant, PRESETS["full"], 0, 4)
    assert (config.method, config.baselines.moon_mu, config.views.hue) == ("moon", 5, 0.1)
    assert config.views.stain_jitter > 0
    assert configuration(VARIANTS["moon" + JITTERED], PRESETS["full"], 0, 4).baselines.moon_mu == 1
    assert honest(["moon@views.hue=0.1"])[-2:] == ["moon@views.hue=0.1", "moon@views.hue=0.1" + JITTERED]
    for name, complaint in {
        "mono@views.hue=0.1": "'mono': expected one of",
        "moon@hue": "expected SECTION.KEY=VALUE",
        "moon@views.hues=1": "views.hues = 1: unknown key",
        "fedad@seed=7": "seed is not a row's to set: expected --seeds",
        "fedad@method=moon": "method is not a row's to set: expected the row of that method",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            find_variant(name)


def test_pooled_training_has_the_very_images_of_the_laboratories(laboratories: Path, tmp_path: Path) -> None:
    loaded = load(laboratories, "east", 32, tmp_path)
    config = configuration(VARIANTS["fedavg_ssl"], TINY, seed=3, sites=2)
    trainers = [LocalTrainer(config, source.images, source.name, "cpu") for source in loaded.sources]
    pooled = loaded.pooled(TINY.max_images, seed=3)
    expected = np.concatenate([trainer.images[trainer.chosen.numpy()] for trainer in trainers])
    assert len(expected) == 32
    assert np.array_equal(pooled.images, expected)
    assert configuration(VARIANTS["centralized_simclr"], TINY, 3, 2).training.max_images == 0
    assert len(loaded.pooled(0, seed=3).labels) == 86


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fedad",
        "fedgala" + JITTERED,
        "feddg",
        "centralized_simclr",
        "fedavg_supervised",
        "centralized_supervised",
        "random",
    ],
)
def test_a_run_trains_once_and_is_evaluated(laboratories: Path, tmp_path: Path, tiny: None, name: str) -> None:
    run = Run(name, 1, "east", "quick", laboratories, tmp_path, "cpu")
    rows = execute(run)
    assert {row.key for row in rows} == {(name, 1, "east", row.protocol) for row in rows}
    assert {"source", "source/AdaBN", "source/standardised", "target", "knn"} <= {row.protocol for row in rows}
    assert [row.protocol for row in rows if row.transductive] == ["source/standardised", "source/AdaBN"]
    trained = VARIANTS[name].training
    sites = {"federated": 2, "pooled": 1}.get(trained, 0)
    records = read_records(run.records) if sites else []
    assert [len(record.participants) for record in records] == [sites] * (TINY.rounds if sites else 0)
    first = rows[0]
    # 16 images of each laboratory, 8 in a step, 2 rounds of one epoch: the same for everybody
    assert first.steps == (0 if trained == "none" else 2 * 2 * 2)
    assert first.images == (0 if trained == "none" else 32)
    assert (first.bytes > 0) == (trained == "federated")
    unsupervised = bool(sites) and not VARIANTS[name].labels
    assert (first.nt_xent is None) == (not unsupervised)
    if unsupervised:
        assert first.nt_xent_chance == pytest.approx(math.log(15))

    private = {"fedad": {"north", "south"}, "feddg": set(), "fedavg_supervised": set(), "random": set()}.get(name)
    if private is not None:
        assert {path.stem for path in (run.folder / HEADS).glob("*.safetensors")} == private
        heads = [
            read_head(path, configuration(VARIANTS[name], TINY, 1, 2))[0] for path in run.folder.glob(f"{HEADS}/*")
        ]
        assert len({head[0].weight.sum().item() for head in heads}) == len(private)  # each laboratory's is its own

    before = (run.folder / TRAINED).stat().st_mtime_ns
    again = execute(run)
    assert (run.folder / TRAINED).stat().st_mtime_ns == before
    assert [row.metrics for row in again] == [row.metrics for row in rows]
    assert json.loads((run.folder / CONFIG).read_text())["seed"] == 1


@pytest.mark.slow
def test_a_run_that_was_interrupted_starts_anew(laboratories: Path, tmp_path: Path, tiny: None) -> None:
    run = Run("private_head", 0, "east", "quick", laboratories, tmp_path, "cpu")
    execute(run)
    lines = run.records.read_text()
    (run.folder / TRAINED).unlink()
    execute(run)
    assert len(run.records.read_text().splitlines()) == len(lines.splitlines())
    assert finished_rounds(run.records, since=0.0) == TINY.rounds
    assert finished_rounds(run.records, since=4e9) == 0
    assert finished_rounds(replace(run, seed=5).records, since=0.0) == 0


def test_a_laboratory_that_is_refused_is_named_by_its_worker(laboratories: Path, tmp_path: Path) -> None:
    """The refusal crosses from one process to another, and other runs are not taken down with it."""
    shutil.copytree(laboratories, tmp_path / "data")
    for broken in sorted((tmp_path / "data" / "images" / "north" / "left").iterdir())[:8]:
        broken.write_bytes(b"")
    command = ["benchmark", "wbc", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--exact"]
    result = CliRunner().invoke(app, [*command, "--target", "east", "--methods", "random", "--seeds", "0,1"])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert said.count("DataRefused") == 2
    assert "north" in said
    assert "max_rejected" in said


@pytest.mark.slow
def test_random_initialisation_alone_has_tables_and_no_pictures(laboratories: Path, tmp_path: Path) -> None:
    command = ["benchmark", "wbc", "--data", str(laboratories), "--out", str(tmp_path / "out"), "--exact"]
    result = CliRunner().invoke(app, [*command, "--target", "east", "--methods", "random", "--seeds", "0"])
    assert result.exit_code == 0, result.output
    assert "no pictures" in result.output
    assert (tmp_path / "out" / "results.md").exists()


def test_results_of_two_presets_are_not_mixed(tmp_path: Path) -> None:
    first = open_results(tmp_path / "bench", "quick", "fedad benchmark")
    assert open_results(tmp_path / "bench", "quick", "another") == first
    assert Results.load(tmp_path / "bench" / "results.json").facts.command == "fedad benchmark"
    with pytest.raises(ResultsError, match="preset 'quick', not 'full'"):
        open_results(tmp_path / "bench", "full", "fedad benchmark")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "fedda"], "method 'fedda': expected one of random, fedad"),
        (["--seeds", "one"], "--seeds 'one': expected whole numbers"),
        (["--seeds", "5-3"], "--seeds '5-3': expected 1 to 1,000 seeds, and the lower end of a range first"),
        (["--seeds", "0-1000000000000"], "expected 1 to 1,000 seeds"),
        (["--methods", ","], "',': expected one name or number at least"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(
        app, ["benchmark", "wbc", "--data", str(tmp_path), "--out", str(tmp_path / "out"), *arguments]
    )
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
