"""What must hold on a CUDA device, checked with torch, torchvision and numpy alone; run by gpu_check.sh."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from steps import default_config

from fedad_components.fedsd.model import build_extractor, build_projection
from fedad_components.fedsd.seeds import stream
from fedad_components.fedsd.state import wire_state
from fedad_components.fedsd.teacher import Teacher
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.fedsd.views import Views


def smooth_images(count: int, side: int) -> np.ndarray:
    """``(count, side, side, 3)`` uint8 blobs: unlike noise, they survive resampling."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 1)
    return (fine * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def main() -> int:
    device = torch.device("cuda")
    config = default_config()
    config.model.image_size, config.training.epochs, config.training.batch_size = 96, 2, 32
    images = smooth_images(96, 110)

    views = Views(config.views, config.model.image_size)
    batch = torch.from_numpy(images[:32])
    on_cpu, on_gpu = views(batch, stream(0, "check")), views(batch.to(device), stream(0, "check")).cpu()
    difference = (on_cpu - on_gpu).abs()
    # Hue and contrast may amplify the one grey level by which two exact roundings differ.
    views_agree = difference.mean() < 0.01 and difference.quantile(0.99) < 0.1

    extractor = build_extractor(config.model).to(device)
    extractor.train()(on_gpu.to(device))
    z_g = []
    for precision in ("fp32", "bf16"):
        training: Any = SimpleNamespace(teacher_precision=precision)
        z_g.append(Teacher(extractor, build_projection(0), training, device)(on_gpu.to(device)))
    cosine = torch.nn.functional.cosine_similarity(z_g[0], z_g[1]).min().item()

    trainer = LocalTrainer(config, images, "gpu-check", device)
    began = time.perf_counter()
    result = trainer.train_round(wire_state(build_extractor(config.model)), 0.5, 0)
    finite = all(torch.isfinite(tensor).all() for tensor in result.update.values())
    falls = result.losses[-1]["total"] < result.losses[0]["total"]

    checks = {
        f"views equal the CPU's (mean difference {difference.mean():.4f})": views_agree,
        f"bf16 teacher agrees with fp32 (least cosine {cosine:.6f})": cosine >= 0.9998,
        f"a round of two epochs ({time.perf_counter() - began:.1f} s) gives finite weights": finite,
        f"the loss falls ({result.losses[0]['total']:.3f} to {result.losses[-1]['total']:.3f})": falls,
    }
    for what, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
