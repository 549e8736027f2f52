"""Features of a slide's patches: read by threads, encoded in batches on the device. Needs torch; no FLARE."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from fedad_components.slides.encoder import Encoder
from fedad_components.slides.patches import Coordinates, PatchPlan, read_patch
from fedad_components.slides.reader import Pixels, Slide

BATCHES_AHEAD = 2
"""Batches that are read while one is encoded: bounds the memory."""


def patch_batches(
    slide: Slide, plan: PatchPlan, coordinates: Coordinates, batch_size: int, workers: int
) -> Iterator[Pixels]:
    """Patches in the order of ``coordinates``, as uint8 ``(B, side, side, 3)`` with B at most ``batch_size``.

    Threads suffice: OpenSlide decodes outside Python's lock, and its handles may be shared.

    Raises:
        Unusable: if the slide is damaged.
    """
    waiting: deque[list[Future[Pixels]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for first in range(0, len(coordinates), batch_size):
                batch = coordinates[first : first + batch_size]
                waiting.append([pool.submit(read_patch, slide, plan, corner) for corner in batch])
                if len(waiting) > BATCHES_AHEAD:
                    yield np.stack([patch.result() for patch in waiting.popleft()])
            while waiting:
                yield np.stack([patch.result() for patch in waiting.popleft()])
        finally:
            pool.shutdown(cancel_futures=True)


def slide_features(
    slide: Slide,
    plan: PatchPlan,
    coordinates: Coordinates,
    encoder: Encoder,
    device: torch.device,
    *,
    bf16: bool = False,
    batch_size: int = 64,
    workers: int = 1,
    done: Callable[[int], None] | None = None,
) -> npt.NDArray[np.float32]:
    """Features ``(P, F)`` of a slide's patches, P > 0; the encoder's module is on ``device`` already.

    Args:
        coordinates: int64 ``(P, 2)``, as :func:`~fedad_components.slides.patches.place_patches` gives them.
        done: called with the number of patches so far.

    Raises:
        Unusable: if the slide is damaged.
    """
    features: list[npt.NDArray[np.float32]] = []
    so_far = 0
    for batch in patch_batches(slide, plan, coordinates, batch_size, workers):
        patches = torch.from_numpy(batch)
        if device.type == "cuda":
            patches = patches.pin_memory()
        features.append(encoder(patches.to(device, non_blocking=True), bf16).cpu().numpy())
        so_far += len(batch)
        if done is not None:
            done(so_far)
    return np.concatenate(features)
