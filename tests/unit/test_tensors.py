"""Which tensors may be on the wire, whatever a hostile end puts there, and how weights survive it."""

from __future__ import annotations

import pytest
import torch

from fedad_components.config import FedADConfig
from fedad_components.tensors import apply_update, check_tensors, decode, encode, encode_update, payload_bytes
from fedad_components.wire import WireError

SPEC = {"conv1.weight": (2, 3), "bn1.bias": (2,)}


def good() -> dict[str, torch.Tensor]:
    return {"conv1.weight": torch.ones(2, 3), "bn1.bias": torch.zeros(2)}


def test_exactly_the_expected_tensors_pass() -> None:
    check_tensors(good(), SPEC, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.0.weight": torch.ones(1)}, "unexpected tensor.*'head.0.weight'"),
        ({"bn1.bias": torch.zeros(3)}, r"bn1.bias: expected shape \(2,\), got \(3,\)"),
        ({"bn1.bias": torch.zeros(2, dtype=torch.float64)}, "bn1.bias: expected torch.float32, got torch.float64"),
        ({"bn1.bias": torch.tensor([0.0, float("nan")])}, "bn1.bias: holds a non-finite"),
        ({"bn1.bias": torch.tensor([0.0, float("-inf")])}, "bn1.bias: holds a non-finite"),
        ({"bn1.bias": [0.0, 0.0]}, "bn1.bias: expected a dense torch.Tensor, got list"),
        ({"bn1.bias": torch.zeros(2).to_sparse()}, "bn1.bias: expected a dense"),
        ({"bn1.bias": torch.nn.Parameter(torch.zeros(2))}, "bn1.bias: expected a dense torch.Tensor, got Parameter"),
        ({3: torch.ones(1)}, "unexpected tensor.*'3'"),
    ],
)
def test_anything_else_is_refused_by_name(change: dict, message: str) -> None:
    with pytest.raises(WireError, match=message):
        check_tensors({**good(), **change}, SPEC, torch.float32)


def test_a_missing_tensor_is_refused_by_name() -> None:
    tensors = good()
    del tensors["bn1.bias"]
    with pytest.raises(WireError, match=r"1 missing tensor.*'bn1.bias'"):
        check_tensors(tensors, SPEC, torch.float32)


@pytest.mark.parametrize("tensors", [None, [], "weights", torch.ones(2)])
def test_what_is_no_dict_is_refused(tensors: object) -> None:
    with pytest.raises(WireError, match="expected a dict"):
        check_tensors(tensors, SPEC, torch.float32)


@pytest.mark.parametrize("update", ["full", "difference"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_survives_the_wire(update: str, dtype: str) -> None:
    config = FedADConfig.parse({"federation": {"update": update, "wire_dtype": dtype}})
    generator = torch.Generator().manual_seed(0)
    theta = {"w": torch.randn(50, generator=generator)}
    theta_k = {"w": theta["w"] + 0.01 * torch.randn(50, generator=generator)}
    sent = encode_update(theta_k, theta, config)
    assert sent["w"].dtype == getattr(torch, dtype)
    back = apply_update(decode(sent), theta, config)["w"]
    tolerance = {"float32": 1e-6, "bfloat16": 2**-8}[dtype]  # bfloat16 keeps 8 significant bits
    scale = (theta_k["w"] - theta["w"] if update == "difference" else theta_k["w"]).abs().max()
    assert (back - theta_k["w"]).abs().max() <= tolerance * max(1.0, scale.item()) + 1e-7
    if (
        update == "difference" and dtype == "bfloat16"
    ):  # the small difference keeps far more of theta_k than theta_k cast
        cast = decode(encode(theta_k, config))["w"]
        assert (back - theta_k["w"]).norm() < 0.1 * (cast - theta_k["w"]).norm()


def test_bytes_are_those_of_the_values() -> None:
    assert payload_bytes({"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.bfloat16)}) == 24 + 10
