"""The algorithms that a job may name, and all that federation, privacy and command line ask of one. Needs no torch.

A job's configuration says which it is (``"algorithm": "histofl"``; FedAD where it says nothing). Whoever handles an
experiment calls the functions here and does not ask which one it is; a new algorithm is a configuration, a subclass of
:class:`Algorithm` and a line in :data:`ALGORITHMS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from fedad_components.config import ConfigError, ExperimentConfig, FedADConfig, read_settings
from fedad_components.mil.config import HistoFLConfig

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fedad_components.aggregation import StreamingMean
    from fedad_components.algorithms.monitor import Monitor
    from fedad_components.fedsd.trainer import RoundResult
    from fedad_components.imaging.catalogue import Catalogue

KEY = "algorithm"
ALGORITHMS: Mapping[str, tuple[type[ExperimentConfig], str]] = {
    "fedad": (FedADConfig, "fedad:FedAD"),
    "histofl": (HistoFLConfig, "histofl:HistoFL"),
}
"""Name to the class of its configuration, and to its :class:`Algorithm`, which is imported when it is needed."""

Config = TypeVar("Config", bound=ExperimentConfig)


class Trainer(Protocol):
    """A site's local training; its private state stays in it between rounds."""

    def train_round(
        self,
        global_state: Mapping[str, Tensor],
        lambda_t: float,
        round_number: int,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    ) -> RoundResult:
        """A round from theta^t; see :meth:`fedad_components.fedsd.trainer.LocalTrainer.train_round`.

        Where the task brings ``bin_edges``, they are one argument more.
        """

    def site_state(self) -> dict[str, Tensor]:
        """What is private and survives at the site."""

    def load_site_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a saved :meth:`site_state`."""


class SiteData(Protocol):
    """An opened data set of a site: records, each of a patient."""

    @property
    def patients(self) -> Sequence[str | None]:
        """Patient of each record; None where unknown."""

    @property
    def files(self) -> Sequence[str]:
        """Name of each record's file: it decides about units where there is no patient."""

    def trainer(
        self, site: str, units: Mapping[int, np.ndarray] | None = None, declared_units: int | None = None
    ) -> Trainer:
        """The trainer of ``privacy.mode``; ``units`` are those of the records, under dp_sgd alone."""


class Algorithm(ABC, Generic[Config]):
    """What one algorithm is; see the functions of the same names below, which find the algorithm themselves."""

    model_file: ClassVar[str]
    """Name of the exported weights in a job's results."""
    label: ClassVar[str]
    """As people write it."""

    @abstractmethod
    def wire_spec(self, config: Config) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor on the wire; costs no memory."""

    @abstractmethod
    def trainable_names(self, config: Config) -> frozenset[str]:
        """Names of the parameters over which the instability is taken."""

    @abstractmethod
    def initial_state(self, config: Config, weights_dir: str | Path) -> dict[str, Tensor]:
        """theta^0, names as on the wire."""

    @abstractmethod
    def save_model(
        self, path: str | Path, theta: Mapping[str, Tensor], config: Config, metadata: Mapping[str, str]
    ) -> None:
        """Write theta as safetensors, as others read it."""

    @abstractmethod
    def open_site(self, config: Config, catalogue: Catalogue, cache_dir: str | Path) -> SiteData:
        """Open the data set that the job names."""

    def counts(self, config: Config) -> Iterator[str]:
        """What counts tell of patients, in words for a site's security officer; nothing if no counts leave."""
        yield from ()

    @abstractmethod
    def stays(self, config: Config) -> Iterator[str]:
        """What does not leave a site, in words for its security officer."""

    def make_mean(self, config: Config, theta: Mapping[str, Tensor] | None) -> StreamingMean:
        """The mean of a round's updates; FedAvg's if an algorithm has no other."""
        from fedad_components.aggregation import StreamingMean

        return StreamingMean()

    def make_monitor(self, config: Config) -> Monitor:
        """What the server does between rounds beside Delta and lambda_t; nothing if an algorithm has nothing to do."""
        from fedad_components.algorithms.monitor import Monitor

        return Monitor()


@lru_cache(maxsize=len(ALGORITHMS))
def _algorithm(kind: type[ExperimentConfig]) -> Algorithm[Any]:
    module, name = next(where for known, where in ALGORITHMS.values() if known is kind).split(":")
    algorithm: Algorithm[Any] = getattr(import_module(f"{__name__}.{module}"), name)()
    return algorithm


def algorithm_of(config: ExperimentConfig) -> Algorithm[Any]:
    """The algorithm of a configuration."""
    return _algorithm(type(config))


def name_of(config: ExperimentConfig) -> str:
    """The algorithm's name in a job."""
    return next(name for name, (kind, _) in ALGORITHMS.items() if kind is type(config))


def config_type(data: Mapping[str, Any]) -> type[ExperimentConfig]:
    """The class of a job's configuration.

    Raises:
        ConfigError: if it names no algorithm of this version.
    """
    name = data.get(KEY, "fedad")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ConfigError(f"algorithm = {name!r}: expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name][0]


def parse_config(data: Mapping[str, Any]) -> ExperimentConfig:
    """Validate the configuration of any algorithm.

    Raises:
        ConfigError: naming each wrong key, its value and what was expected.
    """
    kind = config_type(data)
    return kind.parse({key: value for key, value in data.items() if key != KEY or KEY in kind.model_fields})


def load_config(path: str | Path) -> ExperimentConfig:
    """Read a JSON file; raises ConfigError as :func:`parse_config`."""
    return parse_config(read_settings(path))


def wire_spec(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor on the wire under a configuration; costs no memory."""
    return algorithm_of(config).wire_spec(config)


def trainable_names(config: ExperimentConfig) -> frozenset[str]:
    """Names of theta's trainable parameters, over which Delta is taken."""
    return algorithm_of(config).trainable_names(config)


def initial_state(config: ExperimentConfig, weights_dir: str | Path = ".") -> dict[str, Tensor]:
    """theta of round 0; raises StateError if the configuration's initial weights cannot be had."""
    return algorithm_of(config).initial_state(config, weights_dir)


def make_mean(config: ExperimentConfig, theta: Mapping[str, Tensor] | None = None) -> StreamingMean:
    """The mean of a round; ``theta`` is theta^t where updates are whole weights, None where they are differences."""
    return algorithm_of(config).make_mean(config, theta)
