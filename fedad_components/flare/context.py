"""What FedAD's components hand to each other through FLARE's context: private, so that it never leaves the process."""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs

from fedad_components.config import FedADConfig
from fedad_components.wire import WireError, shown

_RETURN_CODES = frozenset(value for name, value in vars(ReturnCode).items() if name.isupper())

CONFIG_PROP = "fedad_config"
SENDER_PROP = "fedad_sender"
"""Name under which the sender of a result is registered; what a result says of itself is not trusted."""


def set_configuration(fl_ctx: FLContext, config: FedADConfig) -> None:
    """Make the job's validated configuration known to the other components of this process."""
    fl_ctx.set_prop(CONFIG_PROP, config, private=True, sticky=True)


def configuration(fl_ctx: FLContext) -> FedADConfig:
    """The job's validated configuration.

    Raises:
        ValueError: if FedAD's controller or executor has not set it, that is, does not run this job.
    """
    config = fl_ctx.get_prop(CONFIG_PROP)
    if not isinstance(config, FedADConfig):
        raise ValueError(
            "no FedAD configuration in this job: FedAD's components work only beside its controller or executor"
        )
    return config


def data_kind(config: FedADConfig) -> DataKind:
    """DXO kind of an update under a configuration."""
    return DataKind.WEIGHT_DIFF if config.federation.update == "difference" else DataKind.WEIGHTS


def read_dxo(shareable: Shareable, kind: DataKind) -> DXO:
    """The DXO in a Shareable.

    Raises:
        WireError: if there is none, or one of another kind.
    """
    try:
        dxo = from_shareable(shareable)
    except ValueError:
        raise WireError("not a valid DXO: expected a dict of data and a dict of meta") from None
    if dxo.data_kind != kind:
        found = getattr(dxo.data_kind, "value", dxo.data_kind)
        raise WireError(f"expected a DXO of kind {kind.value}, got {shown(found)}")
    return dxo


def known_code(code: Any) -> str:
    """A return code of FLARE's; ERROR for anything else, which could be any text."""
    return code if isinstance(code, str) and code in _RETURN_CODES else ReturnCode.ERROR


def register_tensors() -> None:
    """Let tensors ride safetensors on FLARE's wire: to be called in every job process, else FOBS refuses them."""
    # Site and server load this module in their parent processes too, which have no use for torch.
    from nvflare.app_opt.pt.decomposers import TensorDecomposer

    fobs.register(TensorDecomposer)
