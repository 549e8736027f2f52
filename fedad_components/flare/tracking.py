"""The server's own numbers of each round, handed to FLARE's receivers of TensorBoard and MLflow at the server.

They are what ``rounds.jsonl`` holds. Nothing more leaves a site for it: no site sends an event, and the receivers hear
the server's own ones alone.
"""

from __future__ import annotations

import importlib
import math
from typing import Literal

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType, TrackConst
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from fedad_components.flare.persistor import RECORD
from fedad_components.records import Losses, RoundRecord

Tracker = Literal["tensorboard", "mlflow"]

RECEIVERS: dict[Tracker, str] = {
    "tensorboard": "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver",
    "mlflow": "fedad_components.flare.mlflow_receiver.ServerMLflowReceiver",
}
"""Tracker to its receiver's class, which is imported only where its packages are installed."""


class TrackerMissing(ValueError):
    """The packages of a tracker are not installed; the message says how to install them."""


class RoundTracker(FLComponent):
    """Fires one local event a number once a round's record and checkpoint are saved."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Send the numbers of the round that was saved last."""
        if event_type != AppEventType.AFTER_LEARNABLE_PERSIST:
            return
        record = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.META][RECORD]
        with fl_ctx.get_engine().new_context() as own_ctx:
            for tag, value in numbers_of(record).items():
                dxo = create_analytic_dxo(
                    tag, value, AnalyticsDataType.SCALAR, **{TrackConst.GLOBAL_STEP_KEY: record.round}
                )
                send_analytic_dxo(self, dxo, own_ctx)  # local: fire_fed_event is off


def numbers_of(record: RoundRecord) -> dict[str, float]:
    """A round's scalars: ``lambda_t``, ``instability``, ``seconds``, ``accepted``, ``refused``, and for each site
    ``bytes/<site>`` and ``<loss>/<site>``, as far as the privacy mode lets a site tell its losses."""
    numbers = {
        "lambda_t": record.lambda_t,
        "instability": record.instability,
        "seconds": record.seconds,
        "accepted": float(len(record.participants)),
        "refused": float(len(record.refused)),
        **{f"bytes/{site}": float(count) for site, count in record.bytes.items()},
    }
    for site, losses in record.losses.items():
        told = {name: getattr(losses, name) for name in Losses.model_fields}
        numbers |= {f"{name}/{site}": value for name, value in told.items() if value is not None}
    assert all(map(math.isfinite, numbers.values()))  # RoundRecord has seen to it
    return numbers


def make_receiver(tracker: Tracker, experiment: str) -> FLComponent:
    """The receiver of a tracker; it writes into the job's run folder at the server, which ``download_job`` brings.

    Raises:
        TrackerMissing: if its packages are not installed here.
    """
    module, _, name = RECEIVERS[tracker].rpartition(".")
    try:
        receiver = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise TrackerMissing(
            f"tracking {tracker!r} needs packages that are not installed ({error.name}): pip install "
            f"'fedad[{tracker}]', here and at the server"
        ) from None
    if tracker == "mlflow":
        return receiver(experiment)
    return receiver(events=[ANALYTIC_EVENT_TYPE])
