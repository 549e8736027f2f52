"""``fedad data check`` of bags: numbers, refusals, and no pseudonym in what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from fedad_components.cli.data import app
from fedad_components.imaging.catalogue import VERSION
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.site_bags import write_bags
from fedad_components.slides.bags import INDEX

CLASSES = ("normal", "tumour")


def bag(number: int, target: int | Outcome, patient: str | None = None, length: int = 5) -> Bag:
    features = torch.randn(3 + number % 4, length, generator=torch.Generator().manual_seed(number))
    return Bag(f"SECRET-{number}", patient or f"SECRET-P{number}", features, target)


def give(folder: Path, bags: list[Bag], **entry: Any) -> Path:
    """A catalogue with these bags, whose encoder is known."""
    write_bags(folder / "bags", bags, CLASSES)
    index = json.loads((folder / "bags" / INDEX).read_text())
    index["encoder"] = {"name": "resnet50", "weights_sha256": "a" * 64, "random_weights": False}
    (folder / "bags" / INDEX).write_text(json.dumps(index))
    entries = {"slides": {"kind": "bags", "folder": str(folder / "bags"), **entry}}
    catalogue = folder / "catalogue.yaml"
    catalogue.write_text(yaml.safe_dump({"version": VERSION, "data_sets": entries}))
    return catalogue


def check(catalogue: Path, *options: str, code: int = 0, **config: Any) -> tuple[dict[str, Any], str]:
    arguments = ["check", "slides", "--catalogue", str(catalogue), *options]
    if config:
        file = catalogue.with_name("config.json")
        file.write_text(json.dumps({"algorithm": "histofl", **config}))
        arguments += ["--config", str(file)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == code
    text = " ".join(shown.output.split())
    assert "SECRET" not in result.output + text
    assert "000000" not in text
    return json.loads(result.stdout), text


TWENTY = [bag(number, number % 2) for number in range(20)]


def test_patients_and_patches_are_counted(tmp_path: Path) -> None:
    bags = [*TWENTY, bag(20, 1, "SECRET-P1")]
    found, text = check(give(tmp_path, bags))
    assert (found["slides"], found["patients"], found["accepted"]) == (21, 20, True)
    assert found["labels"] == {"normal": 10, "tumour": 10}
    assert found["patches"] == sum(len(one.features) for one in bags)
    assert found["lengths"] == {"5": 21}
    assert f"model.encoder_sha256={'a' * 64}" in text


def test_survival_is_counted_by_event(tmp_path: Path) -> None:
    bags = [bag(number, Outcome(number + 1.0, number % 3 == 0)) for number in range(20)]
    catalogue = give(tmp_path, bags)
    found, _ = check(catalogue)
    assert (found["events"], found["censored"], found["labels"]) == (7, 13, {})
    told, text = check(catalogue, model={"in_features": 5}, target={"kind": "survival"})
    assert told["accepted"]
    assert "1 validation patients with an event: fewer than counts.min_cell 5" in text


def test_files_that_are_missing_changed_or_unusable_are_counted(tmp_path: Path) -> None:
    nan = bag(3, 1)
    nan.features[0, 0] = torch.nan
    catalogue = give(tmp_path, [*TWENTY[:3], nan, *TWENTY[4:]])
    files = sorted((tmp_path / "bags").glob("*.safetensors"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes() + b" ")
    found, text = check(catalogue, code=1)
    assert found["bad"] == {"missing": 1, "changed": 1, "unusable": 1}
    assert "3 of 20 slides cannot be used" in text


@pytest.mark.parametrize(
    ("bags", "problem"),
    [
        ([*TWENTY, bag(20, 1, length=6)], "features of 5, 6 numbers: expected one encoder"),
        ([*TWENTY, bag(20, 0, "SECRET-P1")], "1 patients have slides with different outcomes"),
        (TWENTY[:2], "2 patients: expected 3 or more"),
    ],
)
def test_bags_that_no_job_can_train_on_are_refused(tmp_path: Path, bags: list[Bag], problem: str) -> None:
    found, text = check(give(tmp_path, bags), code=1)
    assert not found["accepted"]
    assert problem in text


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model": {"in_features": 5}}, "the label is none of target.classes (0, 1)"),
        ({"target": {"classes": CLASSES}}, "features of 5 numbers, the job expects 1024"),
        ({"model": {"in_features": 5, "encoder_sha256": "b" * 64}, "target": {"classes": CLASSES}}, "b" * 64),
        ({"model": {"in_features": 5}, "target": {"classes": (*CLASSES, "other")}}, "class 2 has 0 of the 20 patients"),
        (
            {"model": {"in_features": 5}, "target": {"classes": CLASSES}, "privacy": {"mode": "dp_sgd"}},
            "declare `units: N`",
        ),
        ({"model": {"in_features": 5}, "target": {"kind": "survival"}}, "survival needs a time"),
    ],
)
def test_a_job_that_the_site_would_refuse(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    found, text = check(give(tmp_path, TWENTY), code=1, **config)
    assert not found["accepted"]
    assert problem in text


def test_a_job_that_the_site_takes_part_in(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "model": {"in_features": 5, "encoder_sha256": "a" * 64},
        "target": {"classes": CLASSES},
    }
    found, _ = check(give(tmp_path, TWENTY), **config, counts={"min_cell": 2})
    assert found["notes"] == ["patients to train on / validate / test under the job: 12 / 4 / 4"]
    found, _ = check(give(tmp_path, TWENTY), **config)
    assert len(found["notes"]) == 3
    private = {"privacy": {"mode": "dp_sgd", "units_per_step": 4}}
    found, _ = check(give(tmp_path, TWENTY, units=20), **config, **private)
    assert found["notes"] == []
    found, _ = check(give(tmp_path, TWENTY, units=3), code=1, **config, **private)
    assert ["units_per_step 4" in reason for reason in found["refused"]] == [True]


def test_settings_that_are_no_job_of_histofl_are_unusable(tmp_path: Path) -> None:
    catalogue = give(tmp_path, TWENTY)
    (tmp_path / "config.json").write_text('{"loss": {"gamma": 0.5}}')
    arguments = ["check", "slides", "--catalogue", str(catalogue), "--config", str(tmp_path / "config.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "loss" in result.output


def test_a_folder_that_is_not_prepared_is_unusable(tmp_path: Path) -> None:
    catalogue = give(tmp_path, TWENTY)
    (tmp_path / "bags" / INDEX).unlink()
    result = CliRunner().invoke(app, ["check", "slides", "--catalogue", str(catalogue)])
    assert result.exit_code == 2
    assert "fedad slides prepare" in result.output
