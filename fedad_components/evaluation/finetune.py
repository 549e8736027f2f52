"""Fine-tuning: the whole extractor with a linear classifier, trained shortly with labels. Imports torch; no FLARE."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.evaluation.features import extract_features, whole_view
from fedad_components.evaluation.images import shuffled_batches
from fedad_components.fedsd.seeds import stream, stream_seed


class FineTuning(BaseModel):
    """Adam on the mean cross-entropy, all weights; horizontal flips are the only augmentation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(5, ge=1)
    batch_size: int = Field(32, ge=2)
    learning_rate: float = Field(3e-4, gt=0.0)
    weight_decay: float = Field(1e-4, ge=0.0)


def fine_tune(
    extractor: nn.Module,
    images: npt.NDArray[np.uint8],
    labels: Sequence[str],
    classes: Sequence[str],
    image_size: int,
    seed: int,
    settings: FineTuning,
) -> nn.Module:
    """A fine-tuned copy: ``(N, 3, H, W)`` normalised images to logits ``(N, len(classes))``, in evaluation mode.

    Args:
        extractor: ``(N, 3, H, W)`` to ``(N, F)``; left as it is.
        images: uint8 ``(n, S, S, 3)``.
        labels: class of each, one of ``classes``.
        image_size: side of the extractor's views in pixels.
        seed: of the classifier's weights, the order of the images and the flips.
        settings: of the optimiser.
    """
    device = next(extractor.parameters()).device
    width = extract_features(extractor, images[:1], image_size).shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "fine-tune classifier"))
        classifier = nn.Linear(width, len(classes))
    model = nn.Sequential(copy.deepcopy(extractor), classifier.to(device)).requires_grad_().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    generator = stream(seed, "fine-tune")
    number = {name: index for index, name in enumerate(classes)}
    targets = torch.tensor([number[label] for label in labels], device=device)
    for _ in range(settings.epochs):
        for rows in shuffled_batches(len(images), settings.batch_size, generator):
            x = mirrored_views(images[rows], image_size, generator, device)
            loss = F.cross_entropy(model(x), targets[torch.from_numpy(rows).to(device)])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def mirrored_views(
    images: npt.NDArray[np.uint8], image_size: int, generator: torch.Generator, device: torch.device
) -> Tensor:
    """Whole views ``(N, 3, P, P)`` of ``(N, S, S, 3)``, each mirrored with probability 1/2."""
    x = whole_view(images, image_size, device)
    flip = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(flip.to(device)[:, None, None, None], x.flip(-1), x)


def class_probabilities(model: nn.Module, images: npt.NDArray[np.uint8], image_size: int) -> npt.NDArray[np.float64]:
    """Softmax of the model's logits, ``(n, K)``."""
    logits = torch.from_numpy(extract_features(model, images, image_size))
    return torch.softmax(logits.double(), dim=1).numpy()
