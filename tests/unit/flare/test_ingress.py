"""StrictIngress: what a server sends beyond a round's weights and meta reaches nothing at the site."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.app_constant import AppConstants

from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state
from fedad_components.flare.context import set_configuration
from fedad_components.flare.ingress import StrictIngress, check_task
from fedad_components.wire import WireError

CONFIG = FedADConfig.parse({"model": {"image_size": 32}, "federation": {"rounds": 5}})
THETA = initial_state(CONFIG)
COOKIES = {"__workflow__": "controller", "contribution_round": 0}


def context(config: FedADConfig | None = CONFIG) -> FLContext:
    fl_ctx = FLContext()
    if config is not None:
        set_configuration(fl_ctx, config)
    return fl_ctx


def task(**meta: Any) -> Shareable:
    values = {"experiment": "fedad", "config_digest": CONFIG.digest(), "round": 0, "lambda_t": 0.1, **meta}
    shareable = DXO(DataKind.WEIGHTS, {name: tensor.clone() for name, tensor in THETA.items()}, values).to_shareable()
    shareable.set_header(AppConstants.CURRENT_ROUND, 0)
    shareable.set_peer_props({"__identity_name__": "server"})
    shareable.set_cookie_jar(dict(COOKIES))
    return shareable


def test_the_task_reaches_the_executor_without_the_servers_properties() -> None:
    let_in = StrictIngress().process(task(), context())
    dxo = from_shareable(let_in)
    assert dxo.meta["round"] == 0
    assert all(torch.equal(dxo.data[name], tensor) for name, tensor in THETA.items())
    assert let_in.get_cookie_jar() == COOKIES  # by which the server knows which task was answered
    assert let_in.get_header(AppConstants.CURRENT_ROUND) == 0
    assert let_in.get_peer_props() is None


def edit(change: Callable[[Shareable], Any]) -> Shareable:
    shareable = task()
    change(shareable)
    return shareable


def tensors(shareable: Shareable) -> dict[str, Any]:
    content: dict[str, Any] = shareable["DXO"]["data"]
    return content


REFUSED = {
    "unexpected key 'note'": edit(lambda s: s.update(note="run this")),
    "unexpected header 'note'": edit(lambda s: s.set_header("note", "run this")),
    "a text where FLARE has an id": edit(lambda s: s.set_header(AppConstants.NUM_ROUNDS, "rm -rf /")),
    "unexpected DXO field 'note'": edit(lambda s: s["DXO"].update(note=1)),
    "meta refused: 'note'": task(note=1),
    "unexpected tensor(s), first 'extra'": edit(lambda s: tensors(s).update(extra=torch.ones(1))),
    "missing tensor(s), first 'bn1.bias'": edit(lambda s: tensors(s).pop("bn1.bias")),
    "bn1.bias: expected shape": edit(lambda s: tensors(s).update({"bn1.bias": torch.ones(3)})),
    "bn1.bias: expected torch.float32": edit(lambda s: tensors(s).update({"bn1.bias": torch.ones(64).double()})),
    "bn1.bias: holds a non-finite": edit(lambda s: tensors(s).update({"bn1.bias": torch.full((64,), math.inf)})),
    "expected a DXO of kind WEIGHTS": edit(lambda s: s["DXO"].update(kind=DataKind.COLLECTION)),
    "digest differs": task(config_digest="0" * 64),
    "of experiment 'other'": task(experiment="other"),
    "round 5 is beyond": task(round=5),
    "lambda_t 0.01 is outside": task(lambda_t=0.01),
    "meta refused: 'lambda_t'": task(lambda_t=math.nan),
    "meta refused: 'round'": task(round=-1),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_anything_else_reaches_nobody_and_stands_in_the_log(cause: str, caplog: pytest.LogCaptureFixture) -> None:
    let_in = StrictIngress().process(REFUSED[cause], context())
    assert set(let_in) <= {ReservedHeaderKey.HEADERS}
    assert let_in[ReservedHeaderKey.HEADERS] == {ReservedHeaderKey.COOKIE_JAR: COOKIES}
    assert f"StrictIngress refused a task: {cause}" in caplog.text or cause in caplog.text


def test_cookies_with_a_text_are_dropped() -> None:
    let_in = StrictIngress().process(edit(lambda s: s.set_cookie_jar({"note": "a whole sentence"})), context())
    assert "DXO" not in let_in
    assert let_in.get_cookie_jar() is None


def deep(levels: int = 5000) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "hostile",
    [
        edit(lambda s: s.update({ReservedHeaderKey.HEADERS: ["a", "list"]})),
        edit(lambda s: s.set_cookie_jar(deep())),
        edit(lambda s: s.set_header(AppConstants.NUM_ROUNDS, deep())),
        edit(lambda s: s.update(DXO=["a", "list"])),
        {"no": "Shareable"},
        None,
    ],
)
def test_a_malformed_task_ends_as_any_other_that_is_refused(hostile: Any) -> None:
    """The executor reports an empty task as task-refused."""
    let_in = StrictIngress().process(hostile, context())
    assert "DXO" not in let_in
    with pytest.raises(WireError):
        check_task(let_in, CONFIG)


def test_a_round_comes_once_and_rounds_only_increase() -> None:
    ingress = StrictIngress()
    assert "DXO" in ingress.process(task(round=2), context())
    assert "DXO" not in ingress.process(task(round=2), context())
    assert "DXO" not in ingress.process(task(round=1), context())
    assert "DXO" in ingress.process(task(round=3), context())


def test_a_job_without_fedads_executor_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert "DXO" not in StrictIngress().process(task(), context(config=None))
    assert "no FedAD configuration" in caplog.text
