"""The guards at FLARE's own cells: what is not on the list does not leave, and the guard knows when it was bypassed."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import encode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.private.admin_defs import Message as AdminMessage

from fedad_components.flare.channels import RESULT_BYTES, JobChannels, SiteChannels
from fedad_components.wire import REASON_HEADER

PATIENT = "DOE^JANE 1954-03-02"
META = {"round": 0, "config_digest": "0" * 64}
AUX = "aux_communication"

# As FLARE's processes do at their start. What encodes first without it, costs all later Shareables their content.
flare_decomposers.register()


class Engine:
    """Of FLARE's engine and cell, what the guard asks for."""

    def __init__(self, core_cell: CoreCell) -> None:
        self.core_cell = core_cell

    def get_cell(self) -> Engine:
        return self


def cell_of(name: str) -> CoreCell:
    return CoreCell(fqcn=name, root_url="tcp://localhost:9", secure=False, credentials={})


@pytest.fixture
def core_cell() -> Iterator[CoreCell]:
    cell = cell_of(f"alpha.{uuid.uuid4()}")
    yield cell
    CoreCell.ALL_CELLS.pop(cell.get_fqcn(), None)


def install(channels: Any, cell: CoreCell, event: str) -> Any:
    fl_ctx = FLContext()
    fl_ctx.set_prop("__engine__", Engine(cell), private=True)
    fl_ctx.get_engine = lambda: Engine(cell)  # type: ignore[method-assign]
    channels.handle_event(event, fl_ctx)
    return channels


@pytest.fixture
def job(core_cell: CoreCell) -> JobChannels:
    return install(JobChannels(), core_cell, EventType.ABOUT_TO_START_RUN)


def frame(channel: str, topic: str, payload: Any, **headers: Any) -> Message:
    """A message as FLARE streams it: encoded, in one frame."""
    message = Message(dict(headers), payload)
    encode_payload(message, StreamHeaderKey.PAYLOAD_ENCODING)
    size = sum(map(len, message.payload)) if isinstance(message.payload, list) else len(message.payload or b"")
    message.add_headers(
        {
            MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
            MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
            StreamHeaderKey.CHANNEL: channel,
            StreamHeaderKey.TOPIC: topic,
            StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL,
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.OFFSET: 0,
            StreamHeaderKey.SIZE: size,
            StreamHeaderKey.STREAM_ID: uuid.uuid4().int >> 70,
        }
    )
    return message


def plain_message(channel: str, topic: str, payload: Any = None) -> Message:
    return Message({MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}, payload)


def goes(cell: CoreCell, message: Message) -> bool:
    """Through the filters as CoreCell asks them before it sends a request."""
    channel, topic = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
    stopped = cell._filter_outgoing_request(channel, topic, message)
    return stopped is None


def shareable(headers: dict[str, Any] | None = None, **content: Any) -> Shareable:
    made = Shareable()
    made.update(content)
    for name, value in (headers or {}).items():
        made.set_header(name, value)
    return made


def result(meta: dict[str, Any] = META, names: tuple[str, ...] = ("bn1.bias",), **headers: Any) -> Shareable:
    dxo = {"kind": "WEIGHTS", "data": dict.fromkeys(names, 0), "meta": meta}
    return shareable({ReservedHeaderKey.CONTENT_TYPE: "DXO", **headers}, DXO=dxo)


# -- a job's process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        frame(AUX, "__job_heartbeat__", shareable({ReservedHeaderKey.PEER_PROPS: {"__identity_name__": "alpha"}})),
        frame(AUX, "__task_check__", shareable({ReservedHeaderKey.TASK_ID: "6d82ccc2-f13d"})),
        frame("server_command", "get_task", shareable()),
        frame("server_command", "submit_update", make_reply("EXECUTION_EXCEPTION", {REASON_HEADER: "worker-died"})),
        frame("download_service__", "download_service__download", {"ref_id": "6d82ccc2", "state": {"start": 1}}),
        plain_message(STREAM_CHANNEL, "sm__ACK"),
        plain_message("cellnet.channel", "bye"),
    ],
)
def test_flares_own_messages_pass(job: JobChannels, core_cell: CoreCell, message: Message) -> None:
    assert goes(core_cell, message)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (frame(AUX, "fed.event", shareable(note=PATIENT)), "'fed.event' on channel 'aux_communication'"),
        (frame(AUX, "__do_task__", shareable()), "__do_task__"),
        (frame(AUX, "__app_metrics__", shareable()), "__app_metrics__"),
        (frame("log_streaming", "live_log", b"line"), "log_streaming"),
        (frame("any", "thing", shareable()), "'any'"),
        (plain_message("_net_manager", "process_info", {}), "process_info"),
        (plain_message("cellnet.channel", "bulk", [{"message": PATIENT}]), "bulk"),
        (plain_message("cellnet.channel", "bye", PATIENT), "no content"),
        (frame(AUX, "__job_heartbeat__", shareable(note=PATIENT)), "unexpected key 'note'"),
        (frame(AUX, "__job_heartbeat__", shareable({"note": PATIENT})), "unexpected header 'note'"),
        (frame(AUX, "__job_heartbeat__", shareable({ReservedHeaderKey.TOPIC: PATIENT})), "a text where FLARE"),
        (frame(AUX, "__job_heartbeat__", shareable({ReservedHeaderKey.PEER_PROPS: {"note": 1}})), "public property"),
        (frame(AUX, "__job_heartbeat__", shareable(), note=PATIENT), "unexpected header 'note'"),
        (frame(AUX, "__job_heartbeat__", shareable(), cn__x="x" * 2000), "2000 characters"),
        (frame(AUX, "__job_heartbeat__", PATIENT.encode() * 10), "nothing can check"),
        (frame(AUX, "__job_heartbeat__", [PATIENT]), "expected a Shareable"),
        (frame("server_command", "get_task", shareable({"last_task_id": "1" * 9000})), "at most 8192"),
        (frame("server_command", "submit_update", make_reply("DOE_JANE")), "unknown return code"),
        (
            frame("server_command", "submit_update", make_reply("OK", {REASON_HEADER: PATIENT})),
            "outside the vocabulary",
        ),
        (frame("server_command", "submit_update", shareable(traceback=PATIENT)), "unexpected key 'traceback'"),
        (frame("server_command", "submit_update", result()), "not the result that StrictEgress let out"),
        (frame("download_service__", "download_service__download", {"ref_id": PATIENT}), "a text where FLARE"),
        (plain_message("admin", "train.notify_job_status", AdminMessage("x", PATIENT)), "without a text"),
    ],
)
def test_anything_else_is_refused_by_name(
    job: JobChannels, core_cell: CoreCell, message: Message, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not goes(core_cell, message)
    assert named in caplog.text
    assert "did not leave this site" in caplog.text
    assert PATIENT not in caplog.text


def test_only_the_result_that_strict_egress_let_out_passes(job: JobChannels, core_cell: CoreCell) -> None:
    """Whatever a job's own filters, which FLARE asks after a site's, have made of it."""
    job.let_out({"bn1.bias"}, META, 256)
    cookies = {ReservedHeaderKey.COOKIE_JAR: {"contribution_round": 0}}

    def sent(answer: Shareable) -> bool:
        return goes(core_cell, frame("server_command", "submit_update", answer))

    assert sent(result(**cookies))
    assert sent(result(**cookies))  # FLARE repeats a result that was not acknowledged
    assert not sent(result(meta={**META, "round": 1}))
    assert not sent(result(meta={**META, "patient": 1}))
    assert not sent(result(names=("bn1.bias", "head.0.weight")))
    assert not sent(result(names=()))
    assert not sent(result(**{ReservedHeaderKey.COOKIE_JAR: {"note": PATIENT}}))
    job.let_out({"bn1.bias"}, {**META, "round": 1}, 256)
    assert not sent(result())


def tensors(size: int, stream: int, offset: int = 0, length: int = 10) -> Message:
    message = frame("return_only", "download_service__:download_service__download", b"x" * length)
    message.add_headers({StreamHeaderKey.SIZE: size, StreamHeaderKey.STREAM_ID: stream, StreamHeaderKey.OFFSET: offset})
    return message


def test_no_more_bytes_are_fetched_than_two_updates(job: JobChannels, core_cell: CoreCell) -> None:
    assert not goes(core_cell, tensors(1000, stream=1))  # nothing was let out yet
    job.let_out({"bn1.bias"}, META, 10**6)
    allowed = 2 * 10**6 + RESULT_BYTES
    assert goes(core_cell, tensors(allowed - 100, stream=2))
    assert goes(core_cell, tensors(allowed - 100, stream=2, offset=10))  # the next frame of the same stream
    assert not goes(core_cell, tensors(101, stream=3))
    assert goes(core_cell, tensors(100, stream=4))
    assert not goes(core_cell, tensors(100, stream=4, offset=95))
    assert not goes(core_cell, tensors(None, stream=5))  # type: ignore[arg-type]


def test_a_result_with_its_tensors_inside_is_refused(job: JobChannels, core_cell: CoreCell) -> None:
    job.let_out({"bn1.bias"}, META, 10**6)
    answer = result()
    answer["DXO"]["data"]["bn1.bias"] = list(torch.zeros(RESULT_BYTES).numpy().tobytes()[:RESULT_BYTES])
    assert not goes(core_cell, frame("server_command", "submit_update", answer))
    two_frames = frame("server_command", "submit_update", result())
    two_frames.set_header(StreamHeaderKey.DATA_TYPE, StreamDataType.CHUNK)
    assert not goes(core_cell, two_frames)


@pytest.mark.parametrize("topic", [STREAM_DATA_TOPIC, STREAM_ERROR_TOPIC])
def test_of_a_broken_stream_only_its_number_leaves(job: JobChannels, core_cell: CoreCell, topic: str) -> None:
    message = plain_message(STREAM_CHANNEL, topic)
    message.add_headers({StreamHeaderKey.DATA_TYPE: StreamDataType.ERROR, StreamHeaderKey.ERROR_MSG: PATIENT})
    assert goes(core_cell, message)
    assert PATIENT not in str(message.headers)


@pytest.mark.parametrize("topic", ["show_errors", "show_stats", "configure_job_log"])
def test_replies_with_content_go_out_empty(job: JobChannels, core_cell: CoreCell, topic: str) -> None:
    """So that the console gets an answer, and nothing in it."""
    reply = plain_message("client_command", topic, {"ClientRunner": PATIENT})
    reply.headers |= {MessageHeaderKey.MSG_TYPE: "reply", MessageHeaderKey.ERROR: PATIENT, "note": PATIENT}
    sent = core_cell._filter_outgoing_reply(reply)
    assert sent.payload is None
    assert sent.headers[MessageHeaderKey.RETURN_CODE] == ReturnCode.FILTER_ERROR
    assert PATIENT not in str(sent.headers)
    assert sent.headers[MessageHeaderKey.MSG_TYPE] == "reply"


def test_a_status_is_one_of_flares_words(job: JobChannels, core_cell: CoreCell) -> None:
    assert core_cell._filter_outgoing_reply(plain_message("client_command", "check_status", "started")).payload
    assert core_cell._filter_outgoing_reply(plain_message("client_command", "check_status", PATIENT)).payload is None


def test_the_guard_knows_when_a_message_can_pass_it_by(job: JobChannels, core_cell: CoreCell) -> None:
    assert job.holds()
    core_cell.add_outgoing_request_filter("*", "*", lambda message: None)  # beside it: FLARE's authentication
    assert job.holds()
    core_cell.add_outgoing_request_filter(AUX, "fed.event", lambda message: None)  # FLARE would ask this one alone
    assert not job.holds()


def test_a_guard_that_was_not_installed_does_not_hold() -> None:
    assert not JobChannels().holds()
    assert not SiteChannels().holds()


def test_a_check_that_fails_lets_nothing_out(
    job: JobChannels, core_cell: CoreCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: Any) -> None:
        raise RuntimeError(PATIENT)

    monkeypatch.setattr("fedad_components.flare.channels.decode_payload", broken)
    assert not goes(core_cell, frame(AUX, "__job_heartbeat__", shareable()))


# -- a site's parent process ------------------------------------------------------------------------------------------


@pytest.fixture
def parent() -> Iterator[CoreCell]:
    cell = cell_of(f"site-{uuid.uuid4()}")
    assert install(SiteChannels(), cell, EventType.SYSTEM_BOOTSTRAP).holds()
    yield cell
    CoreCell.ALL_CELLS.pop(cell.get_fqcn(), None)


@pytest.mark.parametrize(
    ("command", "leaves"),
    [
        ("scheduler.check_resource", True),
        ("train.deploy", True),
        ("train.start_job", True),
        ("train.abort", True),
        ("train.check_status", True),
        ("sys.report_version", True),
        ("sys.shell", False),
        ("sys.info", False),
        ("sys.report_env", False),
        ("info.show_errors", False),
        ("info.show_stats", False),
        ("comp_caller.call", False),
    ],
)
def test_a_command_that_brings_content_is_answered_without_it(parent: CoreCell, command: str, leaves: bool) -> None:
    reply = plain_message("admin", "admin", AdminMessage(f"reply_{command}", PATIENT))
    assert (parent._filter_outgoing_reply(reply).payload is not None) == leaves


def test_a_parent_talks_to_its_own_jobs_and_not_to_others(parent: CoreCell) -> None:
    command = plain_message("client_command", "abort", {})
    command.set_header(MessageHeaderKey.DESTINATION, f"{parent.get_fqcn()}.job")
    assert goes(parent, command)
    command.set_header(MessageHeaderKey.DESTINATION, "another.job")
    assert not goes(parent, command)


@pytest.mark.parametrize(("topic", "leaves"), [("register", True), ("heart_beat", True), ("upload", False)])
def test_of_a_parents_requests_flares_own_leave(parent: CoreCell, topic: str, leaves: bool) -> None:
    assert goes(parent, plain_message("task", topic, shareable())) == leaves


def test_the_guards_need_no_torch() -> None:
    code = (
        "import sys, fedad_components.flare.channels, fedad_components.flare.ingress; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
