"""An experiment in one process, without FLARE and network: for benchmarks, examples and figures.

Trainers, draw of the sites, encoding, mean, instability, schedule and records are those of a federation; with the same
configuration and images, both give the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedad_components.aggregation import make_mean
from fedad_components.atsa import ATSA, instability
from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state, trainable_names
from fedad_components.fedsd.trainer import LocalTrainer
from fedad_components.participation import draw_sites
from fedad_components.records import Losses, RoundRecord
from fedad_components.tensors import apply_update, decode, encode, encode_update, payload_bytes


class SimulationError(ValueError):
    """An experiment that cannot be simulated; the message says why."""


class Simulation:
    """All rounds of an experiment, site after site.

    Args:
        config: of the experiment, with ``privacy.mode`` none or dp_sgd: the other modes protect at the site's border
            and at the server, which are not here.
        trainers: site -> its trainer, made from the same configuration.
        theta: theta^0; by default the configuration's.
        weights_dir: where ``model.initial_weights`` are.

    Attributes:
        theta: the global weights, names as on the wire.
        records: one for each finished round, as the server writes them. There is no ledger here, hence no claim.

    Raises:
        SimulationError: for another mode of privacy, or fewer sites than the quorum.
    """

    def __init__(
        self,
        config: FedADConfig,
        trainers: Mapping[str, LocalTrainer],
        theta: Mapping[str, Tensor] | None = None,
        weights_dir: str | Path = ".",
    ) -> None:
        if config.privacy.mode not in ("none", "dp_sgd"):
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
        self._schedule, self._trainable = ATSA(config.atsa), trainable_names(config)

    def run_round(self) -> RoundRecord:
        """The next round."""
        began, config, number = time.monotonic(), self.config, len(self.records)
        federation, lambda_t = config.federation, self._schedule.lambda_t
        sites = draw_sites(self.trainers, federation.sites_per_round, config.seed, number)
        received = decode(encode(self.theta, config))
        mean = make_mean(config, self.theta if federation.update == "full" else None)
        losses, n_samples, sent = {}, {}, {}
        for site in sites:
            result = self.trainers[site].train_round(received, lambda_t, number)
            update = encode_update(result.update, received, config)
            mean.add(decode(update), result.n_samples or 1)
            sent[site] = payload_bytes(update)
            if result.n_samples is not None:
                n_samples[site] = result.n_samples
            if result.losses:
                losses[site] = Losses.model_validate(result.losses[-1])
        new = apply_update(mean.result(), self.theta, config)
        delta = instability(new, self.theta, self._trainable)
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
            bytes=sent,
            seconds=time.monotonic() - began,
        )
        self.records.append(record)
        return record
