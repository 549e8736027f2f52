"""The frozen teacher: the round's extractor, made cheap without changing its output. Imports torch and torchvision."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedad_components.fedsd.model import ScaleShift

if TYPE_CHECKING:
    from fedad_components.config import TrainingConfig


def fold_batch_norm(module: nn.Module) -> None:
    """Fold each BatchNorm or ScaleShift into the convolution before it, in place and in the weights' own precision.

    Relies on torchvision's habit of naming a normalisation right after its convolution. GroupNorm depends on the image
    and cannot be folded: it stays.
    """
    previous_name, previous = "", module
    for name, child in list(module.named_children()):
        if isinstance(child, (nn.BatchNorm2d, ScaleShift)) and isinstance(previous, nn.Conv2d):
            setattr(module, previous_name, fuse_conv_bn_eval(previous, cast(nn.BatchNorm2d, child)))
            setattr(module, name, nn.Identity())
        fold_batch_norm(child)
        previous_name, previous = name, child


def native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware; emulation would be slower than float32."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def teacher_dtype(precision: Literal["auto", "fp32", "bf16"], device: torch.device) -> torch.dtype:
    """The teacher's precision for ``training.teacher_precision``."""
    if precision == "auto":
        return torch.bfloat16 if native_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


class Teacher:
    """x ``(N, 3, H, W)`` to z_g = p(f(x; theta~)) ``(N, 128)``, float32, without gradient; or to another head's output.

    BatchNorm is folded in float32 **before** the cast: scaling weights that were already rounded would round twice, and
    the statistics themselves do not survive bfloat16.
    """

    def __init__(
        self, extractor: nn.Module, projection: nn.Module, config: TrainingConfig, device: torch.device
    ) -> None:
        self.dtype = teacher_dtype(config.teacher_precision, device)
        frozen = copy.deepcopy(extractor).eval().requires_grad_(False)
        fold_batch_norm(frozen)
        self.extractor = frozen.to(device, self.dtype).to(memory_format=torch.channels_last)
        self.projection = copy.deepcopy(projection).eval().requires_grad_(False).to(device)

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return cast(Tensor, self.projection(self.extractor(x.to(self.dtype)).float()))
