"""What FedAD's components hand to each other through FLARE's context: private, so that it never leaves the process."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs

from fedad_components.config import ExperimentConfig
from fedad_components.wire import WireError, shown

_RETURN_CODES = frozenset(value for name, value in vars(ReturnCode).items() if name.isupper())

CONFIG_PROP = "fedad_config"
PRIVACY_PROP = "fedad_privacy"
"""At a site: what the running round was charged to the privacy ledger, an :class:`audit.event.Privacy`."""
SENDER_PROP = "fedad_sender"
"""Name under which the sender of a result is registered; what a result says of itself is not trusted."""


def set_configuration(fl_ctx: FLContext, config: ExperimentConfig) -> None:
    """Make the job's validated configuration known to the other components of this process."""
    fl_ctx.set_prop(CONFIG_PROP, config, private=True, sticky=True)


def configuration(fl_ctx: FLContext) -> ExperimentConfig:
    """The job's validated configuration.

    Raises:
        ValueError: if FedAD's controller or executor has not set it, that is, does not run this job.
    """
    config = fl_ctx.get_prop(CONFIG_PROP)
    if not isinstance(config, ExperimentConfig):
        raise ValueError(
            "no FedAD configuration in this job: FedAD's components work only beside its controller or executor"
        )
    return config


def data_kind(config: ExperimentConfig) -> DataKind:
    """DXO kind of an update under a configuration."""
    return DataKind.WEIGHT_DIFF if config.federation.update == "difference" else DataKind.WEIGHTS


@lru_cache(maxsize=1)
def expected_tensors(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a configuration lets through, in both directions; built once a process."""
    # A site's parent process builds the filters that call this, and never filters: torch stays out of it.
    from fedad_components.algorithms import wire_spec

    return wire_spec(config)


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


def only(mapping: Any, allowed: Collection[str], what: str) -> None:
    """Deny by default over a mapping's keys.

    Raises:
        WireError: naming the first unexpected key, or if it is no mapping.
    """
    if not isinstance(mapping, dict):
        raise WireError(f"expected {what}s in a dict, got {type(mapping).__name__}")
    if unknown := sorted(str(key) for key in mapping.keys() - set(allowed)):
        raise WireError(f"unexpected {what} {shown(unknown[0])}; allowed: {', '.join(sorted(allowed))}")


def known_code(code: Any) -> str:
    """A return code of FLARE's; ERROR for anything else, which could be any text."""
    return code if isinstance(code, str) and code in _RETURN_CODES else ReturnCode.ERROR


def register_tensors() -> None:
    """Let tensors ride safetensors on FLARE's wire: to be called in every job process, else FOBS refuses them."""
    # Site and server load this module in their parent processes too, which have no use for torch.
    from nvflare.app_opt.pt.decomposers import TensorDecomposer

    fobs.register(TensorDecomposer)
