"""Whatever goes wrong at a site is an error of one task: its cause in the site's log, one word on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state
from fedad_components.flare import executor
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.site import SitePaths
from fedad_components.wire import REASON_HEADER, RULE_HEADER, Reason
from fedad_components.worker.process import TrainedRound, TrainingAborted, TrainingError

CONFIG = FedADConfig.parse({"model": {"image_size": 32}, "federation": {"rounds": 5}})
AGGREGATED = FedADConfig.parse({"model": {"image_size": 32}, "loss": {"head": "aggregated"}})
SECRET = "/data/DOE^JANE/1.dcm"


class Engine:
    """Of FLARE's engine, what keeps events: the console's `show_errors` asks for those."""

    def __init__(self) -> None:
        self.fired: list[str] = []

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.fired.append(event_type)


class Worker:
    """In the training process's place: answers as it is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def train(self, *arguments: Any, **options: Any) -> TrainedRound:
        if isinstance(self.answer, Exception):
            raise self.answer
        return TrainedRound(*self.answer)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SitePaths:
    paths = SitePaths(tmp_path).create()
    monkeypatch.setattr(executor.SitePaths, "from_context", classmethod(lambda cls, fl_ctx: paths))
    return paths


def task(config: FedADConfig = CONFIG, **meta: Any) -> Shareable:
    values = {"experiment": "fedad", "config_digest": config.digest(), "round": 0, "lambda_t": 0.1, **meta}
    return DXO(DataKind.WEIGHTS, initial_state(config), values).to_shareable()


def execute(shareable: Shareable, answer: Any = None, config: FedADConfig = CONFIG) -> tuple[Shareable, list[str]]:
    running = FedADExecutor(config.to_json())
    running._worker = Worker(answer)  # type: ignore[assignment]
    fl_ctx, engine = FLContext(), Engine()
    fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True)
    return running.execute("train", shareable, fl_ctx, Signal()), engine.fired


def no_tensor(shareable: Shareable) -> Shareable:
    del shareable["DXO"]["data"]["bn1.bias"]
    return shareable


FAILED = {"total": 1.0, "contrastive": 0.5, "alignment": 0.3}  # a loss is missing


@pytest.mark.parametrize(
    ("shareable", "answer", "reason"),
    [
        (Shareable(), None, Reason.TASK_REFUSED),
        (task(config_digest="0" * 64), None, Reason.TASK_REFUSED),
        (task(round=5), None, Reason.TASK_REFUSED),
        (task(lambda_t=1.1), None, Reason.TASK_REFUSED),
        (task(experiment="another"), None, Reason.TASK_REFUSED),
        (no_tensor(task()), None, Reason.TASK_REFUSED),
        (task(), TrainingError(Reason.DATA_REFUSED, SECRET), Reason.DATA_REFUSED),
        (task(), TrainingError(Reason.WORKER_DIED, SECRET), Reason.WORKER_DIED),
        (task(), KeyError(SECRET), Reason.TRAINING_FAILED),
        (task(), OSError(28, "No space left on device", SECRET), Reason.TRAINING_FAILED),
        (task(), RuntimeError(), Reason.TRAINING_FAILED),
        (task(), (initial_state(CONFIG), {"n_samples": 5, "losses": FAILED}, 1.0), Reason.TRAINING_FAILED),
    ],
)
def test_an_error_is_one_word_on_the_wire_and_its_cause_in_the_sites_log(
    site: SitePaths, shareable: Shareable, answer: Any, reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("ERROR"):
        reply, fired = execute(shareable, answer)
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert reply.get_header(REASON_HEADER) == reason.value
    assert SECRET not in str(reply)
    assert fired == []
    line = next(record.getMessage() for record in caplog.records if "task not trained" in record.getMessage())
    assert len(line.partition(f"({reason.value}): ")[2]) > 5
    assert (SECRET in caplog.text) == (SECRET in str(answer))


def test_an_aggregated_head_is_refused_before_it_is_trained(site: SitePaths) -> None:
    reply, _ = execute(task(AGGREGATED), config=AGGREGATED)
    assert reply.get_header(REASON_HEADER) == Reason.POLICY_REFUSED.value


def test_a_job_below_the_sites_policy_is_refused_with_the_rules_name(site: SitePaths) -> None:
    site.policy.write_text("privacy: {required_mode: dp_sgd}")
    reply, _ = execute(task())
    assert reply.get_header(REASON_HEADER) == Reason.POLICY_REFUSED.value
    assert reply.get_header(RULE_HEADER) == "required_mode"


def test_what_the_training_process_refuses_keeps_its_rule(site: SitePaths) -> None:
    reply, _ = execute(task(), TrainingError(Reason.POLICY_REFUSED, SECRET, "min_patients"))
    assert reply.get_header(REASON_HEADER) == Reason.POLICY_REFUSED.value
    assert reply.get_header(RULE_HEADER) == "min_patients"


def test_an_abort_is_no_failure(site: SitePaths) -> None:
    reply, _ = execute(task(), TrainingAborted())
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED


@pytest.mark.parametrize("update", ["full", "difference"])
def test_a_trained_round_is_the_update_and_its_meta(site: SitePaths, update: str) -> None:
    config = FedADConfig.parse({"model": {"image_size": 32}, "federation": {"update": update}})
    losses = {**FAILED, "orthogonality": 0.2}
    theta = initial_state(config)
    trained = {name: tensor + 0.5 for name, tensor in theta.items()}
    reply, _ = execute(task(config), (trained, {"n_samples": 7, "losses": losses}, 1.0), config)
    assert reply.get_return_code() == ReturnCode.OK
    sent = reply["DXO"]
    assert sent["meta"] == {"config_digest": config.digest(), "round": 0, "n_samples": 7, "losses": losses}
    expected = trained["bn1.bias"] - (theta["bn1.bias"] if update == "difference" else 0)
    assert torch.equal(sent["data"]["bn1.bias"], expected)
