"""SimCLR's two views of each image. Imports torch and torchvision only.

All random parameters are drawn on the CPU from an explicit generator, one set a view, and then applied to whole batches
on the images' device. What is drawn does not depend on which steps are on: switching one leaves the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedad_components.fedsd import pixels

if TYPE_CHECKING:
    from fedad_components.config import ViewsConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 10
STAIN_P = 0.8
STAIN_OFFSET_STD = 0.1
JITTER = (pixels.adjust_brightness, pixels.adjust_contrast, pixels.adjust_saturation, pixels.adjust_hue)


def blur_kernel(image_size: int) -> int:
    """Side of the blur's kernel in pixels: 23 at 224, in proportion to the view, odd and at least 3."""
    return max(2 * round((23 * image_size / 224 - 1) / 2) + 1, 3)


def normalise(x: Tensor) -> Tensor:
    """``(N, 3, H, W)`` in [0, 1] to ImageNet's mean 0 and standard deviation 1, in channels_last."""
    mean, std = (x.new_tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def denormalise(x: Tensor) -> Tensor:
    """The inverse of :func:`normalise`."""
    mean, std = (x.new_tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return x * std + mean


@dataclass(frozen=True)
class Draw:
    """Random parameters of V views, all on the CPU."""

    boxes: Tensor
    """``(V, 4)`` int64: top, left, height, width of the crop in pixels."""
    flip: Tensor
    """``(V,)`` bool."""
    stain: Tensor
    """``(V,)`` bool, with ``stain_gain`` and ``stain_offset``."""
    stain_gain: Tensor
    """``(V, 3)``."""
    stain_offset: Tensor
    """``(V, 3)``, in optical density."""
    jitter: Tensor
    """``(V,)`` bool, with ``order`` and ``factors``."""
    order: Tensor
    """``(V, 4)`` int64: which of JITTER comes first, second, ..."""
    factors: Tensor
    """``(V, 4)``: the factor of each of JITTER."""
    grey: Tensor
    """``(V,)`` bool."""
    blur: Tensor
    """``(V,)`` bool."""
    sigma: Tensor
    """``(V,)``, in pixels."""


def draw_boxes(count: int, side: int, scale_min: float, generator: torch.Generator) -> Tensor:
    """RandomResizedCrop's boxes on square images, ``(count, 4)`` int64: the first of ten attempts that fits."""
    area = torch.empty(count, CROP_ATTEMPTS).uniform_(scale_min, 1, generator=generator) * side**2
    log_aspect = torch.empty(count, CROP_ATTEMPTS).uniform_(*map(math.log, CROP_ASPECT), generator=generator)
    width = (area * log_aspect.exp()).sqrt().round().long()
    height = (area / log_aspect.exp()).sqrt().round().long()
    fits = (width > 0) & (width <= side) & (height > 0) & (height <= side)
    first = fits.int().argmax(dim=1, keepdim=True)
    width, height = (
        torch.where(fits.any(dim=1), lengths.gather(1, first).squeeze(1), side) for lengths in (width, height)
    )
    place = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    top = (place[:, 0] * (side - height + 1)).long()
    left = (place[:, 1] * (side - width + 1)).long()
    return torch.stack([top, left, height, width], dim=1)


class Views:
    """Crop, flip, stain jitter, colour jitter, grey, blur, normalise.

    The spec's first step, bicubic resizing to a common side, is done once at ingest.
    """

    def __init__(self, config: ViewsConfig, image_size: int) -> None:
        self.config = config
        self.image_size = image_size

    def draw(self, count: int, side: int, generator: torch.Generator) -> Draw:
        """Parameters of ``count`` views of images with ``side`` pixels."""
        c = self.config

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return torch.empty(count, *shape).uniform_(low, high, generator=generator)

        def happens(p: float) -> Tensor:
            return torch.rand(count, generator=generator) < p

        def around_one(spread: float) -> Tensor:
            return uniform(max(0.0, 1 - spread), 1 + spread)

        return Draw(
            boxes=draw_boxes(count, side, c.crop_scale_min, generator),
            flip=happens(c.flip_p),
            stain=happens(STAIN_P if c.stain_jitter else 0.0),
            stain_gain=uniform(max(0.0, 1 - c.stain_jitter), 1 + c.stain_jitter, 3),
            stain_offset=torch.randn(count, 3, generator=generator) * STAIN_OFFSET_STD,
            jitter=happens(c.jitter_p),
            order=torch.rand(count, len(JITTER), generator=generator).argsort(dim=1),
            factors=torch.stack(
                [around_one(c.brightness), around_one(c.contrast), around_one(c.saturation), uniform(-c.hue, c.hue)], 1
            ),
            grey=happens(c.greyscale_p),
            blur=happens(c.blur_p),
            sigma=uniform(*c.blur_sigma),
        )

    def apply(self, images: Tensor, draw: Draw) -> Tensor:
        """Views with given parameters.

        ``(N, S, S, 3)`` uint8 to ``(V, 3, P, P)`` normalised; view i is of image i mod N.
        """
        x = pixels.resized_crop(images, draw.boxes, draw.flip, self.image_size)

        def where(mask: Tensor, operation: Callable[..., None], *parameters: Tensor) -> None:
            index = mask.nonzero().squeeze(1)
            if len(index):
                there = index.to(x.device)
                part = x[there]
                operation(part, *(values[index].to(x.device) for values in parameters))
                x[there] = part

        where(draw.stain, pixels.jitter_stain, draw.stain_gain, draw.stain_offset)
        for place in range(len(JITTER)):
            for which, adjust in enumerate(JITTER):
                where(draw.jitter & (draw.order[:, place] == which), adjust, draw.factors[:, which])
        where(draw.grey, pixels.to_greyscale)
        where(draw.blur, partial(pixels.gaussian_blur, blur_kernel(self.image_size)), draw.sigma)
        return normalise(x)

    def whole(self, images: Tensor) -> Tensor:
        """The images as they are, resized: ``(N, S, S, 3)`` uint8 to ``(N, 3, P, P)`` normalised."""
        n, side = images.shape[:2]
        boxes = torch.tensor([[0, 0, side, side]]).expand(n, 4)
        return normalise(pixels.resized_crop(images, boxes, torch.zeros(n, dtype=torch.bool), self.image_size))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Two views of each image: ``(N, S, S, 3)`` uint8 to ``(2N, 3, P, P)`` float32, first views, then second.

        Normalised, channels_last, on the images' device.
        """
        n, side = images.shape[:2]
        draw = self.draw(2 * n, side, generator)
        return self.apply(images, draw)
