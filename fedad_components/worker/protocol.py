"""Messages between a job process and its training process: length-prefixed safetensors, so no pickle and no code.

A frame is an 8-byte big-endian length and a safetensors file whose metadata holds the message's fields as JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

MAX_BYTES = 1 << 32
"""Longest frame: a length beyond it means that something else has written into the stream."""

_LENGTH = struct.Struct(">Q")
_HEADER_LENGTH = struct.Struct("<Q")
_FIELDS = "fields"


class ProtocolError(ValueError):
    """Bytes that are no frame."""


@dataclass(frozen=True)
class Message:
    """``kind`` says what it is; ``fields`` are plain JSON; ``tensors`` may be empty."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


def frame(message: Message) -> bytes:
    """A message as it stands in the stream."""
    fields = json.dumps({"kind": message.kind, **message.fields})
    content = save(dict(message.tensors), metadata={_FIELDS: fields})
    return _LENGTH.pack(len(content)) + content


def send(stream: BinaryIO, message: Message) -> None:
    """Write one frame.

    Raises:
        BrokenPipeError: if the other process is gone.
    """
    stream.write(frame(message))
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """Read one frame; None where the stream ends, also in the middle of a frame.

    Raises:
        ProtocolError: if the stream holds anything else.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_BYTES:
        raise ProtocolError(f"expected a frame of at most {MAX_BYTES} bytes, its length is {length}")
    content = stream.read(length)
    if len(content) < length:
        return None
    try:
        tensors = load(content)
        (header_length,) = _HEADER_LENGTH.unpack_from(content)
        header = json.loads(content[_HEADER_LENGTH.size : _HEADER_LENGTH.size + header_length])
        fields = json.loads(header["__metadata__"][_FIELDS])
        return Message(fields.pop("kind"), fields, tensors)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError(f"expected safetensors with the message's fields: {error!r}") from error
