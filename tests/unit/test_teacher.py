from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from skimage import data
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.config import ModelConfig, TrainingConfig
from fedad_components.fedsd.model import ScaleShift, build_extractor, build_projection, estimate_statistics
from fedad_components.fedsd.teacher import Teacher, fold_batch_norm, teacher_dtype
from fedad_components.fedsd.views import normalise

CPU = torch.device("cpu")


@cache
def tissue() -> Tensor:
    """``(8, 3, 32, 32)`` normalised tiles of scikit-image's immunohistochemistry."""
    ihc = torch.from_numpy(data.immunohistochemistry())
    tiles = torch.stack([ihc[row : row + 32, 100:132] for row in range(0, 400, 50)])
    return normalise(tiles.permute(0, 3, 1, 2).float() / 255)


@cache
def _estimated(norm: str) -> nn.Module:
    extractor = build_extractor(ModelConfig(image_size=32, norm=norm))
    generator = torch.Generator().manual_seed(0)
    for layer in extractor.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(layer.bias, 0, 0.2, generator=generator)
    estimate_statistics(extractor, [tissue()])
    return extractor.train()


def used_extractor(norm: str = "batch") -> nn.Module:
    """An extractor in training mode, none of whose BatchNorm statistics and weights are the trivial ones."""
    return copy.deepcopy(_estimated(norm))


@torch.no_grad()
def test_folding_is_exact() -> None:
    extractor = used_extractor().eval().double()
    folded = copy.deepcopy(extractor)
    fold_batch_norm(folded)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in folded.modules())
    x = tissue().double()
    torch.testing.assert_close(folded(x), extractor(x), atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_scale_and_shift_is_folded_too() -> None:
    weights = {"file": "weights.safetensors", "sha256": "0" * 64}
    config = ModelConfig.model_validate({"image_size": 32, "norm": "folded", "initial_weights": weights})
    extractor = build_extractor(config).double()
    for layer in extractor.modules():
        if isinstance(layer, ScaleShift):
            nn.init.uniform_(layer.weight, 0.1, 0.5)
            nn.init.normal_(layer.bias, 0, 0.2)
    folded = copy.deepcopy(extractor).eval()
    fold_batch_norm(folded)
    assert not any(isinstance(layer, ScaleShift) for layer in folded.modules())
    x = tissue().double()
    torch.testing.assert_close(folded(x), extractor(x), atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_bf16_teacher_points_where_the_fp32_one_does() -> None:
    """On real images, with statistics as a first local round leaves them."""
    extractor, projection = build_extractor(ModelConfig(image_size=32)).train(), build_projection(0)
    for _ in range(2):
        extractor(tissue())
    z_g = Teacher(extractor, projection, TrainingConfig(teacher_precision="bf16"), CPU)(tissue())
    expected = projection(extractor.eval()(tissue()))
    assert z_g.dtype == torch.float32
    assert F.cosine_similarity(z_g, expected).min() >= 0.9998


@torch.no_grad()
def test_folding_before_the_cast_loses_less_than_casting_alone() -> None:
    extractor, projection = used_extractor(), build_projection(0)
    z_g = Teacher(extractor, projection, TrainingConfig(teacher_precision="bf16"), CPU)(tissue())
    expected = projection(extractor.eval()(tissue()))
    cast_alone = projection(extractor.bfloat16()(tissue().bfloat16()).float())
    assert F.cosine_similarity(z_g, expected).mean() > F.cosine_similarity(cast_alone, expected).mean()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_fp32_teacher_is_the_extractor_in_evaluation_mode(norm: str) -> None:
    extractor, projection = used_extractor(norm), build_projection(0)
    z_g = Teacher(extractor, projection, TrainingConfig(teacher_precision="fp32"), CPU)(tissue())
    assert not z_g.requires_grad
    assert extractor.training
    expected = projection(extractor.eval()(tissue())).detach()
    torch.testing.assert_close(z_g, expected, atol=1e-4, rtol=1e-3)


def test_its_precision_is_its_own_under_autocast() -> None:
    teacher = Teacher(used_extractor(), build_projection(0), TrainingConfig(teacher_precision="fp32"), CPU)
    with torch.autocast("cpu", torch.bfloat16):
        z_g = teacher(tissue())
    assert torch.equal(z_g, teacher(tissue()))


def test_does_not_follow_the_student() -> None:
    extractor = used_extractor()
    teacher = Teacher(extractor, build_projection(0), TrainingConfig(teacher_precision="fp32"), CPU)
    before = teacher(tissue())
    with torch.no_grad():
        for parameter in extractor.parameters():
            parameter.add_(1)
    assert torch.equal(teacher(tissue()), before)


def test_precision_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedad_components.fedsd.teacher.native_bf16", lambda device: device.type == "cuda")
    assert teacher_dtype("auto", CPU) == torch.float32
    assert teacher_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert teacher_dtype("bf16", CPU) == torch.bfloat16
    assert teacher_dtype("fp32", torch.device("cuda")) == torch.float32
