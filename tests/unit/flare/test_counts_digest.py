"""Counts of patients in the compliance logs: the same digest at both ends, and nothing that could be tried out."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kits import SERVER, SITE, context, make_kit, written
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from parties import Authority

from fedad_components.algorithms import initial_state
from fedad_components.audit.event import Kind, canonical
from fedad_components.audit.verify import verify
from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.audit import audit, counts_of
from fedad_components.flare.context import SENDER_PROP
from fedad_components.flare.egress import EgressRefused, StrictEgress
from fedad_components.flare.site import SitePaths
from fedad_components.mil.config import HistoFLConfig
from fedad_components.wire import SentMeta, WireError

CONFIG = HistoFLConfig.parse(
    {
        "model": {"in_features": 2},
        "target": {"kind": "survival"},
        "counts": {"min_cell": 5, "time_depth": 1},
        "federation": {"rounds": 5},
    }
)
THETA = initial_state(CONFIG)
EVENTS = [7, 9]


def result(**change: Any) -> Shareable:
    meta = {"config_digest": CONFIG.digest(), "round": 0, "n_samples": 30, "events": EVENTS, **change}
    return DXO(DataKind.WEIGHTS, {name: tensor.clone() for name, tensor in THETA.items()}, meta).to_shareable()


@pytest.fixture
def kits(tmp_path: Path) -> tuple[Path, Path]:
    authority = Authority()
    server, site = (make_kit(tmp_path, authority, name) for name in (SERVER, SITE))
    SitePaths.of_kit(site).policy.write_text("require_approval: false\n")
    return server, site


def offer(server: Path, shareable: Shareable) -> str | None:
    """Why the gate refuses it; None: it is in the mean."""
    aggregator = FedADAggregator()
    aggregator.open_round(0, [SITE], CONFIG, THETA)
    fl_ctx = context(server, CONFIG)
    fl_ctx.set_prop(SENDER_PROP, SITE, private=True, sticky=False)
    accepted = aggregator.accept(shareable, fl_ctx)
    assert aggregator.round
    assert accepted == (SITE in aggregator.round.accepted)
    return aggregator.round.refused.get(SITE)


def test_both_ends_write_one_digest_and_the_logs_do_not_have_its_key(kits: tuple[Path, Path]) -> None:
    """The survey's update is theta^0, which every participant has: the weights could not be the key."""
    server, site = kits
    shareable = StrictEgress().process(result(), context(site, CONFIG))
    nonce = from_shareable(shareable).meta["counts_nonce"]
    assert offer(server, shareable) is None
    (sent,), (received,) = written(site, Kind.RESULT_SENT), written(server, Kind.UPDATE_RECEIVED)
    assert sent.counts == received.counts
    assert set(sent.counts or {}) == {"events"}
    logs = [file for kit in kits for file in SitePaths.of_kit(kit).audit.rglob("*") if file.is_file()]
    content = b"".join(file.read_bytes() for file in logs)
    assert nonce.encode() not in content
    told = {"events": EVENTS}
    for guess in (canonical(told), json.dumps(EVENTS).encode()):
        assert sha256(guess).hexdigest().encode() not in content
    audit(context(server, CONFIG)).checkpoint()
    assert verify([SitePaths.of_kit(kit).audit for kit in kits], site / "startup" / "rootCA.pem").findings == []


def test_equal_counts_have_different_digests() -> None:
    meta = SentMeta(config_digest=CONFIG.digest(), round=0, n_samples=30, events=EVENTS)
    one, again, other = (counts_of(meta, digit * 32) for digit in "aab")
    assert one == again
    assert one != other
    changed = meta.model_copy(update={"events": [9, 7]})
    assert one != counts_of(changed, "a" * 32)


def test_counts_without_a_nonce_are_refused(kits: tuple[Path, Path]) -> None:
    server, site = kits
    shareable = StrictEgress().process(result(), context(site, CONFIG))
    del shareable["DXO"]["meta"]["counts_nonce"]
    assert offer(server, shareable) == "counts_nonce: missing beside counts"
    (refused,) = written(server, Kind.UPDATE_RECEIVED)
    assert refused.reason == "content-not-as-expected"
    with pytest.raises(WireError, match="without counts"):
        counts_of(SentMeta(config_digest=CONFIG.digest(), round=0), "a" * 32)


def test_only_the_filter_writes_a_nonce(kits: tuple[Path, Path]) -> None:
    with pytest.raises(EgressRefused):
        StrictEgress().process(result(counts_nonce="ab" * 16), context(kits[1], CONFIG))


def test_a_survey_of_more_events_than_bags_is_refused_by_name(kits: tuple[Path, Path]) -> None:
    server, site = kits
    shareable = StrictEgress().process(result(), context(site, CONFIG))
    shareable["DXO"]["meta"]["events"] = [0, 1 << 31]
    assert offer(server, shareable) == "events: 2147483648 of 30 training bags (n_samples)"
