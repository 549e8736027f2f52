"""The payload's hash against a slow one, and what it must tell apart."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch

from fedad_components.audit.payload import Tensor, describe, payload_digest

TENSORS = {
    "b.weight": Tensor("float32", (2, 3), np.arange(6, dtype="<f4").tobytes()),
    "a.bias": Tensor("int64", (), np.int64(7).tobytes()),
    "\u00e9": Tensor("float32", (0, 4), b""),
}


def slow_digest(tensors: dict[str, Tensor]) -> str:
    stream = b""
    for name in sorted(tensors, key=lambda name: name.encode("utf-8")):
        dtype, shape, values = tensors[name]
        head = {"bytes": len(values), "dtype": dtype, "name": name, "shape": list(shape)}
        stream += json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" + bytes(values)
    return hashlib.sha256(stream).hexdigest()


def test_against_the_documented_format() -> None:
    assert payload_digest(TENSORS) == slow_digest(TENSORS)
    assert payload_digest({}) == hashlib.sha256().hexdigest()


def test_the_order_of_the_mapping_does_not_matter() -> None:
    assert payload_digest(dict(reversed(TENSORS.items()))) == payload_digest(TENSORS)


@pytest.mark.parametrize(
    "changed",
    [
        {"b.weight": TENSORS["b.weight"]._replace(shape=(3, 2))},
        {"b.weight": TENSORS["b.weight"]._replace(dtype="int32")},
        {"b.weight": TENSORS["b.weight"]._replace(values=np.arange(1, 7, dtype="<f4").tobytes())},
        {"c": TENSORS["\u00e9"]},
    ],
)
def test_each_difference_shows(changed: dict[str, Tensor]) -> None:
    assert payload_digest({**TENSORS, **changed}) != payload_digest(TENSORS)


def test_tensors_of_torch_as_bytes() -> None:
    state = {"w": torch.arange(6.0).reshape(2, 3), "h": torch.ones(2, dtype=torch.bfloat16)}
    tensors = {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape), value.view(torch.uint8).numpy().data)
        for name, value in state.items()
    }
    payload = describe(tensors)
    assert (payload.tensors, payload.bytes, payload.dtypes) == (2, 28, ["bfloat16", "float32"])
    same = {name: Tensor(dtype, shape, bytes(values)) for name, (dtype, shape, values) in tensors.items()}
    assert payload.sha256 == slow_digest(same)
