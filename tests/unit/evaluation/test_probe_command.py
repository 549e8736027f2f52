"""`fedad probe`, on a catalogue of three small sites."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from fedad_components.cli.probe import Choice, probe
from fedad_components.config import FedADConfig
from fedad_components.evaluation.protocols import Protocol
from fedad_components.fedsd.state import initial_state, save_extractor
from fedad_components.files import make_private_dir
from fedad_components.imaging.cache import CacheWriter, cache_folder, cache_side
from fedad_components.imaging.catalogue import Catalogue, DataSet
from fedad_components.imaging.listing import list_files

SITES = ("north", "south", "unseen")
COLOURS = ("red", "green", "blue")
IMAGE_SIZE = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red, green and blue pictures of three sites, decoded; a table that leaves one unlabelled; an extractor."""
    root = tmp_path_factory.mktemp("probe")
    rows = [["file", "kind", "patient"]]
    table = {"file": "table.csv", "path": "file", "label": "kind", "patient": "patient"}
    entries: dict[str, dict[str, object]] = {"bare": {"folder": "north"}}
    for name in SITES:
        entries[name] = {"folder": name, "table": table}
        (root / name).mkdir()
        for index in range(24):
            file = root / name / f"Jane_Doe_{name}_{index:02}.png"
            file.write_bytes(b"decoded before")
            kind = "" if (name, index) == ("north", 0) else COLOURS[index % 3]
            rows.append([file.name, kind, f"{name} patient {index // 2}"])
    with open(root / "table.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    (root / "catalogue.yaml").write_text(yaml.safe_dump({"version": 1, "data_sets": entries}), encoding="utf-8")
    for number, name in enumerate(SITES):
        write_cache(Catalogue.load(root / "catalogue.yaml").data_set(name), root / "cache", number)
    config = FedADConfig.parse({"model": {"image_size": IMAGE_SIZE}})
    save_extractor(root / "extractor.safetensors", initial_state(config), config)
    return root


def write_cache(data_set: DataSet, cache_dir: Path, number: int) -> None:
    """What an ingest leaves: pictures of the three colours, tinted by site."""
    generator = np.random.default_rng(number)
    side = cache_side(IMAGE_SIZE)
    into = make_private_dir(cache_folder(cache_dir, data_set, side))
    listing = list_files(data_set)
    writer = CacheWriter(into, data_set.definition(side), side, listing.records, listing.ignored)
    for index, record in enumerate(listing.records):
        pixels = generator.integers(0, 90, (side, side, 3), dtype=np.uint8)
        pixels[..., index % 3] += 80 + 30 * number
        writer.add(replace(record, frames=1, sha256=f"{index}"), [pixels])
    writer.finish()


def run(folder: Path, *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(probe)
    files = [str(folder / "extractor.safetensors"), "--catalogue", str(folder / "catalogue.yaml")]
    return CliRunner().invoke(app, [*files, *arguments], env={"COLUMNS": "80"})


def test_choices_are_the_protocols() -> None:
    assert {choice.value for choice in Choice} == {protocol.value for protocol in Protocol}


def test_json(folder: Path) -> None:
    result = run(folder, "--train", "north", "--train", "south", "--test", "unseen", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sources"] == {"north": 23, "south": 24}
    assert (found["n_target"], found["target_units"]) == (24, 12)
    assert [entry["name"] for entry in found["results"]][:3] == ["source", "source/standardised", "source/AdaBN"]
    assert found["results"][0]["detail"]["classes"] == ["blue", "green", "red"]
    assert "north: 1 images without a label left out" in found["notes"]
    assert "Jane" not in result.output
    kept = sorted((folder / "cache" / "features").iterdir())
    assert len(kept) == 6, "three data sets, each with its own and with adapted statistics"
    assert run(folder, "--train", "north", "--train", "south", "--test", "unseen", "--json").stdout == result.stdout
    assert sorted((folder / "cache" / "features").iterdir()) == kept


def test_table(folder: Path) -> None:
    result = run(folder, "--train", "north", "--test", "unseen", "--protocol", "source")
    assert result.exit_code == 0, result.output
    assert "source/standardised *" in result.output
    assert "* transductive" in result.output
    assert "Confusion, source" in result.output
    assert "…" not in result.output, "nothing is cut off at 80 columns"


def test_target_alone(folder: Path) -> None:
    result = run(folder, "--test", "unseen", "--json")
    assert [entry["name"] for entry in json.loads(result.stdout)["results"]] == [
        "target",
        "few-shot/1",
        "few-shot/5",
        "few-shot/10",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--test", "bare"], "data set 'bare': no labels: expected 'table:"),
        (["--test", "elsewhere"], "no data set 'elsewhere'"),
        (["--test", "unseen", "--protocol", "knn"], "protocol knn: expected at least one training data set"),
        (["--test", "unseen", "--train", "unseen"], "24 of its images are also in the test data set"),
        (["--test", "unseen", "--device", "abacus"], "abacus"),
    ],
)
def test_what_cannot_be_used_is_said(folder: Path, arguments: list[str], message: str) -> None:
    result = run(folder, *arguments)
    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.slow
@pytest.mark.skipif("FEDAD_DATA" not in os.environ, reason="FEDAD_DATA is not set")
def test_blood_cells_of_an_unseen_laboratory(tmp_path: Path) -> None:
    """A random extractor: near chance from other laboratories, well above it inside the unseen one."""
    data = Path(os.environ["FEDAD_DATA"]) / "wbc"
    table = {"file": str(data / "metadata.csv"), "label": "label", "patient": "group"}
    with open(data / "metadata.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    entries = {
        name: {"folder": str(data), "files": [row["file"] for row in rows if row["site"] == name], "table": table}
        for name in ("chulalongkorn", "jiangxi_tecom", "bccd")
    }
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump({"version": 1, "data_sets": entries}), encoding="utf-8")
    config = FedADConfig.parse({"model": {"image_size": 32}})
    save_extractor(tmp_path / "extractor.safetensors", initial_state(config), config)
    options = ["--train", "jiangxi_tecom", "--train", "bccd", "--test", "chulalongkorn", "--json"]
    result = run(tmp_path, *options, "--protocol", "source", "--protocol", "target")
    assert result.exit_code == 0, result.output
    scores = {entry["name"]: entry["scores"] for entry in json.loads(result.stdout)["results"]}
    assert scores["source"]["balanced_accuracy"] < 0.35 < scores["target"]["balanced_accuracy"]
