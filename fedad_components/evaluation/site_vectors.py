"""What an extractor and the sites' heads make of one site's images: the arrays that a diagnosis needs. No FLARE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as TF

from fedad_components.evaluation.features import extract_features
from fedad_components.fedsd.model import head_of, split
from fedad_components.fedsd.seeds import PUBLIC, stream
from fedad_components.fedsd.state import HEAD_PREFIX, StateError, is_statistic, require_names
from fedad_components.fedsd.style import style_statistics
from fedad_components.fedsd.trainer import STATISTICS_PREFIX
from fedad_components.fedsd.views import Views

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig, ViewsConfig

RANDOM_HEAD = "random"
"""Name of the head that stands in where a site's own is not given; the same for all sites."""
THUMBNAIL = 16

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Halves:
    """A head's output on n images."""

    z_s: Floats
    """``(n, 128)``."""
    z_d: Floats
    """``(n, 128)``."""


@dataclass(frozen=True)
class SiteVectors:
    """One site's n images as arrays, each row an image."""

    site: str
    own: str
    """Name of the site's own head in ``halves``."""
    h: Floats
    """``(n, 512)``, frozen features of whole images."""
    z_g: Floats
    """``(n, 128)``, p(h): the extractor as its own teacher, as at the start of the coming round."""
    halves: dict[str, Halves]
    """Head's name to what it makes of these images. Every site has the same heads."""
    views: Floats
    """``(2, n, 128)``, z_s of two augmented views, by the site's own head."""
    style: Floats
    """``(n, 20)``, :func:`~fedad_components.fedsd.style.style_statistics`."""
    thumbnails: Floats
    """``(n, 768)``, 16 x 16 RGB in [0, 1]."""
    labels: Sequence[str | None]
    """``n`` classes, or None where an image has none."""
    patients: Sequence[str | None]
    """``n`` pseudonyms, or None: an image of unknown patient counts as a patient of its own."""

    def __len__(self) -> int:
        return len(self.h)


def site_vectors(
    site: str,
    images: npt.NDArray[np.uint8],
    extractor: nn.Module,
    heads: Mapping[str, nn.Module],
    projection: nn.Module,
    views: ViewsConfig,
    image_size: int,
    *,
    own: str | None = None,
    labels: Sequence[str | None] | None = None,
    patients: Sequence[str | None] | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> SiteVectors:
    """Compute a site's vectors: evaluation mode, no gradient, on the extractor's device.

    Args:
        site: the site's name.
        images: uint8 ``(n, S, S, 3)``.
        extractor: ``(N, 3, P, P)`` to ``(N, 512)``; its mode is restored.
        heads: name to head, ``(N, 512)`` to ``(N, 256)``: those of all sites that are to be compared.
        projection: p, ``(N, 512)`` to ``(N, 128)``.
        views: augmentation of the two views.
        image_size: P, side of a view in pixels.
        own: name of the site's own head; none: the site's name.
        labels: n classes; none: no image has one.
        patients: n pseudonyms; none: unknown.
        seed: draws the views.
        batch_size: images in a forward pass.

    Raises:
        ValueError: if the images are no uint8 ``(n, S, S, 3)``, the site's own head is missing, or a list has another
            length.
    """
    own = own or site
    if own not in heads:
        raise ValueError(f"site {site}: no head {own!r}: expected one of {', '.join(heads) or 'none'}")
    for name, values in (("labels", labels), ("patients", patients)):
        if values is not None and len(values) != len(images):
            raise ValueError(f"site {site}: {len(values)} {name} for {len(images)} images: expected one for each")
    h = extract_features(extractor, images, image_size, batch_size)
    device = next(extractor.parameters()).device
    with torch.inference_mode():
        features = torch.from_numpy(h).to(device)
        halves = {name: Halves(*map(_array, split(head(features)))) for name, head in heads.items()}
        return SiteVectors(
            site=site,
            own=own,
            h=h,
            z_g=_array(projection(features)),
            halves=halves,
            views=_views_z_s(images, extractor, heads[own], Views(views, image_size), site, seed, batch_size, device),
            style=_in_batches(style_statistics, images, batch_size, device),
            thumbnails=_in_batches(_thumbnails, images, batch_size, device),
            labels=labels if labels is not None else [None] * len(images),
            patients=patients if patients is not None else [None] * len(images),
        )


def read_head(path: str | Path, config: FedADConfig) -> tuple[nn.Module, dict[str, Tensor]]:
    """A site's head from its private state, and its own BatchNorm statistics by the extractor's names, if it has any.

    ``path`` is a file that the site keeps after a round, ``round-<number>.safetensors``; ``config`` the experiment's.

    Raises:
        StateError: if the file cannot be read, or is no site's private state.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path}: cannot be read as safetensors: {error}") from error
    statistics = {
        name.removeprefix(STATISTICS_PREFIX): tensor
        for name, tensor in state.items()
        if name.startswith(STATISTICS_PREFIX) and is_statistic(name)
    }
    given = {name: tensor for name, tensor in state.items() if name.removeprefix(STATISTICS_PREFIX) not in statistics}
    head = head_of(config, PUBLIC)
    expected = head.state_dict()
    require_names(given, [HEAD_PREFIX + name for name in expected], f"{path}: a site's private state")
    plain = {name: given[HEAD_PREFIX + name] for name in expected}
    if wrong := [name for name, tensor in plain.items() if tensor.shape != expected[name].shape]:
        raise StateError(
            f"{path}: {HEAD_PREFIX}{wrong[0]}: expected shape {tuple(expected[wrong[0]].shape)}, got "
            f"{tuple(plain[wrong[0]].shape)}"
        )
    head.load_state_dict(plain)
    return head, statistics


def _views_z_s(
    images: npt.NDArray[np.uint8],
    extractor: nn.Module,
    head: nn.Module,
    views: Views,
    site: str,
    seed: int,
    batch_size: int,
    device: torch.device,
) -> Floats:
    """``(2, n, 128)``."""
    generator = stream(seed, "diagnose views", site)
    was_training = extractor.training
    extractor.eval()
    try:
        batches = [
            split(head(extractor(views(_load(batch, device), generator)).float()))[0].unflatten(0, (2, -1))
            for batch in _batches(images, batch_size)
        ]
    finally:
        extractor.train(was_training)
    return _array(torch.cat(batches, dim=1))


def _thumbnails(images: Tensor) -> Tensor:
    x = images.permute(0, 3, 1, 2).float().div(255)
    return TF.resize(x, [THUMBNAIL, THUMBNAIL], antialias=True).flatten(1)


def _in_batches(
    function: Callable[[Tensor], Tensor], images: npt.NDArray[np.uint8], batch_size: int, device: torch.device
) -> Floats:
    return _array(torch.cat([function(_load(batch, device)) for batch in _batches(images, batch_size)]))


def _batches(images: npt.NDArray[np.uint8], batch_size: int) -> Iterator[npt.NDArray[np.uint8]]:
    return (images[start : start + batch_size] for start in range(0, len(images), batch_size))


def _load(images: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(images)).to(device)


def _array(x: Tensor) -> Floats:
    array: Floats = x.float().cpu().numpy()
    return array
