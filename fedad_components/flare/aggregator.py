"""The server's gate and its streaming mean: an update is checked before it touches the aggregate."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from nvflare.apis.dxo import DXO
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator

from fedad_components.algorithms import make_mean, wire_spec
from fedad_components.audit.checkpoint import CheckpointError
from fedad_components.audit.event import Kind
from fedad_components.audit.log import AuditError
from fedad_components.config import ExperimentConfig
from fedad_components.flare.audit import Record, audit, counts_of, payload, word
from fedad_components.flare.context import SENDER_PROP, data_kind, read_dxo
from fedad_components.privacy.client_dp import clip_update, noise_sum
from fedad_components.privacy.mechanism import secure_generator
from fedad_components.tensors import check_tensors, decode, payload_bytes, wire_dtype
from fedad_components.wire import Refusal, ResultMeta, SentMeta, WireError, parse_result_meta


@dataclass
class RoundOfUpdates:
    """What came in during one round."""

    number: int
    targets: frozenset[str]
    config: ExperimentConfig
    theta: Mapping[str, torch.Tensor]
    accepted: dict[str, ResultMeta] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        self.spec = wire_spec(self.config)
        self.mean = make_mean(self.config, self.theta if self.config.federation.update == "full" else None)


class FedADAggregator(Aggregator):
    """Accepts or refuses each update by site name; the aggregate is the mean of the accepted ones,
    with the configuration's weights."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # a late update may come while the round is aggregated
        self.round: RoundOfUpdates | None = None

    def open_round(
        self, number: int, targets: Collection[str], config: ExperimentConfig, theta: Mapping[str, torch.Tensor]
    ) -> None:
        """Start collecting the updates of a round from these sites only; they start from ``theta``."""
        with self._lock:
            self.round = RoundOfUpdates(number, frozenset(targets), config, theta)

    def refuse(self, site: str, reason: str, fl_ctx: FLContext, refusal: str) -> None:
        """Record and log that a site's update is not in the aggregate; ``refusal`` in words of a vocabulary."""
        self.log_error(fl_ctx, f"update of site {site!r} refused: {reason}")
        number = self.round.number if self.round is not None else None
        audit(fl_ctx).note(Kind.UPDATE_RECEIVED, peer=word(site), round=number, reason=refusal)
        if self.round is not None and site in self.round.targets and site not in self.round.accepted:
            self.round.refused[site] = reason

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Check one update and add it to the mean, or refuse it."""
        site = str(fl_ctx.get_prop(SENDER_PROP))
        with self._lock:
            try:
                self._add(site, shareable, audit(fl_ctx))
            except WireError as error:
                self.refuse(site, str(error), fl_ctx, error.refusal.value)
                return False
            except CheckpointError as error:
                self.refuse(site, str(error), fl_ctx, Refusal.CHECKPOINT.value)
                return False
            except AuditError as error:
                self.system_panic(str(error), fl_ctx)
                return False
            except Exception as error:  # FLARE would end the round for every site
                self.log_exception(fl_ctx, "the check of an update failed")
                cause = f"the check of it failed: {type(error).__name__}"
                self.refuse(site, cause, fl_ctx, Refusal.CHECK_FAILED.value)
                return False
        return True

    def _add(self, site: str, shareable: Shareable, record: Record) -> None:
        current = self.round
        if current is None or current.closed:
            raise WireError("no round is open: it came too late", Refusal.TOO_LATE)
        if site not in current.targets:
            raise WireError(f"the site was not asked in round {current.number}", Refusal.NOT_ASKED)
        if site in current.accepted:
            raise WireError(f"the site has already answered in round {current.number}", Refusal.ANSWERED_TWICE)
        dxo = read_dxo(shareable, data_kind(current.config))
        meta = parse_result_meta(dxo.meta, current.config, SentMeta)
        if meta.round != current.number:
            raise WireError(f"it answers round {meta.round}, not round {current.number}", Refusal.OTHER_ROUND)
        most = current.config.federation.max_samples
        if meta.n_samples is not None and meta.n_samples > most:
            raise WireError(f"n_samples {meta.n_samples} exceeds federation.max_samples {most}")
        check_tensors(dxo.data, current.spec, wire_dtype(current.config))
        update = decode(dxo.data)
        if current.config.privacy.mode == "client_dp":  # again: the bound must hold whatever a site does
            update = clip_update(update, current.config.privacy.max_grad_norm)
        if record.party:
            record.accept(meta.checkpoint, site)
            # First: an update that the log does not have must not be in the mean.
            record.write(
                Kind.UPDATE_RECEIVED,
                peer=site,
                round=current.number,
                payload=payload(dxo.data),
                counts=counts_of(meta, meta.counts_nonce),
            )
        current.mean.add(update, current.config.weight(meta.n_samples))
        current.accepted[site] = meta
        current.refused.pop(site, None)
        current.bytes[site] = payload_bytes(dxo.data)

    def close_round(self, fl_ctx: FLContext) -> RoundOfUpdates:
        """Take no further update into this round, and return it."""
        with self._lock:
            if self.round is None:
                raise RuntimeError("no round was opened")
            self.round.closed = True
            record = audit(fl_ctx)
            for site in sorted(self.round.targets - self.round.accepted.keys() - self.round.refused.keys()):
                self.round.refused[site] = "no answer in time"
                record.note(Kind.UPDATE_RECEIVED, peer=site, round=self.round.number, reason=Refusal.NO_ANSWER.value)
            return self.round

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """The weighted mean of the accepted updates; under client_dp the noised sum over the number of sites asked."""
        current = self.close_round(fl_ctx)
        privacy = current.config.privacy
        if privacy.mode == "client_dp":
            update = noise_sum(
                current.mean.sum(),
                len(current.targets),
                noise_multiplier=privacy.noise_multiplier,
                max_norm=privacy.max_grad_norm,
                generator=secure_generator(),
            )
        else:
            update = current.mean.result()
        return DXO(data_kind(current.config), update, {}).to_shareable()
