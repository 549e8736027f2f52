from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models import resnet18

from fedad_components.config import ConfigError, FedADConfig
from fedad_components.fedsd import state as states
from fedad_components.fedsd.model import build_extractor, build_head, estimate_statistics


def configuration(norm: str = "batch", image_size: int = 32, head: str = "private", **model: object) -> FedADConfig:
    """For "folded", with a file of initial weights that does not exist unless ``model`` names another."""
    if norm == "folded":
        model = {"initial_weights": {"file": "weights.safetensors", "sha256": "0" * 64}} | model
    return FedADConfig.parse({"model": {"norm": norm, "image_size": image_size, **model}, "loss": {"head": head}})


def without_file(config: FedADConfig) -> FedADConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"initial_weights": None})})


def random_state(config: FedADConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(shape, generator=generator) for name, shape in states.wire_spec(config).items()}


def torchvision_resnet(norm: str) -> nn.Module:
    model = resnet18(norm_layer=(lambda channels: nn.GroupNorm(32, channels)) if norm == "group" else None)
    model.fc = nn.Identity()
    return model


@pytest.mark.parametrize(("norm", "tensors"), [("batch", 100), ("local", 60), ("group", 60), ("folded", 60)])
def test_wire_holds_torchvisions_floating_tensors(norm: str, tensors: int) -> None:
    config = configuration(norm)
    state = states.initial_state(without_file(config))
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == states.wire_spec(config)
    assert len(state) == tensors
    assert set(state) <= set(torchvision_resnet(norm).state_dict())
    assert all(tensor.is_floating_point() and tensor.is_contiguous() for tensor in state.values())
    assert not any("num_batches_tracked" in name or name.startswith(("fc.", "head.")) for name in state)


@pytest.mark.parametrize("norm", ["batch", "local", "group", "folded"])
def test_trainable_names_are_the_parameters(norm: str) -> None:
    names = states.trainable_names(configuration(norm, head="aggregated"))
    assert names == {name for name, _ in torchvision_resnet(norm).named_parameters()}
    assert not any("running" in name or "num_batches" in name for name in names)


def test_aggregated_head_travels() -> None:
    config = configuration(head="aggregated")
    assert {name for name in states.wire_spec(config) if name.startswith("head.")} == {
        "head.0.weight",
        "head.0.bias",
        "head.2.weight",
        "head.2.bias",
    }
    assert set(states.initial_state(config)) == set(states.wire_spec(config))


def test_wire_state_is_a_copy() -> None:
    extractor = build_extractor(configuration().model)
    state = states.wire_state(extractor)
    state["conv1.weight"].zero_()
    assert extractor.conv1.weight.abs().sum() > 0


@pytest.mark.parametrize("prefix", ["_module.", "module.", "_orig_mod.", "_orig_mod.module."])
def test_wrappers_are_transparent(prefix: str) -> None:
    config = configuration(norm="group")
    state = random_state(config)
    extractor = build_extractor(config.model)
    states.load_wire_state({prefix + name: tensor for name, tensor in state.items()}, extractor, norm="group")
    assert torch.equal(extractor.conv1.weight, state["conv1.weight"])
    assert set(states.wire_state(nn.DataParallel(extractor), norm="group")) == set(state)


def test_mixed_wrappers_are_an_error() -> None:
    with pytest.raises(states.StateError, match="wrapped and an unwrapped"):
        states.plain_names({"a": torch.zeros(1), "module.a": torch.zeros(1)})


def test_loading_is_all_or_nothing() -> None:
    config = configuration()
    extractor = build_extractor(config.model)
    before = states.wire_state(extractor)
    good = random_state(config)
    bad_states = {
        "1 missing": {name: tensor for name, tensor in good.items() if name != "bn1.bias"},
        "1 unknown": good | {"head.0.weight": torch.zeros(1)},
        "layer4.1.bn2.weight: expected shape": good | {"layer4.1.bn2.weight": torch.zeros(3)},
        "100 missing": {},
    }
    for message, bad in bad_states.items():
        with pytest.raises(states.StateError, match=message):
            states.load_wire_state(bad, extractor)
    after = states.wire_state(extractor)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_local_statistics_and_counters_stay() -> None:
    config = configuration(norm="local")
    extractor = build_extractor(config.model)
    extractor.bn1.running_mean.fill_(7)
    extractor.bn1.num_batches_tracked.fill_(9)
    states.load_wire_state(random_state(config), extractor, norm="local")
    assert (extractor.bn1.running_mean == 7).all()
    assert extractor.bn1.num_batches_tracked == 9


@torch.no_grad()
@pytest.mark.parametrize("norm", ["batch", "local", "group", "folded"])
@pytest.mark.parametrize("image_size", [32, 96])
def test_export_loads_strictly_into_torchvision_and_back(norm: str, image_size: int, tmp_path: Path) -> None:
    config, path = configuration(norm, image_size), tmp_path / "extractor.safetensors"
    state = random_state(config)
    states.save_extractor(path, state, config, {"round": "3"})
    exported = load_file(path)
    reference = torchvision_resnet(norm)
    reference.load_state_dict(exported, strict=True)
    back = states.from_torchvision(exported, config.model)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["stem"] == ("small" if image_size < 96 else "imagenet")
        assert file.metadata()["round"] == "3"
    assert [entry.name for entry in tmp_path.iterdir()] == ["extractor.safetensors"]

    x = torch.rand(2, 3, image_size, image_size)
    if image_size < 96:
        reference.conv1.stride, reference.maxpool = (1, 1), nn.Identity()
    torch.testing.assert_close(states.load_extractor(path)(x), reference.eval()(x), rtol=1e-4, atol=1e-3)


def test_export_refuses_another_configurations_state(tmp_path: Path) -> None:
    with pytest.raises(states.StateError, match="missing"):
        states.save_extractor(tmp_path / "x", random_state(configuration("group")), configuration("batch"))


def test_load_extractor_refuses_other_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(states.StateError, match="metadata lacks"):
        states.load_extractor(tmp_path / "other.safetensors")
    for name in ("text", "absent"):
        with pytest.raises(states.StateError, match="cannot be read"):
            states.load_extractor(tmp_path / name)
    whole = {"norm": "batch", "image_size": "64", "stem": "small", "base_channels": "64"}
    for key, value in (("norm", "[red]"), ("image_size", "abc"), ("image_size", "1000000"), ("base_channels", "-1")):
        save_file({"a": torch.zeros(1)}, tmp_path / "odd.safetensors", {**whole, key: value})
        with pytest.raises(states.StateError, match=rf"odd\.safetensors: metadata {key} is '{re.escape(value)}'"):
            states.load_extractor(tmp_path / "odd.safetensors")


def weights_file(tmp_path: Path, state: dict[str, Tensor]) -> dict[str, str]:
    save_file(state, tmp_path / "weights.safetensors")
    content = (tmp_path / "weights.safetensors").read_bytes()
    return {"file": "weights.safetensors", "sha256": hashlib.sha256(content).hexdigest()}


def test_initial_weights_come_from_the_agreed_file(tmp_path: Path) -> None:
    model = resnet18()  # with its last layer and counters, as torchvision ships them
    weights = weights_file(tmp_path, model.state_dict())
    state = states.initial_state(configuration(image_size=96, initial_weights=weights), tmp_path)
    expected = model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


@torch.no_grad()
@pytest.mark.parametrize("image_size", [32, 96])
def test_folded_weights_are_the_batch_norm_network_in_evaluation_mode(image_size: int, tmp_path: Path) -> None:
    """To 3e-7 of the features' length, in arithmetic that does not round; and nothing but parameters is left."""
    batch_norm = build_extractor(configuration(image_size=image_size).model, seed=1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, image_size, image_size, generator=generator)
    for layer in batch_norm.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(layer.bias, 0, 0.2, generator=generator)
    estimate_statistics(batch_norm, [x])
    weights = weights_file(tmp_path, states.to_torchvision(batch_norm.state_dict()))
    config = configuration("folded", image_size, initial_weights=weights)
    folded = build_extractor(config.model)
    states.load_wire_state(states.initial_state(config, tmp_path), folded, norm="folded")
    expected = batch_norm.eval().double()(x.double())
    assert (folded.train().double()(x.double()) - expected).norm() < 3e-7 * expected.norm()
    assert list(folded.buffers()) == []
    assert folded.state_dict().keys() == states.wire_spec(config).keys()


def test_weights_without_statistics_cannot_be_folded(tmp_path: Path) -> None:
    weights = weights_file(tmp_path, torchvision_resnet("group").state_dict())
    with pytest.raises(states.StateError, match=r"running_mean: missing: norm 'folded' starts from"):
        states.initial_state(configuration("folded", 96, initial_weights=weights), tmp_path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    weights = weights_file(tmp_path, resnet18().state_dict())
    wrong = configuration(image_size=96, initial_weights=weights | {"sha256": "0" * 64})
    with pytest.raises(states.StateError, match="SHA-256"):
        states.initial_state(wrong, tmp_path)
    with pytest.raises(states.StateError, match="cannot be read"):
        states.initial_state(configuration(image_size=96, initial_weights=weights), tmp_path / "elsewhere")


@pytest.mark.parametrize("file", ["../startup/server.key", "/etc/passwd", "folder/w", "", ".hidden"])
def test_a_job_names_no_path(file: str) -> None:
    """Else a lead's job could ask the server which files it has, and for their SHA-256."""
    with pytest.raises(ConfigError, match=r"model\.initial_weights\.file"):
        FedADConfig.parse({"model": {"initial_weights": {"file": file, "sha256": "0" * 64}}})


def test_imagenet_stem_is_refused_for_small_views(tmp_path: Path) -> None:
    config = configuration(image_size=48, initial_weights=weights_file(tmp_path, resnet18().state_dict()))
    with pytest.raises(states.StateError, match="image_size >= 96"):
        states.initial_state(config, tmp_path)


def test_head_state_needs_a_head() -> None:
    config = configuration(head="aggregated")
    head = build_head(1, "")
    states.load_wire_state(random_state(config), build_extractor(config.model), head)
    assert torch.equal(head[0].weight, random_state(config)["head.0.weight"])
