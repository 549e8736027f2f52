"""The configuration: what it accepts, what its errors say, and its digest."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from fedad_components.config import NAME_PATTERN, ConfigError, FedADConfig, check_name
from fedad_components.methods import METHODS
from fedad_components.presets import PRESETS


def sections(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        for option in (field.annotation, *get_args(field.annotation)):
            if isinstance(option, type) and issubclass(option, BaseModel):
                found += sections(option)
    return found


def shuffled(value: Any, draw: Any) -> Any:
    """The same mapping with its keys in another order, at every depth."""
    if not isinstance(value, dict):
        return value
    return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}


def test_defaults_are_the_papers() -> None:
    config = FedADConfig()
    assert (config.training.epochs, config.training.batch_size, config.federation.rounds) == (3, 64, 40)
    assert (config.training.learning_rate, config.training.weight_decay) == (5e-4, 1e-5)
    assert (config.loss.temperature, config.loss.gamma) == (0.1, 2.0)
    assert (config.training.betas, config.atsa.stability_threshold) == ((0.9, 0.999), 0.05)
    assert config.views.model_dump() == {
        "crop_scale_min": 0.08,
        "flip_p": 0.5,
        "jitter_p": 0.8,
        **dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0.4),
        "greyscale_p": 0.2,
        "blur_p": 0.5,
        "blur_sigma": (0.1, 2.0),
        "stain_jitter": 0.0,
    }
    assert config.loss.model_dump(exclude={"temperature", "gamma"}) == {
        "semantic_alignment": "vectors",
        "domain_alignment": "opposite",
        "teacher_view": "student",
        "teacher_momentum": 0.0,
        "teacher_centering": False,
        "decorrelation": "image",
        "domain_target": "teacher",
        "head_norm": "none",
        "head": "private",
    }
    assert (config.model.image_size, config.model.norm) == (224, "batch")
    assert (config.atsa.lambda_min, config.atsa.lambda_max, config.atsa.alpha, config.atsa.k) == (0.1, 1.0, 0.9, 5.0)


def test_a_preset_fills_in_only_what_the_job_leaves_out() -> None:
    recommended = PRESETS["recommended"]
    filled = FedADConfig.parse({"preset": "recommended", "loss": {"temperature": 0.2}, "views": {"blur_p": 0.0}})
    expected = {**recommended["loss"], "temperature": 0.2}
    assert {key: getattr(filled.loss, key) for key in expected} == expected
    assert {key: getattr(filled.views, key) for key in recommended["views"]} == recommended["views"]
    assert filled.views.blur_p == 0.0
    assert filled.training == FedADConfig().training
    assert FedADConfig.parse({"preset": "paper"}) == FedADConfig()


def test_a_method_stays_what_it_is_under_every_preset() -> None:
    for method, preset in itertools.product(METHODS, PRESETS):
        config = FedADConfig.parse({"method": method, "preset": preset}).to_json()
        for section, values in METHODS[method].settings.items():
            assert {key: config[section][key] for key in values} == values, (method, preset)
        assert config["views"]["hue"] == (0.1 if preset == "recommended" else 0.4)


@pytest.mark.parametrize("key", ["preset", "method"])
@pytest.mark.parametrize("value", [[], {}, None, "best"])
def test_no_preset_or_method_but_those_that_exist(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = .*Input should be '"):
        FedADConfig.parse({key: value})


def test_every_field_is_described() -> None:
    for section in sections(FedADConfig):
        for name, field in section.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert nested or field.description, f"{section.__name__}.{name} has no description"
        assert section.__doc__


@pytest.mark.parametrize(
    ("data", "key", "value"),
    [
        ({"loss": {"gamma": -1}}, "loss.gamma", "-1"),
        ({"loss": {"gama": 2}}, "loss.gama", "2"),
        ({"loss": {"domain_target": "style", "domain_alignment": "orthogonal"}}, "loss", "'style'"),
        ({"seed": -3}, "seed", "-3"),
        ({"model": {"image_size": "large"}}, "model.image_size", "'large'"),
        ({"model": {"norm": "layer"}}, "model.norm", "'layer'"),
        ({"model": {"initial_weights": {"file": "w", "sha256": "abc"}}}, "model.initial_weights.sha256", "'abc'"),
        ({"views": {"hue": 0.6}}, "views.hue", "0.6"),
        ({"atsa": {"lambda_min": 2.0}}, "atsa", "2.0"),
        ({"training": {"device": "tpu"}}, "training.device", "'tpu'"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate", "nan"),
        ({"atsa": {"k": float("inf")}}, "atsa.k", "inf"),
        ({"federation": {"experiment": "../x"}}, "federation.experiment", "'../x'"),
        ({"federation": {"sites_per_round": 1, "min_sites": 2}}, "federation", "min_sites"),
        ({"federation": {"round": 3}}, "federation.round", "unknown key: expected one of experiment, data_set, rounds"),
        ({"model": {"initial_weights": {"name": "w"}}}, "model.initial_weights.name", "expected one of file, sha256"),
        ({"federation": {"rounds": "2"}}, "federation.rounds", "'2'"),
        ({"training": {"epochs": True}}, "training.epochs", "True"),
        ({"training": {"betas": [0.9, 1.0]}}, "training.betas.1", "1.0"),
        ({"views": {"blur_sigma": [2.0, 1.0]}}, "views.blur_sigma", "the smaller sigma first"),
    ],
)
def test_errors_name_the_key_and_the_value(data: dict[str, Any], key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FedADConfig.parse(data)
    assert f"  {key} = " in str(caught.value)
    assert value in str(caught.value)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        FedADConfig.parse({"seed": "x", "loss": {"gamma": -1}})
    assert "seed" in str(caught.value)
    assert "loss.gamma" in str(caught.value)


def test_sections_are_frozen() -> None:
    with pytest.raises(ValidationError):
        FedADConfig().loss.gamma = 1.0  # type: ignore[misc]


@given(st.data())
def test_digest_does_not_depend_on_key_order(data: st.DataObject) -> None:
    config = FedADConfig.parse({"seed": 5, "loss": {"gamma": 0.5}})
    again = FedADConfig.parse(shuffled(config.to_json(), data.draw))
    assert again.digest() == config.digest()


def test_digest_is_that_of_the_canonical_json_and_ignores_what_is_default() -> None:
    assert FedADConfig.parse({"loss": {"gamma": 2}}).digest() == FedADConfig().digest()
    assert len(FedADConfig().digest()) == 64


@pytest.mark.parametrize(
    "data",
    [{"seed": 1}, {"loss": {"gamma": 2.0000001}}, {"federation": {"experiment": "other"}}, {"views": {"hue": 0.0}}],
)
def test_digest_changes_with_any_value(data: dict[str, Any]) -> None:
    assert FedADConfig.parse(data).digest() != FedADConfig().digest()


def test_json_round_trip(tmp_path: Path) -> None:
    config = FedADConfig.parse({"seed": 2**62, "views": {"blur_sigma": [0.5, 1.5]}})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()), encoding="utf-8")
    assert FedADConfig.load(path) == config


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '"text"', "\xff"])
def test_a_file_that_is_not_a_json_object_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json: "):
        FedADConfig.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json: cannot be read"):
        FedADConfig.load(tmp_path / "absent.json")


@pytest.mark.parametrize("name", ["a", "site-1", "A.b_c-9", "x" * 64])
def test_names_that_may_become_files(name: str) -> None:
    assert check_name(name, "site") == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a\n", "-a", "é", "x" * 65, "a\0"])
def test_names_that_may_not(name: str) -> None:
    with pytest.raises(ConfigError, match="site "):
        check_name(name, "site")
    with pytest.raises(ConfigError, match="experiment"):
        FedADConfig.parse({"federation": {"experiment": name}})


@given(st.from_regex(NAME_PATTERN, fullmatch=True))
def test_an_accepted_name_is_one_path_component(name: str) -> None:
    assert Path("folder", check_name(name, "site")).parent == Path("folder")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "model.norm 'batch' couples"),
        ({"model": {"norm": "group"}, "loss": {"head_norm": "batch"}}, "head_norm 'batch' couples"),
        ({"model": {"norm": "local"}}, "model.norm 'local' couples"),
        ({"model": {"norm": "group"}, "loss": {"domain_target": "style"}}, "fits statistics"),
        ({"model": {"norm": "group"}, "training": {"max_images": 8}}, "max_images 8"),
    ],
)
def test_dp_sgd_refuses_what_its_proof_excludes(settings: dict, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        FedADConfig.parse({**settings, "privacy": {"mode": "dp_sgd"}})


@pytest.mark.parametrize("key", ["noise_multiplier", "max_grad_norm", "delta", "weight_noise_alpha"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "2"])
def test_a_privacy_parameter_is_a_positive_number(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"privacy\.{key}"):
        FedADConfig.parse({"privacy": {key: value}})


def test_public_negatives_and_their_data_set_go_together() -> None:
    for privacy in ({"negatives": "public"}, {"public_data_set": "public"}):
        with pytest.raises(ConfigError, match="exactly where the negatives are public"):
            FedADConfig.parse({"privacy": privacy})
    assert FedADConfig.parse({"privacy": {"negatives": "public", "public_data_set": "public"}})


def test_client_dp_needs_a_difference_to_clip() -> None:
    with pytest.raises(ConfigError, match=r"federation\.update to 'difference'"):
        FedADConfig.parse({"model": {"norm": "group"}, "privacy": {"mode": "client_dp"}})


def test_folded_needs_statistics_to_fold() -> None:
    with pytest.raises(ConfigError, match="initial_weights, which is not set"):
        FedADConfig.parse({"model": {"norm": "folded"}})
