"""Figure 12's data: what the global model is worth at each laboratory after each round. Imports no FLARE.

Labels are read here alone, never in training. Five-fold cross-validated k-NN (evaluation/protocols.py) inside one
laboratory needs no fit, so that it can be afforded after every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedad_components.benchmark.logged import BY_ROUND, SiteScores
from fedad_components.benchmark.wbc import Laboratories
from fedad_components.config import FedADConfig
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.protocols import neighbours_within
from fedad_components.fedsd.model import build_extractor
from fedad_components.fedsd.state import extractor_part, load_wire_state


class ByRound:
    """Appends one line a laboratory and round to ``by_round.jsonl``, which is begun anew.

    Args:
        folder: of the run.
        config: of the experiment; its seed draws the folds, the same in every round.
        laboratories: those that train and the unseen one.
        device: where features are computed.
    """

    def __init__(self, folder: Path, config: FedADConfig, laboratories: Laboratories, device: torch.device) -> None:
        self._path = folder / BY_ROUND
        self._path.unlink(missing_ok=True)
        self._config, self._laboratories = config, laboratories
        self._extractor: nn.Module = build_extractor(config.model).to(device)

    def __call__(self, round_number: int, theta: Mapping[str, Tensor]) -> None:
        """Probe theta, the global weights after that round, by their names on the wire."""
        load_wire_state(extractor_part(theta), self._extractor, norm=self._config.model.norm)
        target = self._laboratories.target
        with open(self._path, "a", encoding="utf-8") as file:
            for images in (*self._laboratories.sources, target):
                features = images.features(
                    extract_features(self._extractor, images.images, self._config.model.image_size)
                )
                scores = SiteScores(
                    round=round_number,
                    laboratory=images.name,
                    unseen=images is target,
                    scores=neighbours_within(features, self._config.seed),
                )
                file.write(scores.model_dump_json() + "\n")
