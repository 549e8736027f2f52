"""Training with labels, as a reference: FedAvg (McMahan et al. 2017, Algorithm 1), or all images in one place.

No production job can do this: FedAD's sites train without labels. Imports no FLARE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.config import FedADConfig
from fedad_components.evaluation.finetune import mirrored_views
from fedad_components.evaluation.images import LabelledImages
from fedad_components.fedsd.losses import Loss
from fedad_components.fedsd.model import feature_count
from fedad_components.fedsd.seeds import stream_seed
from fedad_components.fedsd.state import HEAD_PREFIX, extractor_part, initial_state
from fedad_components.fedsd.trainer import LocalTrainer, Student


def build_classifier(config: FedADConfig, classes: int) -> nn.Linear:
    """h ``(N, features)`` to logits ``(N, classes)``; random weights, the same at every site."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.seed, "classifier"))
        return nn.Linear(feature_count(config.model), classes)


def supervised_theta(config: FedADConfig, classes: int) -> dict[str, Tensor]:
    """theta^0: the extractor's weights that every method starts from, and the classifier in the head's place."""
    classifier = build_classifier(config, classes).state_dict()
    return extractor_part(initial_state(config)) | {HEAD_PREFIX + name: classifier[name] for name in classifier}


class SupervisedTrainer(LocalTrainer):
    """Cross-entropy of a linear classifier that is aggregated with the extractor.

    Images, their order, batches, number of steps and optimiser are those of every other method; each image is seen once
    in a step, whole, and mirrored in half of them.

    Args:
        config: of the run; no teacher (lambda_t = 0).
        site: images and their labels.
        classes: all labels of the federation.
        device: overrides ``training.device``.
    """

    def __init__(
        self, config: FedADConfig, site: LabelledImages, classes: Sequence[str], device: torch.device | None = None
    ) -> None:
        super().__init__(config, site.images, site.name, device)
        self.private_head, self.head = False, self._to_device(build_classifier(config, len(classes)))
        number = {name: index for index, name in enumerate(classes)}
        self._targets = torch.tensor([number[site.labels[row]] for row in self.chosen.tolist()], device=self.device)

    def _train_epoch(
        self, student: Student, lambda_t: float, order: torch.Generator, view_stream: torch.Generator
    ) -> tuple[dict[str, float], float]:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        images_seen = 0
        for rows in self._batches(order):
            images = np.asarray(self.images[self.chosen[rows].numpy()])
            x = mirrored_views(images, self.config.model.image_size, view_stream, self.device)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=student.amp):
                logits = student.head(student.extractor(x))
            loss = F.cross_entropy(logits.float(), self._targets[rows.to(self.device)])
            student.descend(loss)
            total += len(rows) * loss.detach().double()
            images_seen += len(rows)
        return dict.fromkeys(Loss._fields, math.nan) | {"total": total.item() / images_seen}, 0.0
