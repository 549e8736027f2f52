"""The weights on the wire: which tensors may be there, and how they are encoded. Imports no FLARE.

The same check serves the site's egress filter, the server's gate, and the site's check of an incoming task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedad_components.config import ExperimentConfig
from fedad_components.wire import WireError, shown

Tensors = Mapping[str, torch.Tensor]


def wire_dtype(config: ExperimentConfig) -> torch.dtype:
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
        raise WireError(f"{len(unknown)} unexpected tensor(s), first {shown(unknown[0])}")
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


def encode(theta: Tensors, config: ExperimentConfig) -> dict[str, torch.Tensor]:
    """Cast to the wire's type, contiguous and on the CPU."""
    dtype = wire_dtype(config)
    return {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in theta.items()}


def decode(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Cast back to float32, in which the server aggregates and the sites train."""
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def encode_update(theta_k: Tensors, theta: Tensors, config: ExperimentConfig) -> dict[str, torch.Tensor]:
    """A site's trained weights as they leave it: whole, or as the difference to the round's weights."""
    if config.federation.update == "difference":
        return encode({name: tensor - theta[name] for name, tensor in theta_k.items()}, config)
    return encode(theta_k, config)


def apply_update(mean: Tensors, theta: Tensors, config: ExperimentConfig) -> dict[str, torch.Tensor]:
    """The new global weights from the aggregated updates: the inverse of :func:`encode_update`."""
    if config.federation.update == "difference":
        return {name: theta[name] + tensor for name, tensor in mean.items()}
    return dict(mean)
