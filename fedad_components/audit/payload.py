"""What travelled, in a few words and one hash, the same at sender and receiver. Knows bytes only: no torch, no numpy.

The hash is SHA-256 over the tensors in the order of their names' UTF-8 bytes. Each contributes the canonical JSON
(RFC 8785) of ``{"bytes": length, "dtype": ..., "name": ..., "shape": [...]}``, a newline, and its values: row-major,
little-endian. The length in front makes two lists of tensors with one stream of bytes impossible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fedad_components.audit.event import Payload, canonical

Buffer: TypeAlias = bytes | bytearray | memoryview


class Tensor(NamedTuple):
    """A tensor without its library."""

    dtype: str
    """As ``float32`` or ``bfloat16``."""
    shape: Sequence[int]
    values: Buffer
    """Contiguous, row-major, little-endian."""


def payload_digest(tensors: Mapping[str, Tensor | tuple[str, Sequence[int], Buffer]]) -> str:
    """The module's hash of named tensors, in hex."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        dtype, shape, values = tensors[name]
        with memoryview(values) as view:
            head = {"name": name, "dtype": dtype, "shape": [int(size) for size in shape], "bytes": view.nbytes}
            digest.update(canonical(head) + b"\n")
            digest.update(view)
    return digest.hexdigest()


def describe(tensors: Mapping[str, Tensor | tuple[str, Sequence[int], Buffer]]) -> Payload:
    """An event's ``payload``."""
    return Payload(
        tensors=len(tensors),
        bytes=sum(memoryview(values).nbytes for _, _, values in tensors.values()),
        sha256=payload_digest(tensors),
        dtypes=sorted({dtype for dtype, _, _ in tensors.values()}),
    )
