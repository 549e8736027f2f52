"""Every way out of a site's job process, tried with a marker of its own; ``sitecustomize`` puts this into the executor.

Round 0: messages, events, streams, and a result with something extra. Round 1: an error with a text. Round 2: something
added to the result after StrictEgress, as a filter of the job would.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from typing import Any

PATHS = (
    "aux",
    "aux-forget",
    "heartbeat",
    "fed-event",
    "metric",
    "log-stream",
    "file-stream",
    "cell-request",
    "core-cell",
    "bulk",
    "byte-stream",
    "public-property",
    "message-header",
)
"""Tried in round 0, before training; what the server hears of them is what FLARE does by itself."""
RESULTS = ("result", "error", "after-egress")
"""Tried beside a task's result: no site lets these out, guarded or not."""
ERROR_EVENT = "error-event"
"""Logged as FLARE's components log errors, and asked for from the console."""


def marker(path: str) -> str:
    """What a path carries; a site puts its name behind it."""
    return f"LEAK:{path}:DOE-JANE"


def _mine(path: str) -> str:
    return f"{marker(path)}:{os.environ['FEDAD_NODE']}"


def try_all(executor: Any, fl_ctx: Any) -> None:
    for path in PATHS:
        try:
            globals()["leak_" + path.replace("-", "_")](executor, fl_ctx, _mine(path))
        except Exception as error:
            print(f"leak {path}: {error!r}", flush=True)
    executor.log_error(fl_ctx, _mine(ERROR_EVENT))
    time.sleep(4.0)  # streams send in the background, and the console asks meanwhile


def _shareable(text: str) -> Any:
    from nvflare.apis.shareable import Shareable

    shareable = Shareable()
    shareable["note"] = text
    return shareable


def _file(text: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.write(text)
    return file.name


def _server(fl_ctx: Any) -> str:
    return f"server.{fl_ctx.get_job_id()}"


def leak_aux(executor: Any, fl_ctx: Any, text: str) -> None:
    fl_ctx.get_engine().send_aux_request(["server"], "leak", _shareable(text), 1.0, fl_ctx)


def leak_aux_forget(executor: Any, fl_ctx: Any, text: str) -> None:
    fl_ctx.get_engine().fire_and_forget_aux_request("leak", _shareable(text), fl_ctx)


def leak_heartbeat(executor: Any, fl_ctx: Any, text: str) -> None:
    fl_ctx.get_engine().send_aux_request(["server"], "__job_heartbeat__", _shareable(text), 1.0, fl_ctx)


def leak_fed_event(executor: Any, fl_ctx: Any, text: str) -> None:
    executor.fire_fed_event("leak", _shareable(text), fl_ctx)


def leak_metric(executor: Any, fl_ctx: Any, text: str) -> None:
    from nvflare.apis.analytix import AnalyticsDataType
    from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
    from nvflare.app_common.widgets.streaming import create_analytic_dxo, send_analytic_dxo

    fl_ctx.get_engine().add_handler(ConvertToFedEvent(["analytix_log_stats"]))
    send_analytic_dxo(executor, create_analytic_dxo(text, 1.0, AnalyticsDataType.SCALAR), fl_ctx)


def leak_log_stream(executor: Any, fl_ctx: Any, text: str) -> None:
    from nvflare.apis.streaming import StreamContext
    from nvflare.app_common.logging.constants import LIVE_LOG_TOPIC, Channels
    from nvflare.app_common.streamers.log_streamer import LogStreamer

    ended = threading.Event()
    ended.set()  # so that it sends what is there, and does not wait for more
    LogStreamer.stream_log(
        Channels.LOG_STREAMING_CHANNEL,
        LIVE_LOG_TOPIC,
        StreamContext(),
        ["server"],
        _file(text),
        fl_ctx,
        stop_event=ended,
        chunk_timeout=1.0,
    )


def leak_file_stream(executor: Any, fl_ctx: Any, text: str) -> None:
    from nvflare.app_common.streamers.file_streamer import FileStreamer

    FileStreamer.stream_file("leak", "file", {}, ["server"], _file(text), fl_ctx, chunk_timeout=1.0)


def _message(payload: Any, headers: dict[str, Any] | None = None) -> Any:
    from nvflare.fuel.f3.message import Message

    return Message(headers or {}, payload)


def leak_cell_request(executor: Any, fl_ctx: Any, text: str) -> None:
    fl_ctx.get_engine().get_cell().send_request(
        channel="leak", topic="request", target=_server(fl_ctx), request=_message(_shareable(text)), timeout=1.0
    )


def leak_core_cell(executor: Any, fl_ctx: Any, text: str) -> None:
    cell = fl_ctx.get_engine().get_cell().core_cell
    cell.fire_and_forget("leak", "core", _server(fl_ctx), _message(text.encode()))


def leak_bulk(executor: Any, fl_ctx: Any, text: str) -> None:
    cell = fl_ctx.get_engine().get_cell().core_cell
    cell.queue_message("leak", "bulk", _server(fl_ctx), _message(text.encode()))


def leak_byte_stream(executor: Any, fl_ctx: Any, text: str) -> None:
    fl_ctx.get_engine().get_cell().send_blob("leak", "blob", _server(fl_ctx), _message(text.encode()))


def leak_public_property(executor: Any, fl_ctx: Any, text: str) -> None:
    from nvflare.apis.shareable import Shareable

    with fl_ctx.get_engine().new_context() as own:
        own.set_prop("leak", text, private=False, sticky=False)
        fl_ctx.get_engine().send_aux_request(["server"], "__job_heartbeat__", Shareable(), 1.0, own)
        own.remove_prop("leak")


def leak_message_header(executor: Any, fl_ctx: Any, text: str) -> None:
    cell = fl_ctx.get_engine().get_cell()
    cell.fire_and_forget(
        channel="aux_communication",
        topic="__job_heartbeat__",
        targets=[_server(fl_ctx)],
        message=_message(None, {"note": text}),
    )


def tamper_with_executor(module: Any) -> None:
    inner = module.FedADExecutor.execute

    def execute(self: Any, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        from nvflare.apis.shareable import make_reply

        number = shareable["DXO"]["meta"]["round"]
        if number == 0:
            try_all(self, fl_ctx)
        if number == 1:
            reply = make_reply("EXECUTION_EXCEPTION", {"fedad_reason": "worker-died", "note": _mine("error")})
            reply["traceback"] = _mine("error")
            return reply
        result = inner(self, task_name, shareable, fl_ctx, abort_signal)
        if number == 0:
            result["note"] = _mine("result")
        return result

    module.FedADExecutor.execute = execute


def tamper_after_egress(module: Any) -> None:
    inner = module.StrictEgress.process

    def process(self: Any, shareable: Any, fl_ctx: Any) -> Any:
        result = inner(self, shareable, fl_ctx)
        if "DXO" in result and result["DXO"]["meta"]["round"] == 2:
            result["note"] = _mine("after-egress")
        return result

    module.StrictEgress.process = process


PATCHES = {
    "fedad_components.flare.executor": tamper_with_executor,
    "fedad_components.flare.egress": tamper_after_egress,
}
