"""What may be on the wire between server and sites, checked by one piece of code at both ends. Imports no FLARE.

The same rules serve the site's egress filter, the server's gate, and the site's check of an incoming task.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.config import NAME_PATTERN, FedADConfig
from fedad_components.records import Losses

Tensors = Mapping[str, torch.Tensor]

REASON_HEADER = "fedad_reason"
"""The one header of ours that an error reply may carry; its value is a :class:`Reason`."""


class Reason(str, Enum):
    """Why a site did not train: a fixed vocabulary, so that no free text leaves a site with an error."""

    TASK_REFUSED = "task-refused"
    POLICY_REFUSED = "policy-refused"
    DATA_REFUSED = "data-refused"
    STATE_REFUSED = "state-refused"
    TRAINING_FAILED = "training-failed"
    WORKER_DIED = "worker-died"
    TIMED_OUT = "timed-out"


def parse_reason(value: Any) -> Reason | None:
    """The reason of an error reply; None for anything outside the vocabulary."""
    return next((reason for reason in Reason if reason.value == value), None)


class WireError(ValueError):
    """Something that must not be on the wire; the message names it, and what was expected."""


class _Meta(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TaskMeta(_Meta):
    """Everything that travels to a site with a round's weights."""

    experiment: str = Field(pattern=NAME_PATTERN)
    config_digest: Digest
    round: int = Field(ge=0)
    lambda_t: float = Field(ge=0.0, allow_inf_nan=False)


class ResultMeta(_Meta):
    """Everything that leaves a site with its weights."""

    config_digest: Digest
    round: int = Field(ge=0)
    n_samples: int = Field(gt=0, description="images in the site's data set, the weight of its update")
    losses: Losses = Field(description="means of the last local epoch")


MetaModel = TypeVar("MetaModel", bound=_Meta)


def parse_meta(model: type[MetaModel], meta: Any) -> MetaModel:
    """Validate the meta of a task or result.

    Raises:
        WireError: naming each key that is unknown, missing or out of range.
    """
    try:
        return model.model_validate(meta)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'meta'}: {item['msg']}" for item in error.errors()
        )
        raise WireError(f"meta refused: {problems}") from None


def wire_dtype(config: FedADConfig) -> torch.dtype:
    """The floating-point type of every tensor on the wire."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.federation.wire_dtype]


def check_tensors(tensors: Any, spec: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    """Accept exactly the expected tensors: these names, these shapes, this type, dense, finite.

    Raises:
        WireError: naming the first offending tensor of each kind.
    """
    if not isinstance(tensors, dict):
        raise WireError(f"expected a dict of tensors, got {type(tensors).__name__}")
    if unknown := sorted(str(name) for name in tensors.keys() - spec.keys()):
        raise WireError(f"{len(unknown)} unexpected tensor(s), first {unknown[0]!r}")
    if missing := sorted(spec.keys() - tensors.keys()):
        raise WireError(f"{len(missing)} missing tensor(s), first {missing[0]!r}")
    for name, shape in spec.items():
        tensor = tensors[name]
        if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
            raise WireError(f"{name}: expected a dense torch.Tensor, got {type(tensor).__name__}")
        if tuple(tensor.shape) != tuple(shape):
            raise WireError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
        if tensor.dtype != dtype:
            raise WireError(f"{name}: expected {dtype}, got {tensor.dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise WireError(f"{name}: holds a non-finite value (NaN or infinity)")


def payload_bytes(tensors: Tensors) -> int:
    """Bytes of the tensors' values."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def encode(theta: Tensors, config: FedADConfig) -> dict[str, torch.Tensor]:
    """Cast to the wire's type, contiguous and on the CPU."""
    dtype = wire_dtype(config)
    return {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in theta.items()}


def decode(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Cast back to float32, in which the server aggregates and the sites train."""
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def encode_update(theta_k: Tensors, theta: Tensors, config: FedADConfig) -> dict[str, torch.Tensor]:
    """A site's trained weights as they leave it: whole, or as the difference to the round's weights."""
    if config.federation.update == "difference":
        return encode({name: tensor - theta[name] for name, tensor in theta_k.items()}, config)
    return encode(theta_k, config)


def apply_update(mean: Tensors, theta: Tensors, config: FedADConfig) -> dict[str, torch.Tensor]:
    """The new global weights from the aggregated updates: the inverse of :func:`encode_update`."""
    if config.federation.update == "difference":
        return {name: theta[name] + tensor for name, tensor in mean.items()}
    return dict(mean)
