"""What a job's processes write into the compliance log, and that nothing passes without it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import kits
import numpy as np
import pytest
import torch
from kits import SERVER, SITE, break_log, context, make_kit, written
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from parties import Authority

from fedad_components.audit.checkpoint import CheckpointError, sign
from fedad_components.audit.event import Kind, Outcome, Privacy, SignedCheckpoint, now
from fedad_components.audit.log import AuditError
from fedad_components.audit.verify import verify
from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state
from fedad_components.flare import audit as module
from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.audit import JobAudit, audit, party_of, payload, word
from fedad_components.flare.context import PRIVACY_PROP, SENDER_PROP
from fedad_components.flare.controller import FedADController
from fedad_components.flare.egress import EgressRefused, StrictEgress
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.ingress import StrictIngress
from fedad_components.flare.site import SIMULATED_SITES, SitePaths
from fedad_components.wire import REASON_HEADER, RULE_HEADER, Reason, WireError
from fedad_components.worker.process import TrainedRound, TrainingError

CONFIG = FedADConfig.parse({"model": {"image_size": 32}, "federation": {"rounds": 5}})
LOSSES = {"total": 1.0, "contrastive": 0.5, "alignment": 0.3, "orthogonality": 0.2}
THETA = initial_state(CONFIG)
RESULT = {"config_digest": CONFIG.digest(), "round": 1, "n_samples": 10, "losses": LOSSES}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Path:
    return make_kit(tmp_path, authority, SERVER)


@pytest.fixture
def site(tmp_path: Path, authority: Authority) -> Path:
    return make_kit(tmp_path, authority, SITE)


def checkpoint_of(kit: Path) -> SignedCheckpoint:
    signed = audit_of(kit).checkpoint()
    assert signed
    return signed


def audit_of(kit: Path) -> module.Record:
    record = audit(context(kit, CONFIG))
    record.write(Kind.JOB_PROCESS_STARTED)
    return record


# -- whose log --------------------------------------------------------------------------------------------------------


def test_a_kits_events_name_party_job_and_experiment(site: Path) -> None:
    audit(context(site, CONFIG)).write(Kind.JOB_PROCESS_STARTED)
    (event,) = written(site)
    assert (event.site, event.job_id, event.experiment) == (SITE, kits.JOB, "fedad")
    assert (SitePaths.of_kit(site).audit / "audit-000001.jsonl").stat().st_mode & 0o077 == 0


def test_without_a_kit_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's simulator: one folder a site, no certificates."""
    monkeypatch.setenv(SIMULATED_SITES, str(tmp_path))
    record = audit(context(tmp_path / "nowhere", CONFIG))
    assert record.write(Kind.JOB_PROCESS_STARTED) is None
    assert record.checkpoint() is None
    record.accept(None, SERVER)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_kit_without_its_key_writes_nothing_and_lets_nothing_happen(site: Path) -> None:
    (site / "startup" / "client.key").unlink()
    with pytest.raises(AuditError, match=r"client\.key"):
        audit(context(site, CONFIG))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hospital-a", "hospital-a"),
        ("lead@example.org", "lead@example.org"),
        ("x" * 129, None),
        ("DOE JANE\n[E:", None),
    ],
)
def test_a_word_from_outside_is_plain_or_a_hash(text: str, shown: str | None) -> None:
    assert word(text) == (shown or f"sha256:{sha256(text.encode()).hexdigest()}")


def test_the_payloads_hash_is_that_of_its_bytes() -> None:
    tensors = {"b": torch.arange(6.0).reshape(2, 3).t(), "a": torch.tensor(1, dtype=torch.int64)}
    described = payload({**tensors, "c": torch.ones(2, dtype=torch.bfloat16)})
    assert (described.tensors, described.bytes) == (3, 24 + 8 + 4)
    assert described.dtypes == ["bfloat16", "float32", "int64"]
    slow = sha256()
    for name, array in (("a", np.array(1, "<i8")), ("b", np.arange(6, dtype="<f4").reshape(2, 3).T)):
        dtype, shape = str(array.dtype), ",".join(map(str, array.shape))
        slow.update(f'{{"bytes":{array.nbytes},"dtype":"{dtype}","name":"{name}","shape":[{shape}]}}\n'.encode())
        slow.update(array.tobytes("C"))
    assert payload(tensors).sha256 == slow.hexdigest()


@pytest.mark.parametrize("event", [EventType.START_RUN, EventType.END_RUN])
def test_a_jobs_process(site: Path, event: str) -> None:
    JobAudit().handle_event(event, context(site, CONFIG))
    kind = {EventType.START_RUN: Kind.JOB_PROCESS_STARTED, EventType.END_RUN: Kind.JOB_PROCESS_STOPPED}[event]
    assert [found.event for found in written(site)] == [kind]


# -- a site lets a task in --------------------------------------------------------------------------------------------


def task(checkpoint: SignedCheckpoint | None, **meta: Any) -> Shareable:
    values = {"experiment": "fedad", "config_digest": CONFIG.digest(), "round": 1, "lambda_t": 0.1, **meta}
    if checkpoint:
        values["checkpoint"] = checkpoint.model_dump(mode="json")
    return DXO(DataKind.WEIGHTS, dict(THETA), values).to_shareable()


def test_a_task_and_the_servers_checkpoint_are_written_before_it_passes(site: Path, server: Path) -> None:
    signed = checkpoint_of(server)
    fl_ctx = context(site, CONFIG)
    fl_ctx.set_prop(FLContextKey.TASK_ID, "t-1", private=True)
    assert StrictIngress().process(task(signed), fl_ctx).keys() >= {"DXO"}
    held, received = written(site)
    assert (held.event, held.peer, held.checkpoint) == (Kind.PEER_CHECKPOINT, SERVER, signed)
    assert (received.event, received.peer, received.round) == (Kind.TASK_RECEIVED, SERVER, 1)
    assert (received.task_id, received.lambda_t) == ("t-1", 0.1)
    assert received.payload == payload(THETA)


def other_site(authority: Authority, signed: SignedCheckpoint) -> SignedCheckpoint:
    return sign(authority.leaf("hospital-b"), "hospital-b", 3, "a" * 64, now())


def another_root(authority: Authority, signed: SignedCheckpoint) -> SignedCheckpoint:
    return sign(Authority().leaf(SERVER), SERVER, 3, "a" * 64, now())


def another_number(authority: Authority, signed: SignedCheckpoint) -> SignedCheckpoint:
    return signed.model_copy(update={"seq": signed.seq + 1})


@pytest.mark.parametrize("forge", [None, other_site, another_root, another_number])
def test_a_task_without_the_servers_own_checkpoint_is_refused(
    site: Path, server: Path, authority: Authority, forge: Callable[..., SignedCheckpoint] | None
) -> None:
    signed = forge(authority, checkpoint_of(server)) if forge else None
    let_in = StrictIngress().process(task(signed), context(site, CONFIG))
    assert "DXO" not in let_in
    events = written(site)
    assert [(event.event, event.outcome) for event in events] == [
        (Kind.PEER_CHECKPOINT, Outcome.REFUSED),
        (Kind.TASK_RECEIVED, Outcome.REFUSED),
    ]
    assert events[1].reason == "task-refused"


def test_a_task_that_cannot_be_written_does_not_pass(site: Path, server: Path) -> None:
    signed = checkpoint_of(server)
    break_log(site)
    assert "DXO" not in StrictIngress().process(task(signed), context(site, CONFIG))


# -- what a site trains with ------------------------------------------------------------------------------------------


class Worker:
    """In the training process's place."""

    def __init__(self, error: TrainingError | None = None) -> None:
        self.error, self.stopped = error, False

    def train(self, theta: Any, order: Any, **hooks: Any) -> TrainedRound:
        if self.error:
            raise self.error
        hooks["on_opened"](12)
        hooks["on_charged"](Privacy(mode="none", data_set="images").model_dump(mode="json"))
        return TrainedRound(dict(theta), {"n_samples": 12, "losses": LOSSES}, 1.0)


def execute(site: Path, worker: Worker) -> tuple[Shareable, FLContext]:
    executor = FedADExecutor(CONFIG.to_json())
    executor._worker = worker  # type: ignore[assignment]
    fl_ctx = context(site, CONFIG)
    return executor.execute("train", task(None), fl_ctx, Signal()), fl_ctx


def test_the_data_set_and_the_charge_are_written(site: Path) -> None:
    reply, fl_ctx = execute(site, Worker())
    assert reply.get_return_code() == ReturnCode.OK
    opened, charged = written(site)
    assert (opened.event, opened.data_set, opened.images) == (Kind.DATA_SET_OPENED, "images", 12)
    assert (charged.event, charged.round) == (Kind.LEDGER_CHARGED, 1)
    assert charged.privacy == fl_ctx.get_prop(PRIVACY_PROP) == Privacy(mode="none", data_set="images")


@pytest.mark.parametrize(
    ("reason", "kind", "outcome"),
    [
        (Reason.BUDGET_EXHAUSTED, Kind.LEDGER_CHARGED, Outcome.REFUSED),
        (Reason.LEDGER_REFUSED, Kind.LEDGER_CHARGED, Outcome.REFUSED),
        (Reason.DATA_REFUSED, Kind.DATA_SET_OPENED, Outcome.FAILED),
    ],
)
def test_what_the_ledger_or_the_data_set_refused(site: Path, reason: Reason, kind: Kind, outcome: Outcome) -> None:
    execute(site, Worker(TrainingError(reason, "DOE^JANE: /data/x.dcm")))
    (event,) = written(site)
    assert (event.event, event.outcome, event.reason) == (kind, outcome, reason.value)


def test_a_charge_that_cannot_be_written_gives_no_update(site: Path) -> None:
    break_log(site)
    reply, _ = execute(site, Worker())
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "DXO" not in reply


# -- what leaves a site -----------------------------------------------------------------------------------------------


class Scope:
    def __init__(self, *filters: Any) -> None:
        self.task_result_filters = {FilterKey.OUT: list(filters)}


def result(**change: Any) -> Shareable:
    tensors = {name: tensor.clone() for name, tensor in THETA.items()}
    return DXO(DataKind.WEIGHTS, tensors, {**RESULT, **change}).to_shareable()


def test_what_leaves_is_written_first_and_signed(site: Path, server: Path) -> None:
    fl_ctx, policy = context(site, CONFIG), SitePaths.of_kit(site).policy
    policy.write_text("require_approval: false\n")
    fl_ctx.set_prop(PRIVACY_PROP, Privacy(mode="none", data_set="images"), private=True)
    gate = StrictEgress()
    fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, Scope(gate), private=True)
    out = from_shareable(gate.process(result(), fl_ctx))
    sent, signed = written(site)
    assert (sent.event, sent.peer, sent.round, sent.outcome) == (Kind.RESULT_SENT, SERVER, 1, Outcome.SUCCESS)
    assert sent.payload == payload(THETA)
    assert sent.policy
    assert sent.policy.filters == ["StrictEgress"]
    assert sent.policy.digest == sha256(policy.read_bytes()).hexdigest()
    assert sent.privacy == Privacy(mode="none", data_set="images")
    travelling = SignedCheckpoint.model_validate(out.meta["checkpoint"])
    assert travelling == signed.checkpoint
    assert travelling.seq == sent.seq  # it covers what leaves with it
    audit(context(server, CONFIG)).accept(travelling, SITE)
    assert fl_ctx.get_engine().guard.passed == [out.meta]


def test_nothing_leaves_that_cannot_be_written(site: Path) -> None:
    break_log(site)
    fl_ctx = context(site, CONFIG)
    with pytest.raises(EgressRefused):
        StrictEgress().process(result(), fl_ctx)
    with pytest.raises(EgressRefused):
        StrictEgress().process(make_reply(ReturnCode.EXECUTION_EXCEPTION), fl_ctx)
    assert fl_ctx.get_engine().guard.passed == []


def test_a_result_that_brings_a_checkpoint_of_its_own_is_refused(site: Path, server: Path) -> None:
    forged = checkpoint_of(server).model_dump(mode="json")
    with pytest.raises(EgressRefused):
        StrictEgress().process(result(checkpoint=forged), context(site, CONFIG))
    (event,) = written(site)
    assert (event.event, event.outcome, event.reason) == (Kind.RESULT_SENT, Outcome.REFUSED, "egress-refused")


@pytest.mark.parametrize(
    ("headers", "outcome", "reason"),
    [
        (
            {REASON_HEADER: "policy-refused", RULE_HEADER: "min_patients"},
            Outcome.REFUSED,
            "policy-refused: min_patients",
        ),
        ({REASON_HEADER: "worker-died"}, Outcome.FAILED, "worker-died"),
        ({REASON_HEADER: "DOE^JANE"}, Outcome.FAILED, ReturnCode.EXECUTION_EXCEPTION),
    ],
)
def test_an_error_leaves_as_words_of_the_vocabulary(
    site: Path, headers: dict[str, str], outcome: Outcome, reason: str
) -> None:
    StrictEgress().process(make_reply(ReturnCode.EXECUTION_EXCEPTION, headers), context(site, CONFIG))
    (event,) = written(site)
    assert (event.event, event.outcome, event.reason) == (Kind.RESULT_SENT, outcome, reason)


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> FedADAggregator:
    aggregator = FedADAggregator()
    aggregator.panicked = []  # type: ignore[attr-defined]
    monkeypatch.setattr(aggregator, "system_panic", lambda text, fl_ctx: aggregator.panicked.append(text))  # type: ignore[attr-defined]
    aggregator.open_round(1, [SITE, "hospital-b"], CONFIG, THETA)
    return aggregator


def offer(gate: FedADAggregator, server: Path, shareable: Shareable) -> bool:
    fl_ctx = context(server, CONFIG)
    fl_ctx.set_prop(SENDER_PROP, SITE, private=True, sticky=False)
    return gate.accept(shareable, fl_ctx)


def sent_by(site: Path) -> Shareable:
    return StrictEgress().process(result(), context(site, CONFIG))


def test_an_update_that_counts_has_the_hash_of_what_was_sent(gate: FedADAggregator, server: Path, site: Path) -> None:
    assert offer(gate, server, sent_by(site))
    held, came = written(server)
    assert (held.event, held.peer) == (Kind.PEER_CHECKPOINT, SITE)
    assert (came.event, came.outcome, came.peer, came.round) == (Kind.UPDATE_RECEIVED, Outcome.SUCCESS, SITE, 1)
    assert came.payload == written(site, Kind.RESULT_SENT)[0].payload
    audit(context(server, CONFIG)).checkpoint()
    result = verify([SitePaths.of_kit(kit).audit for kit in (server, site)], site / "startup" / "rootCA.pem")
    assert result.findings == []


def test_an_update_without_the_sites_checkpoint_is_refused(gate: FedADAggregator, server: Path) -> None:
    assert not offer(gate, server, result())
    refused = written(server, Kind.UPDATE_RECEIVED)
    assert [(event.outcome, event.reason) for event in refused] == [(Outcome.REFUSED, "checkpoint-refused")]
    assert gate.round
    assert not gate.round.accepted


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"round": 3}, "other-round"), ({"n_samples": "DOE^JANE"}, "content-not-as-expected")],
)
def test_a_refused_update_has_a_word_and_not_what_the_site_said(
    gate: FedADAggregator, server: Path, change: dict[str, Any], reason: str
) -> None:
    assert not offer(gate, server, result(**change))
    (event,) = written(server)
    assert (event.event, event.outcome, event.reason) == (Kind.UPDATE_RECEIVED, Outcome.REFUSED, reason)


def test_an_update_that_cannot_be_written_ends_the_job(gate: FedADAggregator, server: Path, site: Path) -> None:
    shareable = sent_by(site)
    break_log(server)
    assert not offer(gate, server, shareable)
    assert gate.round
    assert not gate.round.accepted
    (text,) = gate.panicked  # type: ignore[attr-defined]
    assert "log" in text


def test_a_site_that_did_not_answer_is_written_once(gate: FedADAggregator, server: Path, site: Path) -> None:
    offer(gate, server, sent_by(site))
    for _ in range(2):
        gate.close_round(context(server, CONFIG))
    silent = [event for event in written(server, Kind.UPDATE_RECEIVED) if event.outcome is Outcome.REFUSED]
    assert [(event.peer, event.reason) for event in silent] == [("hospital-b", "no-answer-in-time")]


def test_a_task_is_written_for_each_site_and_signed(server: Path) -> None:
    controller = FedADController(CONFIG.to_json())
    controller._current_round = 2
    signed = controller._write_task(THETA, [SITE, "hospital-b"], context(server, CONFIG))
    *sent, checkpoint = written(server)
    assert [(event.event, event.peer, event.round) for event in sent] == [
        (Kind.TASK_SENT, SITE, 2),
        (Kind.TASK_SENT, "hospital-b", 2),
    ]
    assert {event.payload.sha256 for event in sent if event.payload} == {payload(THETA).sha256}
    assert checkpoint.checkpoint == signed


def test_a_wire_error_has_a_word() -> None:
    assert WireError("x").refusal.value == "content-not-as-expected"


def test_a_missing_checkpoint_is_an_error_of_its_own(site: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        audit(context(site, CONFIG)).accept(None, SERVER)
    assert party_of(site).server == SERVER
