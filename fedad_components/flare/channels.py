"""Which messages may leave a site's processes on FLARE's network layer; every other one is stopped and named in a log.

FLARE's filters see task results alone. Federated events, metrics, log and object streams, auxiliary messages and the
replies to console commands pass through the process's cell, and the guards of this module stand there:
:class:`JobChannels` in each job's process, :class:`SiteChannels` in the site's parent process. docs/security.md lists
the paths; the names below are FLARE 2.9's.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import (
    AdminCommandNames,
    CellMessageAuthHeaderKey,
    FLContextKey,
    ReservedKey,
    ReservedTopic,
    ServerCommandKey,
    ServerCommandNames,
)
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CELLNET_PREFIX,
    CellChannel,
    CellChannelTopic,
    Encoding,
    IdentityChallengeKey,
    MessageHeaderKey,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import decode_payload, make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import (
    OBJ_DOWNLOADER_CHANNEL,
    OBJ_DOWNLOADER_TOPIC,
    SOURCE_FAILURE_TOPIC,
)
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    STREAM_PREFIX,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.fuel.utils.fobs import FOBSContextKey
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import CellMessageHeaderKeys, TrainingTopic
from nvflare.private.fed.client.client_status import ClientStatus

from fedad_components.flare.context import known_code
from fedad_components.wire import REASON_HEADER, RULE_HEADER, parse_reason, parse_rule, shown

JOB_CHANNELS_ID = "fedad_channels"
"""Component id of :class:`JobChannels` in ``privacy.json``; a job that claims it does not start."""

CONTROL_BYTES = 8 * 1024
"""Most bytes of a message that carries no result; FLARE's own take about 600."""
RESULT_BYTES = 256 * 1024
"""Most bytes of a result without its tensors, which the server fetches one by one; FedAD's take about 16,000."""

HEADER_LENGTH = 1024
"""Most characters of a header; the longest is the signature of FLARE's token."""

_EVERY = "*"
_WORD = re.compile(r"[A-Za-z0-9_.:\-]{0,128}")
_HEADERS = {
    CellMessageHeaderKeys.PROJECT_NAME,
    *(value for name, value in vars(CellMessageAuthHeaderKey).items() if name.isupper()),
}
_REGISTRATION_HEADERS = {
    IdentityChallengeKey.COMMON_NAME,
    IdentityChallengeKey.NONCE,
    CellMessageHeaderKeys.CLIENT_TYPE,
    CellMessageHeaderKeys.CLIENT_IP,
    CellMessageHeaderKeys.FEDERATION_PROTOCOL_VERSION,
    CellMessageHeaderKeys.NVFLARE_VERSION,
    CellMessageHeaderKeys.JOB_IDS,
}
"""How a site names itself to the server, and the jobs that it says it runs with each heartbeat."""
_PUBLIC_PROPS = {
    ReservedKey.RUN_NUM,
    ReservedKey.IDENTITY_NAME,
    ReservedKey.FQSN,
    ReservedKey.IS_LEAF,
    FLContextKey.CLIENT_NAME,
    FLContextKey.CURRENT_JOB_ID,
}
_CONTROL_HEADERS = {
    ReservedHeaderKey.TOPIC,
    ReservedHeaderKey.RC,
    ReservedHeaderKey.TASK_ID,
    ReservedHeaderKey.TASK_NAME,
    ReservedHeaderKey.CONTENT_TYPE,
    ReservedHeaderKey.MSG_ROOT_ID,
    ReservedKey.AUDIT_EVENT_ID,
    ServerCommandKey.LAST_TASK_ID,
}

Route = tuple[str, str]
Check = Callable[[Message], None]


class ChannelRefused(ValueError):
    """A message that may not leave; the text names what it held that is not on the list."""


class CellGuard:
    """Deny by default over everything that one cell sends: a route, that is a channel and a topic, must be listed.

    A refused request is not sent. A refused reply goes out empty, so that the other side does not wait for it.
    """

    def __init__(self, allowed: Mapping[Route, Check], logger: Any, headers: Collection[str] = ()) -> None:
        self._allowed, self._logger = allowed, logger
        self._headers = _HEADERS | set(headers)
        self._cell: CoreCell | None = None
        self._told: set[str] = set()

    @property
    def cell(self) -> CoreCell:
        """The guarded cell."""
        assert self._cell is not None
        return self._cell

    def install(self, cell: CoreCell) -> None:
        """Guard a cell, once."""
        if self._cell is None:
            cell.add_outgoing_request_filter(_EVERY, _EVERY, self.filter_request)
            cell.add_outgoing_reply_filter(_EVERY, _EVERY, self.filter_reply)
            self._cell = cell

    def holds(self) -> bool:
        """Whether every message passes this guard: FLARE asks the filters of the most specific route alone."""
        if self._cell is None:
            return False
        registries = {
            self.filter_request: self._cell.out_req_filter_reg.reg,
            self.filter_reply: self._cell.out_reply_filter_reg.reg,
        }
        return all(
            list(registry) == [f"{_EVERY}:{_EVERY}"]
            and any(callback.cb == guard for callback in registry[f"{_EVERY}:{_EVERY}"])
            for guard, registry in registries.items()
        )

    def filter_request(self, message: Message) -> Message | None:
        """FLARE's hook before a request, or a frame of a stream, is sent; a reply here stops it."""
        return None if self._passes(message) else make_reply(ReturnCode.FILTER_ERROR)

    def filter_reply(self, message: Message) -> None:
        """FLARE's hook before a reply is sent; what it must not say is taken out of it."""
        message.headers.pop(MessageHeaderKey.ERROR, None)  # free text; the code beside it stays
        if not self._passes(message):
            message.payload = None
            message.headers = {name: value for name, value in message.headers.items() if self._knows(name)}
            message.set_header(MessageHeaderKey.RETURN_CODE, ReturnCode.FILTER_ERROR)

    def _passes(self, message: Message) -> bool:
        channel, topic = route(message)
        try:
            check = self._allowed.get((channel, topic)) or self._allowed.get((channel, _EVERY))
            if check is None:
                raise ChannelRefused("not on the list")
            self._check_headers(message)
            check(message)
        except Exception as error:  # a check that fails must not let anything out
            text = str(error) if isinstance(error, ChannelRefused) else type(error).__name__
            self._tell(
                f"message {shown(topic)} on channel {shown(channel)} refused: {text}. It did not leave this site"
            )
            return False
        return True

    def _knows(self, name: Any) -> bool:
        return isinstance(name, str) and (name.startswith((CELLNET_PREFIX, STREAM_PREFIX)) or name in self._headers)

    def _check_headers(self, message: Message) -> None:
        for name, value in message.headers.items():
            if not self._knows(name) or name == MessageHeaderKey.ORIGINAL_HEADERS:
                raise ChannelRefused(f"unexpected header {shown(name)}")
            if isinstance(value, str):
                if len(value) > HEADER_LENGTH:
                    raise ChannelRefused(
                        f"header {name}: {len(value)} characters, at most {HEADER_LENGTH} are expected"
                    )
            elif name != MessageHeaderKey.ROUTE:  # names of cells, with times
                plain(value)

    def _tell(self, line: str) -> None:
        """Once: a stream of refused frames must not fill the log."""
        if line not in self._told and len(self._told) < 1000:
            self._told.add(line)
            self._logger.error(line)


def route(message: Message) -> Route:
    """Channel and topic of a message; of a stream's frame, those of the stream."""
    channel = str(message.get_header(MessageHeaderKey.CHANNEL, ""))
    topic = str(message.get_header(MessageHeaderKey.TOPIC, ""))
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        if message.get_header(StreamHeaderKey.DATA_TYPE) == StreamDataType.ERROR:  # it names no stream but its number
            return STREAM_CHANNEL, STREAM_ERROR_TOPIC
        return str(message.get_header(StreamHeaderKey.CHANNEL, "")), str(message.get_header(StreamHeaderKey.TOPIC, ""))
    return channel, topic


# -- what a message may hold ------------------------------------------------------------------------------------------


def any_content(message: Message) -> None:
    """The route alone decides."""


def nothing(message: Message) -> None:
    """No content."""
    if message.payload:
        raise ChannelRefused(f"expected no content, got {type(message.payload).__name__}")


def no_text(message: Message) -> None:
    """The error of a stream, as a code only."""
    message.set_header(StreamHeaderKey.ERROR_MSG, "see the site's log")
    nothing(message)


def job_status(message: Message) -> None:
    """The job's process tells its parent that it has started or stopped."""
    note = message.payload
    if not isinstance(note, AdminMessage) or note.body != "":
        raise ChannelRefused("expected a job's status without a text")
    plain(note.headers)


def a_status(message: Message) -> None:
    """Nothing, or one of FLARE's words for a process's state."""
    if message.payload is not None and message.payload not in ClientStatus.status_messages.values():
        raise ChannelRefused("expected one of FLARE's words for a process's state")


def plain(value: Any) -> None:
    """Words, numbers, and lists and dicts of them.

    Raises:
        ChannelRefused: for anything else.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return
    if isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise ChannelRefused("a text where FLARE has an id or a word")
    elif isinstance(value, dict):
        for key, inner in value.items():
            plain(key)
            plain(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            plain(inner)
    else:
        raise ChannelRefused(f"unexpected {type(value).__name__}")


def _check_public(content: Any) -> None:
    """The properties that FLARE sends along with every message of a job."""
    properties = content.get_all_public_props() if isinstance(content, FLContext) else content
    if not isinstance(properties, dict):
        raise ChannelRefused(f"expected public properties in a dict, got {type(properties).__name__}")
    if unknown := sorted(str(name) for name in properties.keys() - _PUBLIC_PROPS):
        raise ChannelRefused(f"unexpected public property {shown(unknown[0])}")
    plain(properties)


def check_flare_headers(headers: Mapping[str, Any], own: Collection[str] = ()) -> None:
    """The headers that FLARE itself gives a Shareable; ``own`` are checked elsewhere.

    Raises:
        ChannelRefused: naming the first other header.
    """
    for name, value in headers.items():
        if name in (ReservedHeaderKey.PEER_CTX, ReservedHeaderKey.PEER_PROPS):
            _check_public(value)
        elif name in _CONTROL_HEADERS:
            plain(value)
        elif name not in own:
            raise ChannelRefused(f"unexpected header {shown(name)}")


@dataclass(frozen=True)
class Passed:
    """What StrictEgress has let out last: names of the tensors, and meta; ``None`` twice for an error."""

    names: frozenset[str] | None
    meta: dict[str, Any] | None


class JobChannels(FLComponent):
    """The guard of a job's process; a component of the site's ``privacy.json``, which no job can take away.

    A result passes only as StrictEgress has let it out last, whatever a job's own filters did to it afterwards; FLARE
    then lets the server fetch its tensors, of which no more bytes pass than two updates have.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._passed = Passed(None, None)
        self._budget = 0
        self._streams: set[Any] = set()
        self._guard = CellGuard(self._allowed(), self.logger)

    def _allowed(self) -> dict[Route, Check]:
        aux, command = CellChannel.AUX_COMMUNICATION, CellChannel.SERVER_COMMAND
        status = (AdminCommandNames.ABORT, AdminCommandNames.ABORT_TASK, AdminCommandNames.CHECK_STATUS)
        return {
            (aux, ReservedTopic.SYNC_RUNNER): self._control,
            (aux, ReservedTopic.JOB_HEART_BEAT): self._control,
            (aux, ReservedTopic.TASK_CHECK): self._control,
            (CellChannel.RETURN_ONLY, f"{aux}:{ReservedTopic.END_RUN}"): self._control,
            (command, ServerCommandNames.GET_TASK): self._control,
            (command, ServerCommandNames.SUBMIT_UPDATE): self._result,
            (OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC): self._plain,  # the site fetches the round's weights
            (OBJ_DOWNLOADER_CHANNEL, SOURCE_FAILURE_TOPIC): self._plain,
            (CellChannel.RETURN_ONLY, f"{OBJ_DOWNLOADER_CHANNEL}:{OBJ_DOWNLOADER_TOPIC}"): self._tensors,
            (CellChannel.CLIENT_MAIN, TrainingTopic.NOTIFY_JOB_STATUS): job_status,
            **{(CellChannel.CLIENT_COMMAND, topic): a_status for topic in status},
            (CellChannel.CELLNET, CellChannelTopic.Bye): nothing,
            (STREAM_CHANNEL, STREAM_ACK_TOPIC): nothing,
            (STREAM_CHANNEL, STREAM_ERROR_TOPIC): no_text,
        }

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Guard the cell before the job's components hear that the run begins."""
        if event_type == EventType.ABOUT_TO_START_RUN:
            self._guard.install(fl_ctx.get_engine().get_cell().core_cell)

    def holds(self) -> bool:
        """Whether nothing leaves the process but through this guard."""
        return self._guard.holds()

    def let_out(self, names: Collection[str], meta: dict[str, Any], payload_bytes: int) -> None:
        """StrictEgress lets a result pass: these tensors, of so many bytes, and this meta."""
        with self._lock:
            self._passed = Passed(frozenset(names), meta)
            # The server asks for a tensor again when an answer is lost.
            self._budget += 2 * payload_bytes + RESULT_BYTES

    # -- checks that need the job's process ---------------------------------------------------------------------------

    def _decoded(self, message: Message, limit: int) -> Any:
        """A message's content. Tensors stay references: they are in no message, the server fetches them."""
        if message.get_header(StreamHeaderKey.DATA_TYPE) != StreamDataType.FINAL or message.get_header(
            StreamHeaderKey.SEQUENCE
        ):
            raise ChannelRefused(f"larger than a frame; at most {limit} bytes are expected")
        payload = message.payload
        content = b"".join(payload) if isinstance(payload, list) else bytes(payload or b"")
        if len(content) > limit:
            raise ChannelRefused(f"{len(content)} bytes; at most {limit} are expected")
        encoding = message.get_header(StreamHeaderKey.PAYLOAD_ENCODING)
        if encoding == Encoding.NONE:
            return None
        if encoding != Encoding.FOBS:
            raise ChannelRefused("bytes, which nothing can check")
        copy = Message({StreamHeaderKey.PAYLOAD_ENCODING: encoding}, content)
        context = self._guard.cell.get_fobs_context({FOBSContextKey.PASS_THROUGH: True})
        decode_payload(copy, StreamHeaderKey.PAYLOAD_ENCODING, fobs_ctx=context)
        return copy.payload

    def _plain(self, message: Message) -> None:
        plain(self._decoded(message, CONTROL_BYTES))

    def _shareable(self, message: Message, limit: int, keys: set[str]) -> Shareable:
        content = self._decoded(message, limit)
        if not isinstance(content, Shareable):
            raise ChannelRefused(f"expected a Shareable, got {type(content).__name__}")
        if unknown := sorted(str(key) for key in content.keys() - keys):
            raise ChannelRefused(f"unexpected key {shown(unknown[0])}")
        return content

    def _control(self, message: Message) -> None:
        content = self._shareable(message, CONTROL_BYTES, {ReservedHeaderKey.HEADERS})
        check_flare_headers(content.get(ReservedHeaderKey.HEADERS) or {})

    def _result(self, message: Message) -> None:
        content = self._shareable(message, RESULT_BYTES, {ReservedHeaderKey.HEADERS, "DXO"})
        headers = content.get(ReservedHeaderKey.HEADERS) or {}
        check_flare_headers(headers, own=(ReservedHeaderKey.COOKIE_JAR, REASON_HEADER, RULE_HEADER))
        plain(headers.get(ReservedHeaderKey.COOKIE_JAR))  # the server's own words, sent back
        for name, parse in ((REASON_HEADER, parse_reason), (RULE_HEADER, parse_rule)):
            if name in headers and parse(headers[name]) is None:
                raise ChannelRefused(f"header {name}: outside the vocabulary")
        code = content.get_return_code()
        if known_code(code) != code:
            raise ChannelRefused("an unknown return code")
        if "DXO" in content:
            dxo = content["DXO"]
            with self._lock:
                passed = self._passed
            if passed.names is None or dxo.get("meta") != passed.meta or dxo.get("data", {}).keys() != passed.names:
                raise ChannelRefused("not the result that StrictEgress let out last")

    def _tensors(self, message: Message) -> None:
        """A frame of the answer in which the server fetches tensors: bounded by what StrictEgress has let out."""
        size, stream = message.get_header(StreamHeaderKey.SIZE), message.get_header(StreamHeaderKey.STREAM_ID)
        offset, payload = message.get_header(StreamHeaderKey.OFFSET, 0), message.payload or b""
        if not isinstance(size, int) or not isinstance(offset, int):
            raise ChannelRefused("a stream of unknown size")
        length = sum(map(len, payload)) if isinstance(payload, list) else len(payload)
        if offset + length > size:
            raise ChannelRefused("a stream that is longer than it says")
        with self._lock:
            if stream not in self._streams:
                if size > self._budget:
                    raise ChannelRefused(f"{size} bytes more than StrictEgress has let out")
                self._streams.add(stream)
                self._budget -= size


class SiteChannels(FLComponent):
    """The guard of a site's parent process; a component of its ``resources.json``.

    Replies to console commands that bring content from a site (shell, errors, statistics, environment, calls of
    components) go out empty, also where an authorization policy was loosened.
    """

    COMMANDS = (
        "scheduler.check_resource",
        "scheduler.allocate_resource",
        "scheduler.cancel_resource",
        "resource_manager.report_resources",
        "sys.report_version",
        *(value for name, value in vars(TrainingTopic).items() if name.isupper()),
    )
    """Console commands, by FLARE's topic, whose reply may leave."""

    def __init__(self) -> None:
        super().__init__()
        task, stream = CellChannel.SERVER_MAIN, STREAM_CHANNEL
        topics = CellChannelTopic
        self._guard = CellGuard(
            {
                **{
                    (task, topic): any_content
                    for topic in (
                        topics.Challenge,
                        topics.Register,
                        topics.HEART_BEAT,
                        topics.Quit,
                        topics.REPORT_JOB_FAILURE,
                    )
                },
                (CellChannel.CLIENT_MAIN, _EVERY): self._command,
                (CellChannel.CLIENT_COMMAND, _EVERY): self._to_own_job,
                (CellChannel.CELLNET, CellChannelTopic.Bye): nothing,
                (stream, STREAM_ACK_TOPIC): nothing,
                (stream, STREAM_ERROR_TOPIC): no_text,
            },
            self.logger,
            _REGISTRATION_HEADERS,
        )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Guard the cell before the site registers."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._guard.install(fl_ctx.get_engine().get_cell().core_cell)

    def holds(self) -> bool:
        """Whether nothing leaves the process but through this guard."""
        return self._guard.holds()

    def _to_own_job(self, message: Message) -> None:
        target = str(message.get_header(MessageHeaderKey.DESTINATION, ""))
        if not FQCN.is_ancestor(self._guard.cell.get_fqcn(), target):
            raise ChannelRefused("a command for another site's job")

    def _command(self, message: Message) -> None:
        reply = message.payload
        if not isinstance(reply, AdminMessage):
            raise ChannelRefused(f"expected a reply to a console command, got {type(reply).__name__}")
        command = str(reply.topic).removeprefix("reply_")
        if command not in (*self.COMMANDS, "reply"):
            raise ChannelRefused(f"the reply to {shown(command)} brings content of this site")
