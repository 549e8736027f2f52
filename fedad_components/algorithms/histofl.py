"""HistoFL: weakly supervised learning on bags of features of slides, classification and survival."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedad_components.algorithms import Algorithm
from fedad_components.fedsd.state import require_names
from fedad_components.files import write_tensors
from fedad_components.imaging.catalogue import Catalogue
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.model import GatedAttentionMIL
from fedad_components.mil.monitor import FederatedValidation
from fedad_components.mil.private import PrivateBagTrainer
from fedad_components.mil.site_bags import SiteBags, open_bags
from fedad_components.mil.state import EXPERIMENT
from fedad_components.mil.trainer import BagTrainer, build_model
from fedad_components.privacy.units import UnitsError

logger = logging.getLogger("fedad.worker")


@dataclass(frozen=True)
class Slides:
    """A site's bags."""

    config: HistoFLConfig
    bags: SiteBags

    @property
    def patients(self) -> Sequence[str | None]:
        """Of each bag."""
        return [row.patient for row in self.bags.rows]

    @property
    def files(self) -> Sequence[str]:
        """Of each bag."""
        return [row.id for row in self.bags.rows]

    def trainer(
        self, site: str, units: Mapping[int, np.ndarray] | None = None, declared_units: int | None = None
    ) -> BagTrainer:
        """BagTrainer, or PrivateBagTrainer under dp_sgd.

        Raises:
            UnitsError: if dp_sgd is asked for without units.
        """
        if self.config.privacy.mode != "dp_sgd":
            return BagTrainer(self.config, self.bags, site)
        if units is None or declared_units is None:
            raise UnitsError(
                f"site {site}: privacy.mode 'dp_sgd' needs privacy units: declare `units: N` for the data set in "
                f"catalogue.yaml"
            )
        return PrivateBagTrainer(self.config, self.bags, site, units, declared_units)


class HistoFL(Algorithm[HistoFLConfig]):
    """The whole model travels: gated attention and classifier. The encoder is not trained."""

    model_file = "model.safetensors"
    label = "HistoFL"

    def wire_spec(self, config: HistoFLConfig) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):
            model = GatedAttentionMIL(config.model.in_features, config.target.outputs)
        return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}

    def trainable_names(self, config: HistoFLConfig) -> frozenset[str]:
        return frozenset(self.wire_spec(config))

    def initial_state(self, config: HistoFLConfig, weights_dir: str | Path) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in build_model(config).state_dict().items()}

    def save_model(
        self, path: str | Path, theta: Mapping[str, Tensor], config: HistoFLConfig, metadata: Mapping[str, str]
    ) -> None:
        require_names(theta, self.wire_spec(config), "state to export")
        described = {
            "format": "pt",
            "architecture": "fedad_components.mil.model.GatedAttentionMIL",
            "in_features": str(config.model.in_features),
            "outputs": str(config.target.outputs),
            "target": json.dumps(config.target.model_dump(mode="json")),
            EXPERIMENT: config.identity(),
        }
        if config.model.encoder_sha256 is not None:
            described["encoder_sha256"] = config.model.encoder_sha256
        write_tensors(path, theta, {**metadata, **described})

    def open_site(self, config: HistoFLConfig, catalogue: Catalogue, cache_dir: str | Path) -> Slides:
        data_set = catalogue.data_set(config.federation.data_set)
        bags = open_bags(data_set, config)
        logger.info("data set %s: %d bags", data_set.id, len(bags.rows))
        return Slides(config, bags)

    def make_monitor(self, config: HistoFLConfig) -> FederatedValidation:
        return FederatedValidation(config)

    def counts(self, config: HistoFLConfig) -> Iterator[str]:
        least, counts = config.smallest_cell, config.counts
        if least is None:
            return
        yield f"k = {least} patients (counts.min_cell)"
        if config.surveys(0):
            yield (
                f"round 0: events of the training patients by time, in 2^{counts.time_depth} cells; those of fewer "
                f"than k are joined or leave as 0"
            )
        yield "every other round: the validation patients' counts, of which the differences between rounds tell too"
        if config.survival:
            yield (
                "pairs of patients in right order, wrong and tied: exact, also where they are few; none where fewer "
                "than k patients are, or have an event"
            )
            return
        yield (
            f"scores of each class, in 2^{counts.score_depth} cells: those of fewer than k are joined; of a class with "
            f"fewer than k patients nothing is told"
        )
        yield "confusion, true classes by predicted ones, of the other classes: exact, also where a cell is below k"
        if config.tells_class_pairs:
            yield "pairs of patients in right order, wrong and tied, of each class: exact, also where they are few"

    def stays(self, config: HistoFLConfig) -> Iterator[str]:
        yield "slides, features of patches, attention, file names, patients' pseudonyms, times, labels"
        yield "anything computed for a single patient"
