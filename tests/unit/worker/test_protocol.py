"""Frames between a job process and its training process."""

from __future__ import annotations

import io

import torch

from fedad_components.worker.protocol import Message, receive, send


def test_messages_round_trip_in_order() -> None:
    stream = io.BytesIO()
    weights = {"layer.weight": torch.randn(3, 4, dtype=torch.float32), "b": torch.ones(2, dtype=torch.bfloat16)}
    send(stream, Message("train", {"round": 3, "lambda_t": 0.1 + 0.2, "text": "é\n"}, weights))
    send(stream, Message("ready"))
    stream.seek(0)
    first, second = receive(stream), receive(stream)
    assert first is not None
    assert second is not None
    assert (first.kind, first.fields) == ("train", {"round": 3, "lambda_t": 0.1 + 0.2, "text": "é\n"})
    assert all(torch.equal(first.tensors[name], tensor) for name, tensor in weights.items())
    assert (second.kind, second.fields, dict(second.tensors)) == ("ready", {}, {})
    assert receive(stream) is None


def test_a_stream_that_ends_in_a_frame_is_an_end() -> None:
    stream = io.BytesIO()
    send(stream, Message("train", {}, {"w": torch.ones(10)}))
    for length in (3, 8, 20, stream.tell() - 1):
        assert receive(io.BytesIO(stream.getvalue()[:length])) is None
