"""StrictEgress: whatever is not on the list stays at the site, wherever in the Shareable it hides."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state
from fedad_components.flare import egress
from fedad_components.flare.channels import JOB_CHANNELS_ID, JobChannels
from fedad_components.flare.context import set_configuration
from fedad_components.flare.egress import EgressRefused, StrictEgress
from fedad_components.flare.site import SitePaths, SitePolicy
from fedad_components.records import Losses
from fedad_components.wire import REASON_HEADER, RULE_HEADER

CONFIG = FedADConfig.parse({"model": {"image_size": 32}})
AGGREGATED = FedADConfig.parse({"model": {"image_size": 32}, "loss": {"head": "aggregated"}})
LOSSES = {"total": 1.0, "contrastive": 0.5, "alignment": 0.3, "orthogonality": 0.2}
THETA = {config.loss.head: initial_state(config) for config in (CONFIG, AGGREGATED)}
PATIENT = "DOE^JANE 1954-03-02"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SitePaths:
    paths = SitePaths(tmp_path).create()
    monkeypatch.setattr(egress.SitePaths, "from_context", classmethod(lambda cls, fl_ctx: paths))
    return paths


class Channels(JobChannels):
    """The guard, as if it stood at a cell."""

    def __init__(self, holds: bool = True) -> None:
        super().__init__()
        self.standing = holds
        self.passed: list[tuple[set[str], dict[str, Any], int]] = []

    def holds(self) -> bool:
        return self.standing

    def let_out(self, names: Any, meta: dict[str, Any], payload_bytes: int) -> None:
        self.passed.append((set(names), meta, payload_bytes))


class Engine:
    """Of FLARE's engine, what knows the guard and fires events."""

    def __init__(self, channels: object) -> None:
        self.channels = channels
        self.fired: list[str] = []

    def get_component(self, component_id: str) -> object:
        return self.channels if component_id == JOB_CHANNELS_ID else None

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.fired.append(event_type)


GUARDED = object()


def context(config: FedADConfig | None = CONFIG, channels: object = GUARDED) -> FLContext:
    fl_ctx = FLContext()
    engine = Engine(Channels() if channels is GUARDED else channels)
    fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True)
    if config is not None:
        set_configuration(fl_ctx, config)
    return fl_ctx


def result(config: FedADConfig = CONFIG, **meta: Any) -> Shareable:
    values = {"config_digest": config.digest(), "round": 0, "n_samples": 10, "losses": LOSSES, **meta}
    theta = {name: tensor.clone() for name, tensor in THETA[config.loss.head].items()}
    return DXO(DataKind.WEIGHTS, theta, values).to_shareable()


def test_the_expected_result_leaves_and_nothing_but_it(site: SitePaths) -> None:
    sent = StrictEgress().process(result(), context())
    assert set(sent) == {ReservedHeaderKey.HEADERS, "DXO"}
    assert sent[ReservedHeaderKey.HEADERS] == {ReservedHeaderKey.CONTENT_TYPE: "DXO"}
    dxo = from_shareable(sent)
    assert set(dxo.meta) == {"config_digest", "round", "n_samples", "losses"}
    assert set(dxo.meta["losses"]) == set(LOSSES)
    expected = initial_state(CONFIG)
    assert dxo.data.keys() == expected.keys()
    assert all(torch.equal(dxo.data[name], tensor) for name, tensor in expected.items())


def extra_tensor(shareable: Shareable) -> None:
    shareable["DXO"]["data"]["head.weight"] = torch.ones(3)


def extra_nested(shareable: Shareable) -> None:
    shareable["DXO"]["data"]["extra"] = {"inner": torch.ones(3)}


def extra_key(shareable: Shareable) -> None:
    shareable["note"] = PATIENT


def extra_header(shareable: Shareable) -> None:
    shareable.set_header("note", PATIENT)


def extra_cookie(shareable: Shareable) -> None:
    shareable.add_cookie("note", PATIENT)


def extra_meta(shareable: Shareable) -> None:
    shareable["DXO"]["meta"]["patient"] = PATIENT


def extra_loss(shareable: Shareable) -> None:
    shareable["DXO"]["meta"]["losses"] = {**LOSSES, "per_image": [0.1, 0.2]}


def extra_dxo_field(shareable: Shareable) -> None:
    shareable["DXO"]["note"] = PATIENT


def text_for_a_number(shareable: Shareable) -> None:
    shareable["DXO"]["meta"]["n_samples"] = PATIENT


def wrong_shape(shareable: Shareable) -> None:
    shareable["DXO"]["data"]["bn1.bias"] = torch.ones(10**4)


def wrong_type(shareable: Shareable) -> None:
    shareable["DXO"]["data"]["bn1.bias"] = torch.ones(64, dtype=torch.float64)


def not_finite(shareable: Shareable) -> None:
    shareable["DXO"]["data"]["bn1.bias"] = torch.full((64,), float("nan"))


def another_kind(shareable: Shareable) -> None:
    shareable["DXO"]["kind"] = DataKind.COLLECTION


def no_dxo(shareable: Shareable) -> None:
    shareable.clear()
    shareable["weights"] = initial_state(CONFIG)


def claims_to_be_a_dxo(shareable: Shareable) -> None:
    shareable["DXO"] = PATIENT


@pytest.mark.parametrize(
    ("smuggle", "named"),
    [
        (extra_tensor, "head.weight"),
        (extra_nested, "extra"),
        (extra_key, "note"),
        (extra_header, "note"),
        (extra_cookie, ReservedHeaderKey.COOKIE_JAR),
        (extra_meta, "patient"),
        (extra_loss, "losses.per_image"),
        (extra_dxo_field, "note"),
        (text_for_a_number, "n_samples"),
        (wrong_shape, "bn1.bias"),
        (wrong_type, "bn1.bias"),
        (not_finite, "bn1.bias"),
        (another_kind, "COLLECTION"),
        (no_dxo, "weights"),
        (claims_to_be_a_dxo, "str"),
    ],
)
def test_anything_else_is_refused_by_name(
    site: SitePaths, smuggle: Callable[[Shareable], None], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    shareable = result()
    smuggle(shareable)
    with caplog.at_level("ERROR"), pytest.raises(EgressRefused):
        StrictEgress().process(shareable, context())
    assert named in caplog.text
    assert "Nothing left this site" in caplog.text
    assert PATIENT not in caplog.text


def another_digest(shareable: Shareable) -> None:
    shareable["DXO"]["meta"]["config_digest"] = "0" * 64


def no_such_round(shareable: Shareable) -> None:
    shareable["DXO"]["meta"]["round"] = 2**62


def unchecked_losses(shareable: Shareable) -> None:
    shareable["DXO"]["meta"]["losses"] = Losses.model_construct(**LOSSES | {"total": PATIENT})


@pytest.mark.parametrize(
    ("smuggle", "named"), [(another_digest, "digest"), (no_such_round, "round"), (unchecked_losses, "losses.total")]
)
def test_an_allowed_place_holds_nothing_but_its_own_kind_of_value(
    site: SitePaths, smuggle: Callable[[Shareable], None], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    shareable = result()
    smuggle(shareable)
    with pytest.raises(EgressRefused):
        StrictEgress().process(shareable, context())
    assert named in caplog.text


def test_a_view_leaves_without_the_storage_behind_it(site: SitePaths) -> None:
    shareable = result()
    private = torch.arange(1000.0)
    shareable["DXO"]["data"]["bn1.bias"] = private[:64]
    shareable["DXO"]["data"]["bn1.weight"] = torch.ones(64, 2)[:, 0]  # not contiguous: safetensors would refuse it
    sent = from_shareable(StrictEgress().process(shareable, context())).data
    assert torch.equal(sent["bn1.bias"], private[:64])
    assert sent["bn1.bias"].untyped_storage().nbytes() == 64 * 4
    assert all(tensor.is_contiguous() for tensor in sent.values())
    assert list(sent) == list(initial_state(CONFIG))


def test_what_was_refused_is_no_event_that_the_console_could_ask_for(site: SitePaths) -> None:
    """FLARE keeps error events for `show_errors`, which any role that may view can run."""
    fl_ctx = context()
    shareable = result()
    extra_key(shareable)
    with pytest.raises(EgressRefused) as refusal:
        StrictEgress().process(shareable, fl_ctx)
    assert fl_ctx.get_engine().fired == []
    assert "note" not in str(refusal.value)  # which FLARE keeps


def test_a_result_of_another_executor_is_refused(site: SitePaths, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EgressRefused):
        StrictEgress().process(result(), context(config=None))
    assert "no FedAD configuration" in caplog.text


@pytest.mark.parametrize("channels", [None, Channels(holds=False), object()])
@pytest.mark.parametrize("answer", [result, lambda: make_reply(ReturnCode.EXECUTION_EXCEPTION)])
def test_nothing_leaves_while_the_other_channels_are_unguarded(
    site: SitePaths, channels: object, answer: Callable[[], Shareable], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EgressRefused):
        StrictEgress().process(answer(), context(channels=channels))
    assert "fedad provision harden" in caplog.text


def test_the_guard_is_told_exactly_what_may_follow(site: SitePaths) -> None:
    fl_ctx = context()
    sent = from_shareable(StrictEgress().process(result(), fl_ctx))
    ((names, meta, size),) = fl_ctx.get_engine().channels.passed
    assert (names, meta) == (set(sent.data), sent.meta)
    assert size == sum(tensor.numel() * 4 for tensor in sent.data.values())


@pytest.mark.parametrize("numbers", [(0, 0), (3, 2)])
def test_one_result_a_round_leaves_and_rounds_only_increase(
    site: SitePaths, numbers: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    egress, fl_ctx = StrictEgress(), context()
    egress.process(result(round=numbers[0]), fl_ctx)
    with pytest.raises(EgressRefused):
        egress.process(result(round=numbers[1]), fl_ctx)
    assert f"a result of round {numbers[0]} has left already" in caplog.text
    egress.process(result(round=4), fl_ctx)


@pytest.mark.parametrize("code", [ReturnCode.EXECUTION_EXCEPTION, "DOE^JANE", 17])
def test_of_a_task_error_only_code_and_reason_leave(site: SitePaths, code: Any) -> None:
    reply = make_reply(code, {REASON_HEADER: "worker-died", RULE_HEADER: "max_epsilon", "note": PATIENT})
    reply["traceback"] = PATIENT
    sent = StrictEgress().process(reply, context())
    known = code if code == ReturnCode.EXECUTION_EXCEPTION else ReturnCode.ERROR
    words = {ReservedHeaderKey.RC: known, REASON_HEADER: "worker-died", RULE_HEADER: "max_epsilon"}
    assert sent == {ReservedHeaderKey.HEADERS: words}


@pytest.mark.parametrize("reason", [PATIENT, None, 3, ["worker-died"]])
def test_a_reason_outside_the_vocabulary_stays(site: SitePaths, reason: Any) -> None:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION, {REASON_HEADER: reason, RULE_HEADER: reason})
    sent = StrictEgress().process(reply, context())
    assert sent[ReservedHeaderKey.HEADERS] == {ReservedHeaderKey.RC: ReturnCode.EXECUTION_EXCEPTION}


def test_an_aggregated_head_leaves_only_where_the_sites_policy_says_so(
    site: SitePaths, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EgressRefused):
        StrictEgress().process(result(AGGREGATED), context(AGGREGATED))
    assert "allow_aggregated_head" in caplog.text
    assert not SitePolicy().allow_aggregated_head
    site.policy.write_text("allow_aggregated_head: true\n")
    sent = from_shareable(StrictEgress().process(result(AGGREGATED), context(AGGREGATED)))
    assert any(name.startswith("head.") for name in sent.data)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("allow_aggregated_head: perhaps\n", "allow_aggregated_head"),
        ("privacy: {required_mode: dp_sgd}\n", "required_mode"),
    ],
)
def test_a_policy_that_is_unreadable_or_forbids_the_job_lets_nothing_out(
    site: SitePaths, policy: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.policy.write_text(policy)
    with pytest.raises(EgressRefused):
        StrictEgress().process(result(), context())
    assert named in caplog.text


def test_a_sites_parent_process_need_not_load_torch() -> None:
    """It builds the site's filters, and never filters: 400 MB and seconds of every start would be for nothing."""
    code = "import sys, fedad_components.flare.egress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
