"""StrictEgress: the one gate through which a site's task results leave, closed by default.

It stands in the site's own privacy policy (``local/privacy.json``), where no job can remove it.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

from fedad_components.flare.context import configuration, data_kind, known_code, read_dxo
from fedad_components.flare.site import SitePaths, SitePolicy
from fedad_components.wire import REASON_HEADER, ResultMeta, parse_meta, parse_reason, shown

_RESULT_HEADERS = {ReservedHeaderKey.CONTENT_TYPE, ReservedHeaderKey.RC}
_RESULT_KEYS = {ReservedHeaderKey.HEADERS, "DXO"}
_DXO_KEYS = {"kind", "data", "meta"}


class EgressRefused(ValueError):
    """A result that may not leave the site; the message names what it held that is not on the list."""


class StrictEgress(Filter):
    """Lets out exactly the extractor's expected tensors and a short list of meta; refuses a result with anything else.

    What passes is rebuilt from the checked parts, so that nothing rides along. A refused result becomes FLARE's
    TASK_RESULT_FILTER_ERROR: the server learns that this site refused, and nothing more. Of a task error, only the code
    and a reason from a fixed vocabulary leave.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Check and rebuild a result.

        Raises:
            EgressRefused: naming the unexpected tensor, key, header or meta.
        """
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return self._error_reply(code, shareable)
        try:
            tensors, meta = self._checked(shareable, fl_ctx)
        except ValueError as error:
            # Not as an event: FLARE would keep it for the console's `show_errors`.
            self.log_error(fl_ctx, f"StrictEgress refused a result: {error}. Nothing left this site", fire_event=False)
            raise EgressRefused(str(error)) from None
        return DXO(data_kind(configuration(fl_ctx)), tensors, meta.model_dump(mode="json")).to_shareable()

    def _checked(self, shareable: Shareable, fl_ctx: FLContext) -> tuple[dict[str, Any], ResultMeta]:
        # FLARE builds this filter in the site's parent process too, where nothing is filtered: torch stays out of it.
        import torch

        from fedad_components.fedsd.state import wire_spec
        from fedad_components.tensors import check_tensors, payload_bytes, wire_dtype

        config = configuration(fl_ctx)
        policy = SitePolicy.load(SitePaths.from_context(fl_ctx).policy)
        if config.loss.head == "aggregated" and not policy.allow_aggregated_head:
            raise EgressRefused(
                "loss.head = 'aggregated' would send the projection head; this site's policy.yaml has "
                "allow_aggregated_head: false"
            )
        _only(shareable, _RESULT_KEYS, "key")
        _only(shareable.get(ReservedHeaderKey.HEADERS) or {}, _RESULT_HEADERS, "header")
        _only(shareable.get("DXO") or {}, _DXO_KEYS, "DXO field")
        dxo = read_dxo(shareable, data_kind(config))
        meta = parse_meta(ResultMeta, dxo.meta)
        if meta.config_digest != config.digest():
            raise EgressRefused("config_digest is not that of this job's configuration")
        if meta.round >= config.federation.rounds:
            raise EgressRefused(f"round is beyond federation.rounds {config.federation.rounds}")
        spec = wire_spec(config)
        check_tensors(dxo.data, spec, wire_dtype(config))
        self.log_info(
            fl_ctx,
            f"StrictEgress passes round {meta.round}: {len(dxo.data)} tensors, {payload_bytes(dxo.data)} bytes, meta "
            f"{', '.join(ResultMeta.model_fields)}",
        )
        return {name: dxo.data[name].detach().clone(memory_format=torch.contiguous_format) for name in spec}, meta

    @staticmethod
    def _error_reply(code: Any, shareable: Shareable) -> Shareable:
        reply = make_reply(known_code(code))
        if reason := parse_reason(shareable.get_header(REASON_HEADER)):
            reply.set_header(REASON_HEADER, reason.value)
        return reply


def _only(mapping: Any, allowed: set[str], what: str) -> None:
    if not isinstance(mapping, dict):
        raise EgressRefused(f"expected {what}s in a dict, got {type(mapping).__name__}")
    if unknown := sorted(str(key) for key in mapping.keys() - allowed):
        raise EgressRefused(f"unexpected {what} {shown(unknown[0])}; allowed: {', '.join(sorted(allowed))}")
