"""Pixel operations on batches of images, each image with its own parameters. Imports torch and torchvision only.

Each equals the operation of that name in ``torchvision.transforms.v2.functional`` on the image alone (a test compares
them); there, hue and blur take most of the time, and every image is a separate call. Images are float32
``(V, 3, H, W)`` in [0, 1] and are changed **in place** where a function returns None; a factor is one number an image,
``(V,)``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

GREY_WEIGHTS = (0.2989, 0.587, 0.114)
"""ITU-R BT.601 luma, as in torchvision."""
DARKEST = 1 / 255
"""Smallest intensity of which an optical density is taken."""


def per_image(factor: Tensor) -> Tensor:
    """``(V,)`` to ``(V, 1, 1, 1)``."""
    return factor.view(-1, 1, 1, 1)


def grey(x: Tensor) -> Tensor:
    """``(V, 1, H, W)`` luma."""
    r, g, b = x.unbind(1)
    return (r * GREY_WEIGHTS[0]).add_(g, alpha=GREY_WEIGHTS[1]).add_(b, alpha=GREY_WEIGHTS[2]).unsqueeze_(1)


def adjust_brightness(x: Tensor, factor: Tensor) -> None:
    x.mul_(per_image(factor)).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> None:
    mean = grey(x).mean(dim=(1, 2, 3), keepdim=True)
    x.mul_(per_image(factor)).add_(mean * per_image(1 - factor)).clamp_(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> None:
    luma = grey(x)
    x.mul_(per_image(factor)).add_(luma.mul_(per_image(1 - factor))).clamp_(0, 1)


def adjust_hue(x: Tensor, factor: Tensor) -> None:
    """Turn the hue by ``factor`` of a full circle; value and chroma stay.

    With hue h in [0, 6), minimum m and chroma c, the colour is m + c clamp(|h - 3| - 1), m + c clamp(2 - |h - 2|),
    m + c clamp(2 - |h - 4|), clamped to [0, 1]: no case distinction by sextant.
    """
    r, g, b = x.unbind(1)
    low, high = x.aminmax(dim=1)
    chroma = high - low
    safe = chroma.clamp_min(1e-12)
    h = torch.where(high == r, (g - b) / safe, torch.where(high == g, (b - r) / safe + 2, (r - g) / safe + 4))
    h = h.add_(6 * factor.view(-1, 1, 1)).remainder_(6)
    torch.sub(h, 3, out=r).abs_().sub_(1).clamp_(0, 1).mul_(chroma).add_(low)
    torch.sub(h, 2, out=g).abs_().neg_().add_(2).clamp_(0, 1).mul_(chroma).add_(low)
    torch.sub(h, 4, out=b).abs_().neg_().add_(2).clamp_(0, 1).mul_(chroma).add_(low)


def to_greyscale(x: Tensor) -> None:
    x.copy_(grey(x))


def jitter_stain(x: Tensor, gain: Tensor, offset: Tensor) -> None:
    """Optical density D = -ln x of each channel becomes gain D + offset, so x becomes x^gain e^-offset.

    Args:
        x: ``(V, 3, H, W)``.
        gain: ``(V, 3)``.
        offset: ``(V, 3)``.
    """
    x.clamp_min_(DARKEST).pow_(gain[..., None, None]).mul_((-offset).exp()[..., None, None]).clamp_(0, 1)


def apply_separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Linear maps of rows and columns: ``(V, 3, H, W)``, ``(V, P, H)``, ``(V, Q, W)`` to ``(V, 3, P, Q)``."""
    return rows[:, None] @ x @ columns.mT[:, None]


def gaussian_blur(kernel_size: int, x: Tensor, sigma: Tensor) -> None:
    """Blur with reflected borders, as two products with a banded matrix; ``sigma`` ``(V,)`` is in pixels."""
    side, radius = x.shape[-1], kernel_size // 2
    offset = torch.arange(-radius, radius + 1, device=x.device)
    kernel = torch.exp(-0.5 * (offset / sigma[:, None]).square())
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    source = (torch.arange(side, device=x.device)[:, None] + offset).abs()
    source = (side - 1) - ((side - 1) - source).abs()
    band = x.new_zeros(len(x), side, side)
    band.scatter_add_(2, source.expand(len(x), -1, -1), kernel[:, None].expand(-1, side, -1))
    x.copy_(apply_separable(x, band, band))


def resampling_matrix(start: Tensor, length: Tensor, source: int, target: int) -> Tensor:
    """Antialiased bilinear resampling of ``[start, start + length)``, on an axis of ``source`` pixels, to ``target``.

    Args:
        start: ``(V,)``, first pixel of the crop.
        length: ``(V,)``, its pixels.

    Returns:
        ``(V, target, source)``, rows summing to 1; nothing outside the crop has weight.
    """
    start, length = start.view(-1, 1, 1).float(), length.view(-1, 1, 1).float()
    scale = length / target
    support = scale.clamp_min(1)
    centre = (torch.arange(target, device=start.device).view(1, -1, 1) + 0.5) * scale
    pixel = torch.arange(source, device=start.device).view(1, 1, -1) - start
    weight = (1 - (pixel + 0.5 - centre).abs() / support).clamp_min(0)
    weight = weight * ((pixel >= 0) & (pixel < length))
    return weight / weight.sum(dim=2, keepdim=True)


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor, side: int) -> Tensor:
    """Crop each image to its box, resize to ``side`` (bilinear, antialiased) and mirror where ``flip``.

    On a CPU image by image, as torchvision's uint8 kernel is ten times faster there than the two matrix products that a
    GPU needs, where V separate calls would cost more than the training step. Both round to whole intensities.

    Args:
        images: ``(N, S, S, 3)`` uint8; view i is taken from image i mod N.
        boxes: ``(V, 4)`` int64 on the CPU: top, left, height, width in pixels.
        flip: ``(V,)`` bool on the CPU.

    Returns:
        ``(V, 3, side, side)`` float32 in [0, 1].
    """
    n, source = len(images), images.shape[1]
    if images.device.type == "cpu":
        planes = images.permute(0, 3, 1, 2)
        crops = [
            TF.resized_crop(planes[i % n], *box, size=[side, side], antialias=True)
            for i, box in enumerate(boxes.tolist())
        ]
        x = torch.stack(crops).float()
        x[flip] = x[flip].flip(-1)
    else:
        device = images.device
        top, left, height, width = boxes.to(device, non_blocking=True).unbind(1)
        rows = resampling_matrix(top, height, source, side)
        columns = resampling_matrix(left, width, source, side)
        columns = torch.where(flip.to(device).view(-1, 1, 1), columns.flip(1), columns)
        planes = images.permute(0, 3, 1, 2).float().repeat(len(boxes) // n, 1, 1, 1)
        x = apply_separable(planes, rows, columns).round_()
    return x.div_(255)
