"""FedAD, and the methods that it is compared with: self-supervised learning on images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from fedad_components import aggregation
from fedad_components.algorithms import Algorithm
from fedad_components.config import FedADConfig
from fedad_components.fedsd import state
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.imaging.cache import CachedImages, cache_side
from fedad_components.imaging.catalogue import Catalogue, DataSet
from fedad_components.imaging.ingest import ingest
from fedad_components.privacy.trainer import make_trainer

logger = logging.getLogger("fedad.worker")


@dataclass(frozen=True)
class Images:
    """A site's decoded images, and public ones where a job asks for some."""

    config: FedADConfig
    cached: CachedImages
    public_images: np.ndarray | None = None

    @property
    def patients(self) -> Sequence[str | None]:
        """Of each image."""
        return self.cached.patients

    @property
    def files(self) -> Sequence[str]:
        """Of each image."""
        return self.cached.files

    def trainer(
        self, site: str, units: Mapping[int, np.ndarray] | None = None, declared_units: int | None = None
    ) -> LocalTrainer:
        """LocalTrainer, or PrivateTrainer under dp_sgd."""
        return make_trainer(
            self.config,
            self.cached.images,
            site,
            units=units,
            declared_units=declared_units,
            public_images=self.public_images,
        )


class FedAD(Algorithm[FedADConfig]):
    """Torchvision's ResNet-18 without its last layer travels; the head stays at the site unless it is aggregated."""

    model_file = "extractor.safetensors"
    label = "FedAD"

    def wire_spec(self, config: FedADConfig) -> dict[str, tuple[int, ...]]:
        return state.wire_spec(config)

    def trainable_names(self, config: FedADConfig) -> frozenset[str]:
        return state.trainable_names(config)

    def initial_state(self, config: FedADConfig, weights_dir: str | Path) -> dict[str, Tensor]:
        return state.initial_state(config, weights_dir)

    def save_model(
        self, path: str | Path, theta: Mapping[str, Tensor], config: FedADConfig, metadata: Mapping[str, str]
    ) -> None:
        state.save_extractor(path, theta, config, metadata)

    def make_mean(self, config: FedADConfig, theta: Mapping[str, Tensor] | None) -> aggregation.StreamingMean:
        return aggregation.make_mean(config, theta)

    def open_site(self, config: FedADConfig, catalogue: Catalogue, cache_dir: str | Path) -> Images:
        def read(wanted: DataSet) -> CachedImages:
            cached = ingest(wanted, cache_dir, cache_side(config.model.image_size))
            logger.info("data set %s: %s", wanted.id, cached.account.summary())
            return cached

        public = config.public_data_set
        cached = read(catalogue.data_set(config.federation.data_set))
        return Images(config, cached, read(catalogue.data_set(public)).images if public else None)

    def stays(self, config: FedADConfig) -> Iterator[str]:
        yield "images, file names, patients' pseudonyms, labels"
        if config.method != "feddg":
            yield "anything computed for a single image"
        if config.loss.head == "private":
            yield "the projection head"
        if config.model.norm == "local":
            yield "BatchNorm's running statistics"
