"""What the server keeps of an experiment, and what each job's result holds."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import torch
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from safetensors import safe_open

from fedad_components.config import FedADConfig
from fedad_components.flare.context import set_configuration
from fedad_components.flare.persistor import (
    ATSA_STATE,
    BEST,
    LEDGER_HEADS,
    MONITOR_STATE,
    NEXT_ROUND,
    RECORD,
    FedADPersistor,
)
from fedad_components.records import RoundRecord, read_records

CONFIG = FedADConfig.parse({"model": {"image_size": 32}})
LOSSES = {"total": 1.0, "contrastive": 0.5, "alignment": 0.3, "orthogonality": 0.2}


class Server:
    """A server's kit, and jobs in it."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        (kit / "local" / "fedad").mkdir(parents=True)

    def job(self, name: str) -> FLContext:
        (self.kit / name).mkdir()
        workspace = SimpleNamespace(get_root_dir=lambda: str(self.kit), get_run_dir=lambda job: str(self.kit / job))
        fl_ctx = FLContext()
        fl_ctx.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True)
        fl_ctx.set_prop(ReservedKey.RUN_NUM, name, private=False)
        set_configuration(fl_ctx, CONFIG)
        return fl_ctx


def finished(model: ModelLearnable, number: int) -> ModelLearnable:
    """The model after a round that added one to every weight."""
    record = RoundRecord(
        round=number,
        participants=["a"],
        lambda_t=0.1,
        lambda_next=0.2,
        instability=0.3,
        phase="exploration",
        losses={"a": LOSSES},
        n_samples={"a": 5},
        bytes={"a": 7},
        seconds=1.0,
    )
    theta = {name: tensor + 1 for name, tensor in model[ModelLearnableKey.WEIGHTS].items()}
    atsa = {"lambda_t": 0.2, "history": [0.3]}
    meta = {NEXT_ROUND: number + 1, ATSA_STATE: atsa, MONITOR_STATE: {}, BEST: {}, RECORD: record}
    return make_model_learnable(theta, meta)


def test_a_job_that_dies_after_its_last_round_leaves_the_result_to_the_next(tmp_path: Path) -> None:
    server = Server(tmp_path / "kit")
    first = FedADPersistor()
    fl_ctx = server.job("first")
    model = finished(first.load_model(fl_ctx), 0)
    first.save_model(model, fl_ctx)
    first._lock.release()  # type: ignore[union-attr]  # as its process dies

    resumed = FedADPersistor().load_model(server.job("second"))
    assert resumed[ModelLearnableKey.META][NEXT_ROUND] == 1
    results = tmp_path / "kit" / "second" / "fedad"
    assert [record.round for record in read_records(results / "rounds.jsonl")] == [0]
    with safe_open(results / "extractor.safetensors", "pt") as file:
        assert file.metadata()["rounds"] == "1"
        assert torch.equal(file.get_tensor("bn1.bias"), model[ModelLearnableKey.WEIGHTS]["bn1.bias"])


def test_a_first_job_has_no_result_yet(tmp_path: Path) -> None:
    server = Server(tmp_path / "kit")
    fresh = FedADPersistor().load_model(server.job("first"))
    assert fresh[ModelLearnableKey.META] == {
        NEXT_ROUND: 0,
        ATSA_STATE: None,
        MONITOR_STATE: {},
        BEST: {},
        LEDGER_HEADS: {},
    }
    assert not (tmp_path / "kit" / "first" / "fedad").exists()


def test_everything_that_the_server_keeps_is_private(tmp_path: Path) -> None:
    usual = os.umask(0o022)
    try:
        server = Server(tmp_path / "kit")
        fl_ctx = server.job("first")
        persistor = FedADPersistor()
        persistor.save_model(finished(persistor.load_model(fl_ctx), 0), fl_ctx)
    finally:
        os.umask(usual)
    kept = tmp_path / "kit" / "local" / "fedad" / "experiments"
    assert {path.name for path in kept.rglob("*")} == {"fedad", "lock", "rounds.jsonl", "checkpoint.safetensors"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in [kept, *kept.rglob("*")])
