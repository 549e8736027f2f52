"""An event as flat fields of text, in one order: the columns of the table, the details of the other formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from fedad_components.audit.event import Event


class Field(NamedTuple):
    """One value: ``payload.bytes``, ``"44700000"``; lists and mappings as JSON."""

    name: str
    text: str
    number: bool


def one_line(text: str) -> str:
    r"""Text as it may stand in a line, a cell or an XML document: what does not print is escaped, a newline as ``\n``.

    Letters of any script stay; control characters, directions of writing and lone surrogates do not.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def fields(event: Event) -> Iterator[Field]:
    """The fields that the event has, in the order of :data:`COLUMNS`."""
    yield from _fields(event, "")


def _fields(part: BaseModel, prefix: str) -> Iterator[Field]:
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            yield _field(f"{prefix}{name}", value)


def _field(name: str, value: Any) -> Field:
    if isinstance(value, str):  # an Enum of ours is one too
        return Field(name, one_line(getattr(value, "value", value)), number=False)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return Field(name, one_line(text), number=isinstance(value, (int, float)))


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner = [kind for kind in (info.annotation, *get_args(info.annotation)) if _is_part(kind)]
        yield from _names(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


COLUMNS = tuple(_names(Event))
"""Every field that an event may have."""
