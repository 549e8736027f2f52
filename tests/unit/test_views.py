"""Views and their pixel operations, against torchvision's transforms on each image alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.models import ResNet18_Weights
from torchvision.transforms.v2 import functional as TF

from fedad_components.config import ViewsConfig
from fedad_components.fedsd import pixels
from fedad_components.fedsd.seeds import stream
from fedad_components.fedsd.views import Views, blur_kernel, draw_boxes

N = 6
FACTORS = torch.tensor([0.6, 0.8, 1.0, 1.1, 1.3, 1.4])


def images(side: int = 40, count: int = N) -> Tensor:
    """``(count, side, side, 3)`` uint8 with grey, saturated, black and white pixels among the colours."""
    x = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x[:, 0], x[:, 1], x[:, 2], x[:, 3, :, 0] = 0, 255, 128, 255
    return x


def floats() -> Tensor:
    return images().permute(0, 3, 1, 2).float().div(255).contiguous()


@pytest.mark.parametrize(
    ("operation", "reference", "factors"),
    [
        (pixels.adjust_brightness, TF.adjust_brightness, FACTORS),
        (pixels.adjust_contrast, TF.adjust_contrast, FACTORS),
        (pixels.adjust_saturation, TF.adjust_saturation, FACTORS),
        (pixels.adjust_hue, TF.adjust_hue, FACTORS - 1),
    ],
)
def test_colour_operations_equal_torchvision(
    operation: Callable[[Tensor, Tensor], None], reference: Callable[[Tensor, float], Tensor], factors: Tensor
) -> None:
    x = floats()
    expected = torch.stack([reference(x[i], factors[i].item()) for i in range(N)])
    operation(x, factors)
    torch.testing.assert_close(x, expected, atol=2e-5, rtol=0)


def test_greyscale_equals_torchvision() -> None:
    x = floats()
    expected = TF.rgb_to_grayscale(x, num_output_channels=3)
    pixels.to_greyscale(x)
    torch.testing.assert_close(x, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kernel", [3, 9, 23])
def test_blur_equals_torchvision(kernel: int) -> None:
    x, sigma = floats(), torch.linspace(0.1, 2, N)
    expected = torch.stack([TF.gaussian_blur(x[i], [kernel, kernel], [sigma[i].item()] * 2) for i in range(N)])
    pixels.gaussian_blur(kernel, x, sigma)
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=0)


BOXES = torch.tensor([[0, 0, 40, 40], [3, 7, 11, 14], [20, 0, 20, 31], [5, 5, 32, 32], [39, 39, 1, 1], [0, 10, 40, 30]])


def test_crop_equals_torchvision() -> None:
    x = images()
    flip = torch.tensor([False, True, False, True, False, False])
    crops = pixels.resized_crop(x, BOXES, flip, 32)
    for i, box in enumerate(BOXES.tolist()):
        expected = TF.resized_crop(x[i].permute(2, 0, 1), *box, size=[32, 32], antialias=True)
        expected = TF.horizontal_flip(expected) if flip[i] else expected
        assert torch.equal(crops[i], expected / 255)


@pytest.mark.parametrize("side", [24, 32, 64])
def test_matrix_resampling_equals_torchvision(side: int) -> None:
    """What a GPU computes, here on the CPU, enlarging and reducing."""
    x = floats()
    rows = pixels.resampling_matrix(BOXES[:, 0], BOXES[:, 2], 40, side)
    columns = pixels.resampling_matrix(BOXES[:, 1], BOXES[:, 3], 40, side)
    resampled = pixels.apply_separable(x, rows, columns)
    for i, box in enumerate(BOXES.tolist()):
        expected = TF.resized_crop(x[i], *box, size=[side, side], antialias=True)
        torch.testing.assert_close(resampled[i], expected, atol=1e-5, rtol=0)


def test_stain_jitter_is_affine_in_optical_density() -> None:
    x = floats().clamp(0.2, 0.8)
    gain, offset = torch.full((N, 3), 1.2), torch.full((N, 3), 0.05)
    expected = 1.2 * -x.log() + 0.05
    pixels.jitter_stain(x, gain, offset)
    torch.testing.assert_close(-x.log(), expected, atol=1e-5, rtol=0)


def test_boxes_have_simclrs_distribution() -> None:
    side, count = 256, 4000
    boxes = draw_boxes(count, side, 0.08, torch.Generator().manual_seed(0))
    top, left, height, width = boxes.double().unbind(1)
    assert (boxes[:, :2] >= 0).all()
    assert ((top + height) <= side).all()
    assert ((left + width) <= side).all()
    area, aspect = height * width / side**2, width / height
    assert 0.07 < area.min() < 0.1
    assert area.max() > 0.95
    assert 0.48 < area.mean() < 0.54  # uniform would be .54; crops that do not fit are drawn again
    assert 0.73 < aspect.min() < 0.78
    assert 1.29 < aspect.max() < 1.37
    assert abs(aspect.log().mean()) < 0.02
    centre = (top + height / 2).mean() / side
    assert abs(centre - 0.5) < 0.01


def test_impossible_crops_take_the_whole_image() -> None:
    boxes = draw_boxes(50, 1, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(boxes, torch.tensor([[0, 0, 1, 1]]).expand(50, 4))


@pytest.mark.parametrize(("image_size", "kernel"), [(224, 23), (96, 9), (48, 5), (32, 3)])
def test_blur_kernel_scales_with_the_view(image_size: int, kernel: int) -> None:
    assert blur_kernel(image_size) == kernel


def test_a_view_equals_torchvisions_pipeline_with_the_same_parameters() -> None:
    """Crop, flip, stain, colour jitter in its own order, grey, blur, ImageNet's normalisation."""
    imagenet = ResNet18_Weights.IMAGENET1K_V1.transforms()
    config = ViewsConfig(jitter_p=0.7, greyscale_p=0.4, stain_jitter=0.3)
    views, x = Views(config, 32), images(count=8)
    draw = views.draw(16, 40, stream(0, "test"))
    result = views.apply(x, draw)
    adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    for i in range(16):
        y = TF.resized_crop(x[i % 8].permute(2, 0, 1), *draw.boxes[i].tolist(), size=[32, 32], antialias=True) / 255
        if draw.flip[i]:
            y = TF.horizontal_flip(y)
        if draw.stain[i]:
            density = -y.clamp_min(1 / 255).log()
            y = (-(draw.stain_gain[i].view(3, 1, 1) * density + draw.stain_offset[i].view(3, 1, 1))).exp().clamp(0, 1)
        if draw.jitter[i]:
            for which in draw.order[i].tolist():
                y = adjust[which](y, draw.factors[i, which].item())
        if draw.grey[i]:
            y = TF.rgb_to_grayscale(y, num_output_channels=3)
        if draw.blur[i]:
            y = TF.gaussian_blur(y, [3, 3], [draw.sigma[i].item()] * 2)
        torch.testing.assert_close(result[i], TF.normalize(y, imagenet.mean, imagenet.std), atol=2e-3, rtol=0)


def test_two_views_differ_and_the_stream_decides() -> None:
    views = Views(ViewsConfig(), 32)
    first, again, other = (views(images(), stream(0, "views", "s", t)) for t in (0, 0, 1))
    assert first.shape == (2 * N, 3, 32, 32)
    assert first.dtype == torch.float32
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:N], first[N:])


def test_parameters_are_drawn_for_each_view() -> None:
    views = Views(ViewsConfig(stain_jitter=0.4), 32)
    draw = views.draw(2 * N, 40, stream(0, "test"))
    for name in ("factors", "sigma", "stain_gain", "stain_offset"):
        assert len(getattr(draw, name).unique(dim=0)) == 2 * N, name
    assert torch.equal(views(images(), stream(0, "test")), views.apply(images(), draw))


def test_switching_a_step_leaves_the_other_draws_alone() -> None:
    plain, stained = (Views(ViewsConfig(stain_jitter=s), 32).draw(20, 40, stream(0, "test")) for s in (0.0, 0.4))
    assert not plain.stain.any()
    assert stained.stain.any()
    for name in ("boxes", "flip", "jitter", "order", "factors", "grey", "blur", "sigma"):
        assert torch.equal(getattr(plain, name), getattr(stained, name)), name


def test_draws_have_the_configured_frequencies_and_ranges() -> None:
    config = ViewsConfig(stain_jitter=0.3)
    draw = Views(config, 224).draw(4000, 256, stream(0, "test"))
    for name, p in (("flip", 0.5), ("jitter", 0.8), ("grey", 0.2), ("blur", 0.5), ("stain", 0.8)):
        share = getattr(draw, name).float().mean().item()
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / 4000), name
    brightness, contrast, saturation, hue = draw.factors.unbind(1)
    for values, low, high in [
        (draw.sigma, 0.1, 2.0),
        (draw.stain_gain, 0.7, 1.3),
        *((factor, 0.6, 1.4) for factor in (brightness, contrast, saturation)),
        (hue, -0.4, 0.4),
    ]:
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
    assert abs(draw.stain_offset.mean()) < 0.005
    assert draw.stain_offset.std().item() == pytest.approx(0.1, rel=0.05)
    assert torch.equal(draw.order.sort(dim=1).values, torch.arange(4).expand(4000, 4))
