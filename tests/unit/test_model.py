from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fedad_components.config import FedADConfig, ModelConfig
from fedad_components.fedsd import model
from fedad_components.fedsd.seeds import stream
from fedad_components.fedsd.state import load_extractor, save_extractor, wire_spec, wire_state

RESNET18_WITHOUT_FC = 11_176_512
"""torchvision's documented 11,689,512 less the last layer's 512 * 1000 + 1000."""


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def configuration(image_size: int, norm: str) -> ModelConfig:
    weights = {"file": "weights.safetensors", "sha256": "0" * 64} if norm == "folded" else None
    return ModelConfig.model_validate({"image_size": image_size, "norm": norm, "initial_weights": weights})


@pytest.mark.parametrize("norm", ["batch", "local", "group", "folded"])
def test_parameter_counts(norm: str) -> None:
    with torch.device("meta"):
        large = model.build_extractor(configuration(224, norm))
        small = model.build_extractor(configuration(48, norm))
        head = model.build_head(0, "site")
    assert count(large) == RESNET18_WITHOUT_FC
    assert count(large) - count(small) == 64 * 3 * (7 * 7 - 3 * 3)
    assert count(head) == 512 * 512 + 512 + 512 * 256 + 256


@pytest.mark.parametrize(("image_size", "last_map"), [(32, 4), (95, 12), (96, 3)])
def test_stem_follows_the_view_size(image_size: int, last_map: int) -> None:
    extractor = model.build_extractor(ModelConfig(image_size=image_size)).eval()
    maps: list[torch.Tensor] = []
    extractor.layer4.register_forward_hook(lambda module, args, output: maps.append(output))
    assert extractor(torch.zeros(1, 3, image_size, image_size)).shape == (1, 512)
    assert maps[0].shape[-2:] == (last_map, last_map)


def test_half_the_width_is_a_quarter_of_the_weights_and_its_file_loads(tmp_path: Path) -> None:
    half, whole = (
        FedADConfig.parse({"model": {"image_size": 64, "stem": "imagenet", "base_channels": channels}})
        for channels in (32, 64)
    )
    extractor, x = model.build_extractor(half.model).eval(), torch.randn(2, 3, 64, 64)
    assert extractor(x).shape == (2, model.feature_count(half.model)) == (2, 256)
    assert extractor.conv1.kernel_size == (7, 7)
    inner_convolutions = [
        sum(math.prod(shape) for name, shape in wire_spec(config).items() if len(shape) == 4 and name != "conv1.weight")
        for config in (half, whole)
    ]
    assert inner_convolutions[0] * 4 == inner_convolutions[1]
    save_extractor(tmp_path / "half.safetensors", wire_state(extractor), half)
    torch.testing.assert_close(load_extractor(tmp_path / "half.safetensors")(x), extractor(x))


@pytest.mark.parametrize("method", ["fedad", "fedema", "feddis"])
def test_batch_norm_in_the_head_adds_two_weights_a_layer_and_no_statistics(method: str) -> None:
    plain, normed = (model.build_head(0, "site", method, norm=norm) for norm in ("none", "batch"))
    hidden = sum(isinstance(module, nn.ReLU) for module in plain.modules())
    assert count(normed) - count(plain) == hidden * 2 * 512
    assert not list(normed.buffers())
    h = torch.randn(6, 512)
    assert torch.equal(normed.eval()(h), normed.train()(h))  # by the batch, always
    if method == "fedad":
        first, last = normed[0], normed[-1]
        expected = last(torch.relu((a := first(h) - first(h).mean(0)) / (a.square().mean(0) + 1e-5).sqrt()))
        torch.testing.assert_close(normed(h), expected)


def test_scale_and_shift_and_its_gradients() -> None:
    """Against the arithmetic written out, in float64."""
    layer = model.ScaleShift(5).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 5, 4, 4, dtype=torch.float64, requires_grad=True)
    inputs = (x, layer.weight, layer.bias)
    expected = x * layer.weight.view(-1, 1, 1) + layer.bias.view(-1, 1, 1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(x)
    for mode in (True, False):
        found = torch.autograd.grad(layer.train(mode)(x), inputs, upstream)
        wanted = torch.autograd.grad(expected, inputs, upstream, retain_graph=True)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert not list(layer.buffers())


@pytest.mark.parametrize("norm", ["group", "folded"])
def test_norms_for_privacy_see_one_image(norm: str) -> None:
    extractor = model.build_extractor(configuration(32, norm))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in extractor.modules())
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(extractor(x)[:1], extractor(x[:1]), atol=1e-4, rtol=1e-4)


def test_initial_weights_are_public_and_heads_are_not() -> None:
    torch.manual_seed(1)
    first, second = (model.build_extractor(ModelConfig(image_size=32), seed=3) for _ in range(2))
    torch.manual_seed(1)
    undisturbed = torch.rand(1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(model.build_head(3, "a")[0].weight, model.build_head(3, "b")[0].weight)
    assert torch.equal(model.build_head(3, "a")[0].weight, model.build_head(3, "a")[0].weight)
    torch.manual_seed(1)
    model.build_head(3, "a")
    assert torch.equal(torch.rand(1), undisturbed)


def test_projection_is_orthonormal_public_and_fixed() -> None:
    projection = model.build_projection(5)
    assert projection.weight.shape == (128, 512)
    assert projection.bias is None
    assert not projection.weight.requires_grad
    torch.testing.assert_close(projection.weight @ projection.weight.T, torch.eye(128), atol=1e-6, rtol=0)
    assert torch.equal(projection.weight, model.build_projection(5).weight)
    assert not torch.equal(projection.weight, model.build_projection(6).weight)


def test_orthonormal_embeds_without_changing_angles() -> None:
    matrix = model.orthonormal(128, 20, 0, "test")
    torch.testing.assert_close(matrix.T @ matrix, torch.eye(20), atol=1e-6, rtol=0)


def test_orthonormal_is_gram_schmidt_of_public_draws() -> None:
    """The one orthonormalisation that no library's choice of signs can change."""
    gaussian = torch.randn(20, 4, dtype=torch.float64, generator=stream(9, "test"))
    basis: list[torch.Tensor] = []
    for column in gaussian.T:
        for earlier in basis:
            column = column - (column @ earlier) * earlier
        basis.append(column / column.norm())
    torch.testing.assert_close(model.orthonormal(4, 20, 9, "test"), torch.stack(basis).float(), atol=1e-6, rtol=0)


def test_head_is_linear_relu_linear() -> None:
    head, h = model.build_head(0, "site"), torch.randn(3, 512)
    first_weight, first_bias, second_weight, second_bias = head.state_dict().values()
    expected = (h @ first_weight.T + first_bias).clamp_min(0) @ second_weight.T + second_bias
    torch.testing.assert_close(head(h.clone()), expected, atol=1e-5, rtol=1e-5)


def test_split_gives_the_halves() -> None:
    z_s, z_d = model.split(torch.arange(256.0).expand(2, 3, 256))
    assert z_s.shape == z_d.shape == (2, 3, 128)
    assert z_s[0, 0, 0] == 0
    assert z_d[0, 0, 0] == 128


def test_estimated_statistics_are_those_of_the_images() -> None:
    """The first BatchNorm sees conv1's output, whose mean and variance can be computed directly."""
    extractor = model.build_extractor(ModelConfig(image_size=32)).eval()
    x = 2 + torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model.estimate_statistics(extractor, [x[:4], x[4:]])
    with torch.no_grad():
        maps = [extractor.conv1(part) for part in (x[:4], x[4:])]
    mean = torch.stack([part.mean(dim=(0, 2, 3)) for part in maps]).mean(0)
    variance = torch.stack([part.var(dim=(0, 2, 3)) for part in maps]).mean(0)
    torch.testing.assert_close(extractor.bn1.running_mean, mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(extractor.bn1.running_var, variance, atol=1e-4, rtol=1e-4)
    assert not extractor.training
    assert extractor.bn1.momentum == 0.1
