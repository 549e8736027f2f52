"""The server's gate: bad updates are refused by site name, and the aggregate is the mean of the others."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state, wire_spec
from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.context import SENDER_PROP

CONFIG = FedADConfig.parse({"model": {"image_size": 32}})
LOSSES = {"total": 1.0, "contrastive": 0.5, "alignment": 0.3, "orthogonality": 0.2}
FEW = ("bn1.weight", "bn1.bias", "bn1.running_mean", "conv1.weight")
"""Of the wire's hundred tensors, which the gate treats alike; one test offers all."""
THETA = {name: tensor for name, tensor in initial_state(CONFIG).items() if name in FEW}


def meta(**change: Any) -> dict[str, Any]:
    return {"config_digest": CONFIG.digest(), "round": 2, "n_samples": 10, "losses": LOSSES, **change}


def update(value: float = 0.0, dxo_meta: dict[str, Any] | None = None, **tensors: Any) -> Shareable:
    weights: dict[str, Any] = {name: tensor + value for name, tensor in THETA.items()}
    weights.update({name.replace("__", "."): tensor for name, tensor in tensors.items()})
    return DXO(DataKind.WEIGHTS, weights, meta() if dxo_meta is None else dxo_meta).to_shareable()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> FedADAggregator:
    few = {name: shape for name, shape in wire_spec(CONFIG).items() if name in FEW}
    monkeypatch.setattr("fedad_components.flare.aggregator.wire_spec", lambda config: few)
    aggregator = FedADAggregator()
    aggregator.open_round(2, ["a", "b", "c"], CONFIG, THETA)
    return aggregator


def offer(gate: FedADAggregator, site: str, shareable: Shareable) -> bool:
    fl_ctx = FLContext()
    fl_ctx.set_prop(SENDER_PROP, site, private=True, sticky=False)
    return gate.accept(shareable, fl_ctx)


def mean(gate: FedADAggregator) -> dict[str, torch.Tensor]:
    return from_shareable(gate.aggregate(FLContext())).data


BIAS = "bn1__bias"
NAN, INF = torch.full((64,), float("nan")), torch.full((64,), float("inf"))


@pytest.mark.parametrize(
    ("shareable", "reason"),
    [
        (update(**{BIAS: NAN}), "bn1.bias: holds a non-finite"),
        (update(**{BIAS: INF}), "bn1.bias: holds a non-finite"),
        (update(head__0__weight=torch.ones(512, 512)), "unexpected tensor.*head.0.weight"),
        (update(**{BIAS: torch.ones(65)}), r"bn1.bias: expected shape \(64,\), got \(65,\)"),
        (update(**{BIAS: torch.ones(64, dtype=torch.float64)}), "bn1.bias: expected torch.float32"),
        (update(dxo_meta=meta(n_samples=0)), "n_samples"),
        (update(dxo_meta=meta(n_samples=-5)), "n_samples"),
        (update(dxo_meta=meta(n_samples=float("nan"))), "n_samples"),
        (update(dxo_meta=meta(n_samples=10**9)), "exceeds federation.max_samples"),
        (update(dxo_meta={key: value for key, value in meta().items() if key != "n_samples"}), "n_samples"),
        (update(dxo_meta=meta(round=1)), "answers round 1, not round 2"),
        (update(dxo_meta=meta(config_digest="0" * 64)), "another configuration"),
        (DXO(DataKind.WEIGHT_DIFF, dict(THETA), meta()).to_shareable(), "kind WEIGHTS, got 'WEIGHT_DIFF'"),
        (DXO(DataKind.WEIGHTS, {"conv1.weight": THETA["conv1.weight"]}, meta()).to_shareable(), "missing tensor"),
        (Shareable({"weights": 1}), "not a valid DXO"),
    ],
)
def test_a_bad_update_is_refused_by_name_and_leaves_no_trace(
    gate: FedADAggregator, shareable: Shareable, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert offer(gate, "a", update(1.0))
    with caplog.at_level("ERROR"):
        assert not offer(gate, "b", shareable)
    assert offer(gate, "c", update(3.0, meta(n_samples=30)))
    assert gate.round is not None
    refused = gate.round.refused
    assert list(refused) == ["b"]
    assert re.search(reason, refused["b"]), refused["b"]
    assert "'b' refused" in caplog.text
    for name, tensor in mean(gate).items():  # (10 * (theta + 1) + 30 * (theta + 3)) / 40
        torch.testing.assert_close(tensor, THETA[name] + 2.5, rtol=1e-6, atol=1e-5)


def test_a_check_that_fails_itself_costs_one_site_only(gate: FedADAggregator) -> None:
    """FLARE ends a round for all sites when the callback that takes a result raises."""
    assert not offer(gate, "b", update(bn1__bias=torch.ones(64, device="meta")))  # has no values to look at
    assert offer(gate, "a", update(1.0))
    assert gate.round is not None
    assert "the check of it failed" in gate.round.refused["b"]


def test_every_expected_tensor_is_averaged_and_nothing_else() -> None:
    gate = FedADAggregator()
    gate.open_round(2, ["a", "b"], CONFIG, THETA)
    assert not offer(gate, "b", update(1.0))
    assert offer(gate, "a", DXO(DataKind.WEIGHTS, initial_state(CONFIG), meta()).to_shareable())
    assert {name: tuple(tensor.shape) for name, tensor in mean(gate).items()} == wire_spec(CONFIG)


def test_a_site_counts_once(gate: FedADAggregator) -> None:
    assert offer(gate, "a", update(1.0))
    assert not offer(gate, "a", update(100.0))
    torch.testing.assert_close(mean(gate)["bn1.bias"], THETA["bn1.bias"] + 1.0)


def test_a_site_that_was_not_asked_does_not_count(gate: FedADAggregator) -> None:
    assert not offer(gate, "stranger", update(1.0))
    assert gate.round is not None
    assert gate.round.accepted == {}


def test_the_sender_is_who_the_connection_says_not_what_the_update_says(gate: FedADAggregator) -> None:
    forged = update(1.0)
    forged.set_peer_props({"__identity_name__": "b"})
    assert offer(gate, "a", forged)
    assert gate.round is not None
    assert list(gate.round.accepted) == ["a"]


def test_an_update_after_the_round_is_refused(gate: FedADAggregator) -> None:
    offer(gate, "a", update(1.0))
    before = mean(gate)
    assert not offer(gate, "b", update(50.0))
    torch.testing.assert_close(mean(gate)["bn1.bias"], before["bn1.bias"])
    assert gate.round is not None
    assert "no answer in time" in gate.round.refused["c"]


def test_a_better_second_try_replaces_a_refusal(gate: FedADAggregator) -> None:
    assert not offer(gate, "a", update(**{BIAS: NAN}))
    assert offer(gate, "a", update(1.0))
    assert gate.round is not None
    assert gate.round.refused == {}
