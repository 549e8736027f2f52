"""Model card and MONAI bundle of a small job: nothing is claimed that the records do not hold, and the weights load."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from monai.bundle import ConfigParser, ConfigWorkflow, verify_net_in_out
from PIL import Image
from skimage import data
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.config import FedADConfig
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.images import LabelledImages
from fedad_components.evaluation.protocols import Protocol, evaluate
from fedad_components.export.model_card import model_card
from fedad_components.export.monai_bundle import write_bundle
from fedad_components.export.result import ExportError, JobResult
from fedad_components.fedsd.state import initial_state, load_extractor, save_extractor
from fedad_components.imaging.cache import cache_side
from fedad_components.imaging.intensity import fit_square, to_rgb
from fedad_components.privacy.claim import PrivacyClaim, statement
from fedad_components.records import Losses, RoundRecord, append_record

MANDATORY = {  # MONAI's bundle specification, with the name that MONAI now reads optional_packages_version as
    "version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version", "task", "description",
    "authors", "copyright", "network_data_format",
}  # fmt: skip
OF_A_TENSOR = {
    "type", "format", "modality", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data",
    "channel_def",
}  # fmt: skip
CLAIM = PrivacyClaim(
    unit="bundle", units=128, noise_multiplier=1.0, sample_rate=0.03, steps=64, delta=1e-3, epsilon_unit=4.56,
    epsilon_record=7.89,
)  # fmt: skip


SMALL = {"model": {"image_size": 32, "base_channels": 32}}


def write_result(folder: Path, settings: dict[str, Any] | None = None, **fields: Any) -> FedADConfig:
    """Two rounds of two sites, one of which is refused once; weights are the initial ones."""
    config = FedADConfig.parse(settings or {})
    folder.mkdir(parents=True)
    for t in range(2):
        record: dict[str, Any] = {
            "round": t, "participants": ["alpha", "beta"][: t + 1], "refused": {} if t else {"beta": "no answer"},
            "lambda_t": 0.1, "lambda_next": 0.2, "instability": 0.3, "phase": "exploration",
            "losses": {"alpha": Losses(total=4.0, contrastive=3.5, alignment=0.4, orthogonality=0.1)},
            "n_samples": {"alpha": 120, "beta": 80} if t else {"alpha": 110},
            "bytes": {"alpha": 10_000_000}, "seconds": 30.0, **fields,
        }  # fmt: skip
        append_record(folder / "rounds.jsonl", RoundRecord.model_validate(record))
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    save_extractor(folder / "extractor.safetensors", initial_state(config), config, {"rounds": "2"})
    return config


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real ones, neither square nor of the extractor's size; one is grey."""
    folder = tmp_path_factory.mktemp("pictures")
    Image.fromarray(data.retina()[500:700, 400:701]).save(folder / "a.png")
    Image.fromarray(data.immunohistochemistry()[:300, :150]).save(folder / "b.png")
    Image.fromarray(data.camera()[100:200, 100:301]).save(folder / "c.png")
    return folder


@pytest.mark.parametrize(
    ("model", "needs_fedad"),
    [
        ({"image_size": 48, "stem": "imagenet"}, False),
        ({"image_size": 48, "stem": "imagenet", "norm": "group"}, False),
        ({"image_size": 32, "base_channels": 32}, True),
    ],
)
def test_the_bundle_gives_load_extractors_features(
    tmp_path: Path, pictures: Path, model: dict[str, Any], needs_fedad: bool
) -> None:
    write_result(tmp_path / "fedad", {"model": model})
    bundle = tmp_path / "bundle"
    write_bundle(JobResult.read(tmp_path / "fedad"), bundle, "encoder")
    config, meta = str(bundle / "configs/inference.json"), str(bundle / "configs/metadata.json")
    assert ("fedad_components" in (bundle / "configs/inference.json").read_text()) == needs_fedad

    output = tmp_path / "features.npz"
    workflow = ConfigWorkflow(
        config_file=config, meta_file=meta, logging_file=False, workflow_type="infer", bundle_root=str(bundle),
        dataset_dir=str(pictures), output_file=str(output), device="$torch.device('cpu')",
    )  # fmt: skip
    workflow.initialize()
    workflow.run()
    found = np.load(output, allow_pickle=False)
    assert [Path(name).name for name in found["files"]] == ["a.png", "b.png", "c.png"]

    # As a site fits its images to a square and the probe computes its features.
    side = cache_side(model["image_size"])
    frames = [to_rgb(np.asarray(Image.open(path))) for path in sorted(pictures.iterdir())]
    images = np.stack([fit_square(frame, side, "crop") for frame in frames])
    expected = extract_features(load_extractor(tmp_path / "fedad/extractor.safetensors"), images, model["image_size"])
    np.testing.assert_allclose(found["features"], expected, rtol=1e-6, atol=1e-6)
    assert np.ptp(expected, axis=0).max() > 1e-3  # the pictures' features differ, so that this shows something

    # MONAI's own check of the metadata's shapes against the network
    verify_net_in_out("network", meta_file=meta, config_file=config, device="cpu", bundle_root=str(bundle))
    assert torch.load(bundle / "models/model.pt", weights_only=True).keys() >= {"conv1.weight", "layer4.1.bn2.bias"}


def test_the_metadata_has_what_the_specification_demands(tmp_path: Path) -> None:
    config = write_result(tmp_path / "fedad", SMALL)
    write_bundle(JobResult.read(tmp_path / "fedad"), tmp_path / "bundle", "encoder", "cc-by-4.0")
    parser = ConfigParser()
    parser.read_meta(tmp_path / "bundle/configs/metadata.json")
    meta = parser["_meta_"]
    assert meta.keys() >= MANDATORY
    for tensor in (meta["network_data_format"]["inputs"]["image"], meta["network_data_format"]["outputs"]["pred"]):
        assert tensor.keys() >= OF_A_TENSOR
    assert meta["network_data_format"]["outputs"]["pred"]["num_channels"] == 256
    assert meta["fedad"]["config_digest"] == config.digest()
    assert "cc-by-4.0" in (tmp_path / "bundle/docs/license.txt").read_text()
    assert sorted(path.relative_to(tmp_path / "bundle").as_posix() for path in tmp_path.rglob("bundle/*/*")) == [
        "configs/inference.json", "configs/metadata.json", "docs/README.md", "docs/license.txt",
        "models/extractor.safetensors", "models/model.pt",
    ]  # fmt: skip
    with pytest.raises(ExportError, match="not an empty folder"):
        write_bundle(JobResult.read(tmp_path / "fedad"), tmp_path / "bundle", "encoder")


def test_the_card_says_what_the_records_say(tmp_path: Path) -> None:
    config = write_result(tmp_path / "fedad", SMALL)
    card = model_card(JobResult.read(tmp_path / "fedad"), "Encoder")
    front, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(front)["license"] == "other"
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|$", body, re.MULTILINE)
    assert rows == [("alpha", "120", "2"), ("beta", "80", "1")]
    assert hashlib.sha256((tmp_path / "fedad/extractor.safetensors").read_bytes()).hexdigest() in body
    assert config.digest() in body
    assert statement(config) in body
    assert "20.0 MB" in body
    assert "beta 1" in body
    assert "epsilon =" not in body
    assert "Nothing was measured." in body
    assert "Not for diagnosis" in body
    headings = re.findall(r"^## (.+)$", body, re.MULTILINE)
    assert headings == [
        "Model details", "Uses", "Bias, risks and limitations", "How to use", "Training", "Evaluation",
        "Environmental impact", "Citation", "Contact",
    ]  # fmt: skip
    assert body.count("*To be filled in:") == 8
    assert not re.search(r"\{\{|\{%", card)
    assert "\n\n\n" not in card


def test_an_epsilon_stands_only_where_a_record_claims_it(tmp_path: Path) -> None:
    private = {
        "model": {"image_size": 32, "norm": "group"},
        "training": {"max_images": 0},
        "privacy": {"mode": "dp_sgd", "noise_multiplier": 1.0, "units_per_step": 4},
    }
    silent: dict[str, Any] = {"losses": {}, "n_samples": {}}
    config = write_result(tmp_path / "claimed", private, **silent, claims={"alpha": CLAIM})
    card = model_card(JobResult.read(tmp_path / "claimed"), "Encoder")
    assert card.count("epsilon = ") == 2  # one for each adjacency
    (alpha,) = [line for line in card.splitlines() if line.startswith("| alpha")]
    assert str(CLAIM) in alpha
    assert alpha.endswith("; 1 |")
    (beta,) = [line for line in card.splitlines() if line.startswith("| beta")]
    assert "no claim" in beta
    assert "kept at the site by the privacy mode" in beta
    assert statement(config) in card

    write_result(tmp_path / "unclaimed", private, **silent)
    card = model_card(JobResult.read(tmp_path / "unclaimed"), "Encoder")
    assert "epsilon = " not in card
    assert "The records hold no claim: no epsilon is stated." in card


def test_the_evaluation_is_shown_with_what_it_lacks(tmp_path: Path) -> None:
    write_result(tmp_path / "fedad", SMALL)
    picture, generator = data.immunohistochemistry(), np.random.default_rng(0)
    corners = generator.integers(0, 150, (24, 2)) + np.repeat([[0, 0], [0, 300]], 12, axis=0)
    tiles = np.stack([picture[row : row + 36, column : column + 36] for row, column in corners])
    images = LabelledImages("hospital-c", tiles, ["left"] * 12 + ["right"] * 12)
    evaluation = evaluate(load_extractor(tmp_path / "fedad/extractor.safetensors"), [], images, 32, [Protocol.TARGET])
    (tmp_path / "evaluation.json").write_text(evaluation.model_dump_json())
    card = model_card(JobResult.read(tmp_path / "fedad", evaluation=tmp_path / "evaluation.json"), "Encoder")
    (row,) = [line for line in card.splitlines() if line.startswith("| target ")]
    assert f"{evaluation.results[0].scores.f1:.3f}" in row
    assert "Not measured: `source`; `few-shot`; `knn`; `fine-tune`; any other hospital." in card
    assert "Nothing was measured" not in card


def test_names_in_a_card_are_text(tmp_path: Path) -> None:
    write_result(tmp_path / "fedad", SMALL)
    result = JobResult.read(tmp_path / "fedad")
    card = model_card(result, "<script>x</script>\n# A heading")
    assert "<script>" not in card
    assert "\n# A heading" not in card
    for licence in ("mit: [x]\nfoo: bar", "mit # x"):
        with pytest.raises(ExportError, match=r"expected an identifier, such as apache-2\.0"):
            model_card(result, "Encoder", licence)
    command = ["export", "card", str(tmp_path / "fedad"), "--out", str(tmp_path / "none" / "card.md")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "expected a file in a folder that exists" in " ".join(refused.output.split())


def test_files_of_two_jobs_are_refused(tmp_path: Path) -> None:
    write_result(tmp_path / "a", SMALL)
    write_result(tmp_path / "b", {"model": {"image_size": 40, "base_channels": 32}})
    with pytest.raises(ExportError, match=r"image_size is '32', and .*config.json says '40'"):
        JobResult.read(tmp_path / "a", config=tmp_path / "b/config.json")
    lines = (tmp_path / "a/rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a/rounds.jsonl").write_text(lines[0])
    with pytest.raises(ExportError, match=r"rounds is '2', and rounds.jsonl says '1'"):
        JobResult.read(tmp_path / "a")
    config = FedADConfig.load(tmp_path / "b/config.json")
    save_extractor(tmp_path / "b/extractor.safetensors", initial_state(config), config)
    with pytest.raises(ExportError, match=r"of no finished job \(a run of `fedad benchmark` is none\)"):
        JobResult.read(tmp_path / "b")
    (tmp_path / "b/extractor.safetensors").unlink()
    with pytest.raises(ExportError, match="expected the folder 'fedad' of a downloaded job"):
        JobResult.read(tmp_path / "b")


def test_the_commands_write_and_do_not_overwrite(tmp_path: Path) -> None:
    write_result(tmp_path / "fedad", SMALL)
    card = ["export", "card", str(tmp_path / "fedad"), "--out", str(tmp_path / "CARD.md"), "--name", "Cells"]
    assert CliRunner().invoke(app, card).exit_code == 0
    assert "# Cells" in (tmp_path / "CARD.md").read_text()
    again = CliRunner().invoke(app, card)
    assert again.exit_code == 1
    assert "exists: use --force" in again.output
    bundle = ["export", "bundle", str(tmp_path / "fedad"), "--out", str(tmp_path / "bundle")]
    assert CliRunner().invoke(app, bundle).exit_code == 0
    (tmp_path / "fedad/config.json").unlink()
    result = CliRunner().invoke(app, [*card, "--force"])
    assert result.exit_code == 1
    assert "give the experiment's configuration with --config" in " ".join(result.output.split())
