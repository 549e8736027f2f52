"""The server's gate and its streaming mean: an update is checked before it touches the aggregate."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from nvflare.apis.dxo import DXO
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator

from fedad_components.aggregation import StreamingMean
from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import wire_spec
from fedad_components.flare.context import SENDER_PROP, data_kind, read_dxo
from fedad_components.tensors import check_tensors, decode, payload_bytes, wire_dtype
from fedad_components.wire import ResultMeta, WireError, parse_meta


@dataclass
class RoundOfUpdates:
    """What came in during one round."""

    number: int
    targets: Collection[str]
    config: FedADConfig
    mean: StreamingMean = field(default_factory=StreamingMean)
    accepted: dict[str, ResultMeta] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        self.digest = self.config.digest()
        self.spec = wire_spec(self.config)


class FedADAggregator(Aggregator):
    """Accepts or refuses each update by site name; the aggregate is the n_k-weighted mean of the accepted ones."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # a late update may come while the round is aggregated
        self.round: RoundOfUpdates | None = None

    def open_round(self, number: int, targets: Collection[str], config: FedADConfig) -> None:
        """Start collecting the updates of a round from these sites only."""
        with self._lock:
            self.round = RoundOfUpdates(number, frozenset(targets), config)

    def refuse(self, site: str, reason: str, fl_ctx: FLContext) -> None:
        """Record and log that a site's update is not in the aggregate."""
        self.log_error(fl_ctx, f"update of site {site!r} refused: {reason}")
        if self.round is not None and site in self.round.targets and site not in self.round.accepted:
            self.round.refused[site] = reason

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Check one update and add it to the mean, or refuse it."""
        site = str(fl_ctx.get_prop(SENDER_PROP))
        with self._lock:
            try:
                self._add(site, shareable)
            except WireError as error:
                self.refuse(site, str(error), fl_ctx)
                return False
            except Exception as error:  # FLARE would end the round for every site
                self.log_exception(fl_ctx, "the check of an update failed")
                self.refuse(site, f"the check of it failed: {type(error).__name__}", fl_ctx)
                return False
        return True

    def _add(self, site: str, shareable: Shareable) -> None:
        current = self.round
        if current is None or current.closed:
            raise WireError("no round is open: it came too late")
        if site not in current.targets:
            raise WireError(f"the site was not asked in round {current.number}")
        if site in current.accepted:
            raise WireError(f"the site has already answered in round {current.number}")
        dxo = read_dxo(shareable, data_kind(current.config))
        meta = parse_meta(ResultMeta, dxo.meta)
        if meta.round != current.number:
            raise WireError(f"it answers round {meta.round}, not round {current.number}")
        if meta.config_digest != current.digest:
            raise WireError("it was trained under another configuration (digest differs)")
        if meta.n_samples > current.config.federation.max_samples:
            raise WireError(
                f"n_samples {meta.n_samples} exceeds federation.max_samples {current.config.federation.max_samples}"
            )
        check_tensors(dxo.data, current.spec, wire_dtype(current.config))
        current.mean.add(decode(dxo.data), meta.n_samples)
        current.accepted[site] = meta
        current.refused.pop(site, None)
        current.bytes[site] = payload_bytes(dxo.data)

    def close_round(self) -> RoundOfUpdates:
        """Take no further update into this round, and return it."""
        with self._lock:
            if self.round is None:
                raise RuntimeError("no round was opened")
            self.round.closed = True
            for site in self.round.targets:
                if site not in self.round.accepted:
                    self.round.refused.setdefault(site, "no answer in time")
            return self.round

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """The weighted mean of the accepted updates."""
        current = self.close_round()
        return DXO(data_kind(current.config), current.mean.result(), {}).to_shareable()
