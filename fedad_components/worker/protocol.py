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
from safetensors.torch import load, save

_LENGTH = struct.Struct(">Q")
_HEADER_LENGTH = struct.Struct("<Q")
_FIELDS = "fields"


@dataclass(frozen=True)
class Message:
    """``kind`` says what it is; ``fields`` are plain JSON; ``tensors`` may be empty."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


def send(stream: BinaryIO, message: Message) -> None:
    """Write one frame.

    Raises:
        BrokenPipeError: if the other process is gone.
    """
    fields = json.dumps({"kind": message.kind, **message.fields})
    content = save(dict(message.tensors), metadata={_FIELDS: fields})
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """Read one frame; None where the stream ends, also in the middle of a frame."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    if len(content) < length:
        return None
    (header_length,) = _HEADER_LENGTH.unpack_from(content)
    header = json.loads(content[_HEADER_LENGTH.size : _HEADER_LENGTH.size + header_length])
    fields = json.loads(header["__metadata__"][_FIELDS])
    return Message(fields.pop("kind"), fields, load(content))
