"""An experiment in one process, without FLARE and network: for benchmarks, examples and figures.

Trainers, draw of the sites, encoding, mean, instability, schedule and records are those of a federation; with the same
configuration and images, both give the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedad_components.algorithms import Trainer, algorithm_of, initial_state, make_mean, trainable_names
from fedad_components.atsa import ATSA, instability
from fedad_components.config import ExperimentConfig
from fedad_components.participation import draw_sites
from fedad_components.privacy.session import protect
from fedad_components.records import Losses, RoundRecord
from fedad_components.reports import ValidationCounts
from fedad_components.tensors import apply_update, decode, encode, encode_update, payload_bytes


class SimulationError(ValueError):
    """An experiment that cannot be simulated; the message says why."""


class Simulation:
    """All rounds of an experiment, site after site.

    Args:
        config: of the experiment; not with ``privacy.mode`` client_dp, whose noise is the server's.
        trainers: site -> its trainer, made from the same configuration.
        theta: theta^0; by default the configuration's.
        weights_dir: where ``model.initial_weights`` are.

    Attributes:
        theta: the global weights, names as on the wire.
        best: those of the best validation so far; empty where the sites do not validate.
        records: one for each finished round, as the server writes them. There is no ledger here, hence no claim.

    Raises:
        SimulationError: for client_dp, or fewer sites than the quorum.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        trainers: Mapping[str, Trainer],
        theta: Mapping[str, Tensor] | None = None,
        weights_dir: str | Path = ".",
    ) -> None:
        if config.privacy.mode == "client_dp":
            raise SimulationError(
                f"privacy.mode {config.privacy.mode!r} needs a federation: run the job in FLARE, or use 'none'"
            )
        if len(trainers) < config.federation.min_sites:
            raise SimulationError(
                f"{len(trainers)} site(s), and federation.min_sites is {config.federation.min_sites}: lower it"
            )
        self.config, self.trainers = config, dict(trainers)
        self.theta: dict[str, Tensor] = dict(theta if theta is not None else initial_state(config, weights_dir))
        self.records: list[RoundRecord] = []
        self.best: dict[str, Tensor] = {}
        self._monitor = algorithm_of(config).make_monitor(config)
        self._schedule, self._trainable = ATSA(config.schedule), trainable_names(config)

    @property
    def bin_edges(self) -> list[float] | None:
        """Inner edges of survival's time bins, which the survey has found."""
        return self._monitor.bin_edges

    @property
    def stopped(self) -> bool:
        """Whether the validation has ended the experiment."""
        return self._monitor.stopped

    def run_round(self) -> RoundRecord:
        """The next round."""
        began, config, number = time.monotonic(), self.config, len(self.records)
        federation, lambda_t = config.federation, self._schedule.lambda_t
        count = 0 if config.surveys(number) else federation.sites_per_round
        sites = draw_sites(self.trainers, count, config.seed, number)
        received = decode(encode(self.theta, config))
        mean = make_mean(config, self.theta if federation.update == "full" else None)
        given: dict[str, Any] = {"bin_edges": self.bin_edges} if self.bin_edges else {}
        losses, n_samples, sent = {}, {}, {}
        events, counts = {}, {}
        for site in sites:
            result = self.trainers[site].train_round(received, lambda_t, number, **given)
            theta_k = result.update if config.surveys(number) else protect(result.update, received, config.privacy)
            update = encode_update(theta_k, received, config)
            mean.add(decode(update), config.weight(result.n_samples))
            sent[site] = payload_bytes(update)
            if result.n_samples is not None:
                n_samples[site] = result.n_samples
            if result.losses:
                losses[site] = Losses.model_validate(result.losses[-1])
            if result.events is not None:
                events[site] = result.events
            if result.validation is not None:
                counts[site] = ValidationCounts.model_validate(result.validation)
        new = apply_update(mean.result(), self.theta, config)
        delta = instability(new, self.theta, self._trainable)
        validation = self._monitor.update(number, events, counts)
        if validation is not None and validation.best:
            self.best = self.theta
        self.theta = new
        record = RoundRecord(
            round=number,
            participants=sites,
            lambda_t=lambda_t,
            lambda_next=self._schedule.update(delta),
            instability=delta,
            phase=self._schedule.phase,
            losses=losses,
            n_samples=n_samples,
            validation=validation,
            bytes=sent,
            seconds=time.monotonic() - began,
        )
        self.records.append(record)
        return record
