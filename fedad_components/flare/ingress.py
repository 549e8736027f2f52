"""StrictIngress: what the server sends into a site with a task, checked before anything of the site sees it.

It stands in the site's own privacy policy (``local/privacy.json``), where no job can remove it; the executor asks the
same check again, which is all there is in FLARE's simulator.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReservedKey, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.defs import TaskConstant

from fedad_components.audit.event import Kind
from fedad_components.audit.log import AuditError
from fedad_components.config import ExperimentConfig
from fedad_components.flare.audit import Record, audit, payload
from fedad_components.flare.channels import plain
from fedad_components.flare.context import configuration, expected_tensors, only, read_dxo
from fedad_components.reports import ReportError
from fedad_components.wire import Reason, TaskMeta, WireError, parse_meta

if TYPE_CHECKING:
    import torch

_KEYS = {ReservedHeaderKey.HEADERS, "DXO"}
_DXO_KEYS = {"kind", "data", "meta"}
_FLARE_HEADERS = {
    ReservedHeaderKey.CONTENT_TYPE,
    ReservedHeaderKey.TASK_NAME,
    ReservedHeaderKey.TASK_ID,
    ReservedHeaderKey.TASK_OPERATOR,
    ReservedHeaderKey.COOKIE_JAR,
    ReservedHeaderKey.MSG_ROOT_ID,
    ReservedHeaderKey.MSG_ROOT_TTL,
    ReservedKey.AUDIT_EVENT_ID,
    ServerCommandKey.TASK_NAME,
    ServerCommandKey.MIN_GET_TASK_TIMEOUT,
    TaskConstant.WAIT_TIME,
    AppConstants.CURRENT_ROUND,
    AppConstants.NUM_ROUNDS,
    AppConstants.CONTRIBUTION_ROUND,
}
"""Words and numbers that FLARE's controller and runner put beside a task."""
_PEER_HEADERS = {ReservedHeaderKey.PEER_CTX, ReservedHeaderKey.PEER_PROPS}
"""The server's properties: nothing of FedAD's reads them, and they end here."""


def check_task(shareable: Shareable, config: ExperimentConfig) -> tuple[TaskMeta, dict[str, torch.Tensor]]:
    """A task's meta and theta^t as it was sent.

    Raises:
        WireError: naming what is not exactly what this configuration makes the server send.
    """
    from fedad_components.tensors import check_tensors, wire_dtype  # the site's parent process stays without torch

    only(shareable.get("DXO") or {}, _DXO_KEYS, "DXO field")
    dxo = read_dxo(shareable, DataKind.WEIGHTS)
    task = parse_meta(TaskMeta, dxo.meta)
    if task.config_digest != config.digest():
        raise WireError(
            "the server runs another configuration than this site's job holds (digest differs): resubmit the job as it "
            "was exported"
        )
    if task.experiment != config.federation.experiment:
        raise WireError(f"the task is of experiment {task.experiment!r}")
    if not task.round < config.federation.rounds:
        raise WireError(f"round {task.round} is beyond federation.rounds {config.federation.rounds}")
    _check_lambda(task.lambda_t, config)
    try:
        config.check_edges(task.bin_edges, task.round)
    except ReportError as error:
        raise WireError(str(error)) from None
    check_tensors(dxo.data, expected_tensors(config), wire_dtype(config))
    return task, dxo.data


def _check_lambda(lambda_t: float, config: ExperimentConfig) -> None:
    atsa = config.schedule
    low, high = (
        (atsa.lambda_fixed, atsa.lambda_fixed) if atsa.schedule == "fixed" else (atsa.lambda_min, atsa.lambda_max)
    )
    if not low - 1e-9 <= lambda_t <= high + 1e-9:
        raise WireError(f"lambda_t {lambda_t} is outside [{low}, {high}]")


class StrictIngress(Filter):
    """Lets in exactly a round's weights and meta; of a task with anything else, nothing.

    Nor does a task pass that the compliance log does not have, or without the server's signed checkpoint of its own.

    The executor gets a refused task empty and reports it as ``task-refused``: a filter that raised could name no
    reason. The site's log has the cause.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_round = -1

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task, rebuilt from its checked parts; without content if it was refused."""
        kept: dict[str, Any] = {}
        record: Record | None = None
        try:
            record = audit(fl_ctx)
            only(shareable, _KEYS, "key")
            headers = shareable.get(ReservedHeaderKey.HEADERS) or {}
            only(headers, _FLARE_HEADERS | _PEER_HEADERS, "header")
            for name in _FLARE_HEADERS & headers.keys():
                plain(headers[name])
                kept[name] = headers[name]
            task, tensors = check_task(shareable, configuration(fl_ctx))
            if task.round <= self._last_round:
                raise WireError(f"round {task.round} comes after round {self._last_round}")
            _write_task(record, task, tensors)
        except Exception as error:
            text = str(error) if isinstance(error, (ValueError, AuditError)) else type(error).__name__
            self.log_error(fl_ctx, f"StrictIngress refused a task: {text}", fire_event=False)
            if record:
                record.note(Kind.TASK_RECEIVED, reason=Reason.TASK_REFUSED.value)
            checked = Shareable()
            _keep_cookies(shareable, checked)
            return checked
        self._last_round = task.round
        checked = DXO(DataKind.WEIGHTS, tensors, task.model_dump(mode="json")).to_shareable()
        for name, value in kept.items():
            checked.set_header(name, value)
        return checked


def _write_task(record: Record, task: TaskMeta, tensors: dict[str, torch.Tensor]) -> None:
    """What came, and what the server says of its own log.

    Raises:
        CheckpointError: if the server's checkpoint is missing, or not the server's.
        AuditError: if it cannot be written.
    """
    if record.party is None:
        return
    record.accept(task.checkpoint, record.party.server)
    record.write(
        Kind.TASK_RECEIVED,
        peer=record.party.server,
        round=task.round,
        lambda_t=task.lambda_t,
        payload=payload(tensors),
    )


def _keep_cookies(task: Shareable, checked: Shareable) -> None:
    """FLARE's runner copies them from the task into the reply, and the server finds by them which task was answered."""
    with contextlib.suppress(Exception):  # of a task that was refused anything may be wrong; it goes on without them
        cookies = task.get_cookie_jar()
        plain(cookies)
        checked.set_cookie_jar(cookies)
