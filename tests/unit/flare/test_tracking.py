"""A round's numbers in TensorBoard and MLflow: written by FLARE's receivers, read back by the trackers' own readers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import EventScope, FLContextKey, ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from fedad_components.config import FedADConfig
from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, SERVER_CLASS_ALLOW_LIST, class_path
from fedad_components.flare.persistor import RECORD
from fedad_components.flare.recipe import FedADRecipe, export_job
from fedad_components.flare.tracking import RECEIVERS, RoundTracker, Tracker, TrackerMissing, make_receiver, numbers_of
from fedad_components.records import Losses, RoundRecord

LOSSES = Losses(total=4.5, contrastive=3.25, alignment=1.0, orthogonality=None)


def record_of(number: int) -> RoundRecord:
    return RoundRecord(
        round=number, participants=["alpha", "beta"], refused={"gamma": "no answer"}, lambda_t=0.1 + number / 8,
        lambda_next=0.5, instability=0.25 / (number + 1), phase="exploration", losses={"alpha": LOSSES},
        n_samples={"alpha": 12}, bytes={"alpha": 64, "beta": 96}, seconds=2.5,
    )  # fmt: skip


class Server:
    """A server's job process as far as events go: every component hears every event."""

    def __init__(self, root: Path, components: list[FLComponent]) -> None:
        for folder in ("startup", "local", "job/app_server"):
            (root / folder).mkdir(parents=True)
        self.workspace, self.components = Workspace(str(root)), components
        stickers = {ReservedKey.PROCESS_TYPE: ProcessType.SERVER_JOB}
        self._contexts = FLContextManager(self, "server", "job", public_stickers={}, private_stickers=stickers)
        self.heard: list[tuple[str, str]] = []

    @contextmanager
    def new_context(self) -> Iterator[FLContext]:
        yield self._contexts.new_context()

    def get_workspace(self) -> Workspace:
        return self.workspace

    def get_clients(self) -> list[Client]:
        return [Client("alpha", "token")]

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.heard.append((event_type, fl_ctx.get_prop(FLContextKey.EVENT_SCOPE)))
        for component in self.components:
            component.handle_event(event_type, fl_ctx)

    def run(self, rounds: list[RoundRecord]) -> None:
        with self.new_context() as fl_ctx:
            self.fire_event(EventType.START_RUN, fl_ctx)
            for record in rounds:
                model = make_model_learnable({}, {RECORD: record})
                fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, model, private=True, sticky=True)
                self.fire_event(AppEventType.AFTER_LEARNABLE_PERSIST, fl_ctx)
            self.fire_event(EventType.END_RUN, fl_ctx)


def test_the_numbers_are_those_of_the_record() -> None:
    assert numbers_of(record_of(2)) == {
        "lambda_t": 0.35, "instability": pytest.approx(0.25 / 3), "seconds": 2.5, "accepted": 2.0, "refused": 1.0,
        "bytes/alpha": 64.0, "bytes/beta": 96.0, "total/alpha": 4.5, "contrastive/alpha": 3.25, "alignment/alpha": 1.0,
    }  # fmt: skip


def test_nothing_is_sent_to_anybody(tmp_path: Path) -> None:
    server = Server(tmp_path, [RoundTracker()])
    server.run([record_of(0)])
    sent = [scope for event, scope in server.heard if ANALYTIC_EVENT_TYPE in event]
    assert sent == [EventScope.LOCAL] * len(numbers_of(record_of(0)))
    assert not any(event.startswith("fed.") for event, _ in server.heard)


def test_tensorboard_reads_what_flares_receiver_wrote(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rounds = [record_of(number) for number in range(3)]
    receiver = make_receiver("tensorboard", "trial")
    Server(tmp_path, [RoundTracker(), receiver]).run(rounds)
    found = event_accumulator.EventAccumulator(str(tmp_path / "job" / "tb_events" / "server"))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == sorted(numbers_of(rounds[0]))
    for tag in numbers_of(rounds[0]):
        points = [(point.step, point.value) for point in found.Scalars(tag)]
        assert points == [(record.round, pytest.approx(numbers_of(record)[tag])) for record in rounds]
    assert receiver.events == [ANALYTIC_EVENT_TYPE]  # not fed.: what a site might send is not written


@pytest.mark.slow
def test_mlflow_reads_what_the_receiver_wrote(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")  # of the whole MLflow, which keeps its runs in a database
    rounds = [record_of(number) for number in range(2)]
    Server(tmp_path, [RoundTracker(), make_receiver("mlflow", "trial")]).run(rounds)
    client = mlflow.tracking.MlflowClient(f"sqlite:///{tmp_path / 'job' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.info.status == "FINISHED"
    for tag in numbers_of(rounds[0]):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, tag)]
        assert sorted(points) == [(record.round, numbers_of(record)[tag]) for record in rounds]


def server_components(job: Path) -> dict[str, dict[str, Any]]:
    config = json.loads((job / "app/config/config_fed_server.json").read_text())
    return {item["path"]: item["args"] for item in config["components"]}


def test_a_job_tracks_only_when_asked_and_only_at_the_server(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    plain = export_job(FedADRecipe(), tmp_path / "plain")
    tracked = export_job(FedADRecipe(tracking="tensorboard"), tmp_path / "tracked")
    added = server_components(tracked).keys() - server_components(plain).keys()
    assert added == {class_path(RoundTracker), RECEIVERS["tensorboard"]}
    assert server_components(tracked)[RECEIVERS["tensorboard"]]["events"] == [ANALYTIC_EVENT_TYPE]
    sites = "app/config/config_fed_client.json"
    assert (tracked / sites).read_text() == (plain / sites).read_text()
    assert set(SERVER_CLASS_ALLOW_LIST) - set(CLASS_ALLOW_LIST) == {class_path(RoundTracker), *RECEIVERS.values()}
    assert server_components(tracked).keys() <= set(SERVER_CLASS_ALLOW_LIST)


def test_an_mlflow_job_names_its_experiment_and_no_address(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    config = FedADConfig.parse({"federation": {"experiment": "chest"}})
    job = export_job(FedADRecipe(config, tracking="mlflow"), tmp_path)
    assert server_components(job)[RECEIVERS["mlflow"]] == {"experiment": "chest"}


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_named_with_its_remedy(
    tracker: Tracker, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((package, "nvflare.app_opt.tracking"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fedad_components.flare.mlflow_receiver", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TrackerMissing, match=rf"pip install 'fedad\[{tracker}\]', here and at the server"):
        make_receiver(tracker, "trial")
