"""StrictEgress: the one gate through which a site's task results leave, closed by default.

It stands in the site's own privacy policy (``local/privacy.json``), where no job can remove it. What FLARE sends on
other paths is held by ``channels.py``, without which nothing passes here either.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

from fedad_components.audit.event import Kind, Outcome, Policy
from fedad_components.audit.log import AuditError
from fedad_components.files import sha256_of
from fedad_components.flare.audit import Record, audit, counts_nonce, counts_of, payload
from fedad_components.flare.channels import JOB_CHANNELS_ID, JobChannels
from fedad_components.flare.context import (
    PRIVACY_PROP,
    configuration,
    data_kind,
    expected_tensors,
    known_code,
    only,
    read_dxo,
)
from fedad_components.flare.site import SitePaths, SitePolicy
from fedad_components.wire import (
    REASON_HEADER,
    RULE_HEADER,
    Reason,
    ResultMeta,
    parse_reason,
    parse_result_meta,
    parse_rule,
)

_RESULT_HEADERS = {ReservedHeaderKey.CONTENT_TYPE, ReservedHeaderKey.RC}
_RESULT_KEYS = {ReservedHeaderKey.HEADERS, "DXO"}
_DXO_KEYS = {"kind", "data", "meta"}
_ERRORS = {Reason.TRAINING_FAILED, Reason.WORKER_DIED, Reason.TIMED_OUT}
"""Reasons that are no refusals by a rule."""
EGRESS_REFUSED = "egress-refused"
"""In the compliance log: StrictEgress let nothing of a result out. It is no word of the wire."""


class EgressRefused(ValueError):
    """A result that may not leave the site. The cause is in the site's log alone: FLARE keeps what a filter raises."""


class StrictEgress(Filter):
    """Lets out exactly the extractor's expected tensors and a short list of meta; refuses a result with anything else.

    What passes is rebuilt from the checked parts, so that nothing rides along; at most one result a round passes, and
    rounds only increase. A refused result becomes FLARE's TASK_RESULT_FILTER_ERROR: the server learns that this site
    refused, and nothing more. Of a task error, only the code, a reason and a rule from fixed vocabularies leave.

    Nothing passes before the compliance log has it, on the disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_round = -1

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Check and rebuild a result.

        Raises:
            EgressRefused: after the log has named the unexpected tensor, key, header or meta.
        """
        record: Record | None = None
        try:
            record = audit(fl_ctx)
            channels = _channels(fl_ctx)
            code = shareable.get_return_code()
            if code != ReturnCode.OK:
                reply = _error_reply(code, shareable)
                _write_error(record, reply)
                return reply
            tensors, meta = self._checked(shareable, fl_ctx)
            nonce = counts_nonce(meta) if record.party else None
            _write_result(record, tensors, meta, nonce, fl_ctx)
            meta = meta.model_copy(update={"checkpoint": record.checkpoint()})
        except Exception as error:
            text = str(error) if isinstance(error, (ValueError, AuditError)) else type(error).__name__
            # Not as an event: FLARE would keep it for the console's `show_errors`.
            self.log_error(fl_ctx, f"StrictEgress refused a result: {text}. Nothing left this site", fire_event=False)
            if record:
                record.note(Kind.RESULT_SENT, reason=EGRESS_REFUSED)
            raise EgressRefused("StrictEgress refused a result: the site's log says why") from None
        content = meta.model_dump(mode="json", exclude_none=True)
        if nonce is not None:
            content["counts_nonce"] = nonce
        size = sum(tensor.nbytes for tensor in tensors.values())
        channels.let_out(tensors.keys(), content, size)
        self._last_round = meta.round
        self.log_info(
            fl_ctx,
            f"StrictEgress passes round {meta.round}: {len(tensors)} tensors, {size} bytes, meta {', '.join(content)}",
        )
        return DXO(data_kind(configuration(fl_ctx)), tensors, content).to_shareable()

    def _checked(self, shareable: Shareable, fl_ctx: FLContext) -> tuple[dict[str, Any], ResultMeta]:
        # FLARE builds this filter in the site's parent process too, where nothing is filtered: torch stays out of it.
        import torch

        from fedad_components.tensors import check_tensors, wire_dtype

        config = configuration(fl_ctx)
        SitePolicy.load(SitePaths.from_context(fl_ctx).policy).check(config)
        only(shareable, _RESULT_KEYS, "key")
        only(shareable.get(ReservedHeaderKey.HEADERS) or {}, _RESULT_HEADERS, "header")
        only(shareable.get("DXO") or {}, _DXO_KEYS, "DXO field")
        dxo = read_dxo(shareable, data_kind(config))
        meta = parse_result_meta(dxo.meta, config, ResultMeta)
        if meta.checkpoint is not None:
            raise EgressRefused("it brings a checkpoint of the compliance log, which StrictEgress alone writes")
        if meta.round >= config.federation.rounds:
            raise EgressRefused(f"round is beyond federation.rounds {config.federation.rounds}")
        if meta.round <= self._last_round:
            raise EgressRefused(
                f"a result of round {self._last_round} has left already; this one is of round {meta.round}"
            )
        spec = expected_tensors(config)
        check_tensors(dxo.data, spec, wire_dtype(config))
        return {name: dxo.data[name].detach().clone(memory_format=torch.contiguous_format) for name in spec}, meta


def _write_result(
    record: Record, tensors: dict[str, Any], meta: ResultMeta, nonce: str | None, fl_ctx: FLContext
) -> None:
    if record.party is None:  # spares the hash
        return
    policy = SitePaths.from_context(fl_ctx).policy
    scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
    filters = scope.task_result_filters[FilterKey.OUT] if scope is not None else []
    record.write(
        Kind.RESULT_SENT,
        peer=record.party.server,
        round=meta.round,
        payload=payload(tensors),
        counts=counts_of(meta, nonce),
        policy=Policy(
            filters=[type(item).__name__ for item in filters],
            digest=sha256_of(policy) if policy.exists() else None,
        ),
        privacy=fl_ctx.get_prop(PRIVACY_PROP),
    )


def _write_error(record: Record, reply: Shareable) -> None:
    reason = parse_reason(reply.get_header(REASON_HEADER))
    outcome = Outcome.FAILED if reason is None or reason in _ERRORS else Outcome.REFUSED
    words = (reason.value if reason else reply.get_return_code(), reply.get_header(RULE_HEADER))
    record.write(Kind.RESULT_SENT, outcome, reason=": ".join(filter(None, words)))


def _channels(fl_ctx: FLContext) -> JobChannels:
    engine = fl_ctx.get_engine()
    channels = engine.get_component(JOB_CHANNELS_ID) if engine is not None else None
    if not isinstance(channels, JobChannels) or not channels.holds():
        raise EgressRefused(
            "the other paths out of this process are not guarded (JobChannels is missing in local/privacy.json, or "
            "another component has changed the cell's filters): run `fedad provision harden KIT`"
        )
    return channels


def _error_reply(code: Any, shareable: Shareable) -> Shareable:
    reply = make_reply(known_code(code))
    if reason := parse_reason(shareable.get_header(REASON_HEADER)):
        reply.set_header(REASON_HEADER, reason.value)
    if rule := parse_rule(shareable.get_header(RULE_HEADER)):
        reply.set_header(RULE_HEADER, rule.value)
    return reply
