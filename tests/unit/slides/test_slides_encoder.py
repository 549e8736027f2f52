"""Encoders against the networks that they are cut from; and files of weights that are not what they should be."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18, resnet50

from fedad_components.config import FedADConfig
from fedad_components.evaluation.features import extract_features
from fedad_components.fedsd.model import build_extractor
from fedad_components.fedsd.state import load_extractor, save_extractor, wire_state
from fedad_components.fedsd.views import normalise
from fedad_components.files import sha256_of
from fedad_components.slides.encoder import load_encoder
from fedad_components.slides.reader import SlidesError

PATCHES = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
NORMALISED = normalise(torch.from_numpy(PATCHES).permute(0, 3, 1, 2).float() / 255)


def test_resnet50_to_the_third_block(tmp_path: Path) -> None:
    """Parameters as in the paper; features as those of the whole network, seen by a hook behind its third block."""
    torch.manual_seed(1)
    whole = resnet50(weights=None).eval()
    torch.save(whole.state_dict(), tmp_path / "resnet50.pth")
    encoder = load_encoder("resnet50", tmp_path / "resnet50.pth", sha256_of(tmp_path / "resnet50.pth"))
    assert sum(parameter.numel() for parameter in encoder.module.parameters()) == 8_543_296
    seen: list[torch.Tensor] = []
    whole.layer3.register_forward_hook(lambda module, given, output: seen.append(output))
    with torch.inference_mode():
        whole(NORMALISED)
    features = encoder(torch.from_numpy(PATCHES))
    assert features.shape == (3, 1024)
    assert torch.allclose(features, seen[0].mean((2, 3)), atol=1e-5)


def test_fedads_extractor_gives_the_features_of_an_evaluation(tmp_path: Path) -> None:
    config = FedADConfig.parse({"model": {"image_size": 96}})
    path = tmp_path / "extractor.safetensors"
    save_extractor(path, wire_state(build_extractor(config.model, seed=3)), config)
    encoder = load_encoder("fedad", path)
    assert encoder.digest == sha256_of(path)
    expected = extract_features(load_extractor(path), PATCHES, 96)
    assert expected.shape == (3, 512)
    assert np.allclose(encoder(torch.from_numpy(PATCHES)).numpy(), expected, atol=1e-5)
    with pytest.raises(SlidesError, match="--sha256 says"):
        load_encoder("fedad", path, "0" * 64)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_torchvisions_without_its_classifier(tmp_path: Path, suffix: str) -> None:
    torch.manual_seed(1)
    whole = resnet18(weights=None, num_classes=7).eval()
    path = tmp_path / f"w.{suffix}"
    if suffix == "pth":
        torch.save({"state_dict": {f"module.{name}": value for name, value in whole.state_dict().items()}}, path)
    else:
        save_file(whole.state_dict(), path)
    encoder = load_encoder("torchvision:resnet18", path, sha256_of(path).upper())
    whole.fc = torch.nn.Identity()
    with torch.inference_mode():
        assert torch.allclose(encoder(torch.from_numpy(PATCHES)), whole(NORMALISED), atol=1e-5)


def test_timms_with_its_own_normalisation(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    whole = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=5).eval()
    save_file(whole.state_dict(), tmp_path / "w.safetensors")
    encoder = load_encoder(
        "timm:vit_tiny_patch16_224", tmp_path / "w.safetensors", sha256_of(tmp_path / "w.safetensors")
    )
    assert (encoder.side, encoder.mean) == (224, (0.5, 0.5, 0.5))
    x = torch.from_numpy(PATCHES).permute(0, 3, 1, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, :224, :224]
    whole.reset_classifier(0)
    with torch.inference_mode():
        expected = whole((x.float() / 255 - 0.5) / 0.5)
    assert torch.allclose(encoder(x.permute(0, 2, 3, 1)), expected, atol=1e-4)


def test_random_weights_are_the_same_each_time_and_say_so() -> None:
    first, second = (load_encoder("torchvision:resnet18", random=True) for _ in range(2))
    assert first.digest == second.digest != load_encoder("torchvision:shufflenet_v2_x0_5", random=True).digest
    assert first.to_json()["random_weights"] is True


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("executed"),))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good, evil, other = tmp_path / "good.pth", tmp_path / "evil.pth", tmp_path / "other.pth"
    torch.save(resnet18(weights=None).state_dict(), good)
    evil.write_bytes(pickle.dumps(Evil()))
    torch.save({"a": 1}, other)
    digest = sha256_of(good)
    cases = [
        (("resnet50", None), "--weights: expected the encoder's file"),
        (("torchvision:resnet18", good), f"its SHA-256 is {digest}: compare"),
        (("torchvision:resnet18", good, "0" * 64), "--sha256 says"),
        (("resnet50", good, digest), "weights of another network"),
        (("torchvision:resnet18", evil, sha256_of(evil)), "tensors only"),
        (("torchvision:resnet18", other, sha256_of(other)), "tensors by name"),
        (("torchvision:resnet18", tmp_path / "gone.pth", digest), "No such file"),
        (("torchvision:no_such_net", good, digest), "list_models"),
        (("torchvision:squeezenet1_0", good, digest), "linear classifier"),
        (("resnet50:x", good, digest), "expected resnet50, fedad"),
        (("torchvision:resnet18", good, digest, True), "exclude each other"),
        (("fedad", good, None, True), "another encoder"),
        (("fedad", good), "cannot be read as safetensors"),
    ]
    for arguments, said in cases:
        with pytest.raises(SlidesError, match=said):
            load_encoder(*arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "executed").exists()
