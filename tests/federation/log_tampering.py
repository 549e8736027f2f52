"""Ways to tamper with the lines of a real compliance log."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from fedad_components.audit.checkpoint import sign
from fedad_components.audit.event import FIRST_PREV, Event, Kind, line_hash, parse, rfc3339
from fedad_components.audit.keys import Signer
from fedad_components.audit.reading import log_files

Change = Callable[[list[bytes]], list[bytes]]


def rewrite(folder: Path, change: Change, *, chain: bool = False, signer: Signer | None = None) -> None:
    """Change a log's lines; with ``chain`` the hashes are made to fit again, with ``signer`` its checkpoints too."""
    (file,) = log_files(folder)
    lines = change(file.read_bytes().split(b"\n")[:-1])
    if chain:
        prev, sound = FIRST_PREV, []
        for seq, line in enumerate(lines):
            event = parse(line).event.model_copy(update={"prev": prev, "seq": seq})
            if signer and event.checkpoint and event.event is Kind.CHECKPOINT:
                signed = sign(signer, event.site, seq - 1, prev, event.checkpoint.time)
                event = event.model_copy(update={"checkpoint": signed})
            sound.append(event.line())
            prev = line_hash(sound[-1])
        lines = sound
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def index(lines: list[bytes], kind: Kind, peer: str | None = None) -> int:
    """Of the first event of that kind."""
    events = ((number, parse(line).event) for number, line in enumerate(lines))
    return next(number for number, event in events if event.event is kind and peer in (None, event.peer))


def drop(kind: Kind, peer: str | None = None) -> Change:
    """Without the first event of that kind."""

    def change(lines: list[bytes]) -> list[bytes]:
        number = index(lines, kind, peer)
        return lines[:number] + lines[number + 1 :]

    return change


def edit(kind: Kind, peer: str | None, change: Callable[[Event], Event]) -> Change:
    """The first event of that kind changed, in canonical form."""

    def changed(lines: list[bytes]) -> list[bytes]:
        number = index(lines, kind, peer)
        return [*lines[:number], change(parse(lines[number]).event).line(), *lines[number + 1 :]]

    return changed


def flip(lines: list[bytes]) -> list[bytes]:
    """One byte of a result's line."""
    number = index(lines, Kind.RESULT_SENT)
    return [*lines[:number], lines[number].replace(b'"tensors":', b'"tensorz":'), *lines[number + 1 :]]


def swap(lines: list[bytes]) -> list[bytes]:
    """A result's line and the one before it."""
    number = index(lines, Kind.RESULT_SENT)
    return [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]]


def repeat(lines: list[bytes]) -> list[bytes]:
    """A result's line twice."""
    number = index(lines, Kind.RESULT_SENT)
    return [*lines[: number + 1], *lines[number:]]


def cut(lines: list[bytes]) -> list[bytes]:
    """All from the first result on."""
    return lines[: index(lines, Kind.RESULT_SENT)]


def _another_payload(event: Event) -> Event:
    assert event.payload
    return event.model_copy(update={"payload": event.payload.model_copy(update={"sha256": "f" * 64})})


def _an_hour_later(event: Event) -> Event:
    moment = datetime.fromisoformat(event.time.replace("Z", "+00:00"))
    return event.model_copy(update={"time": rfc3339(moment + timedelta(hours=1))})


def _another_signature(event: Event) -> Event:
    assert event.checkpoint
    signature = bytearray(base64.b64decode(event.checkpoint.signature))
    signature[0] ^= 1
    forged = event.checkpoint.model_copy(update={"signature": base64.b64encode(signature).decode()})
    return event.model_copy(update={"checkpoint": forged})


never_sent = edit(Kind.UPDATE_RECEIVED, "alpha", _another_payload)
"""The server counts another update of alpha than the one that alpha sent."""
other_counts = edit(
    Kind.UPDATE_RECEIVED,
    None,
    lambda event: event.model_copy(update={"counts": dict.fromkeys(event.counts or (), "f" * 64)}),
)
"""The server says that it was told other counts than the site sent."""
clock_ahead = edit(Kind.TASK_RECEIVED, None, _an_hour_later)
"""What follows seems to be an hour before it."""
bad_signature = edit(Kind.CHECKPOINT, None, _another_signature)
