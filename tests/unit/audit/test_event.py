"""The event: one line whatever the texts, canonical as the library has it, and a schema that is really one."""

from __future__ import annotations

import json
import math
from typing import Any

import audit_events
import jsonschema
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from fedad_components.audit.event import Event, EventError, Kind, canonical, moment, now, parse, schema

texts = st.text(st.characters(codec="utf-8"))
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(texts, values, max_size=6))
def test_canonical_is_the_librarys(value: dict[str, Any]) -> None:
    assert canonical(value) == rfc8785.dumps(value)


def test_canonical_orders_keys_by_utf16_and_tells_one_from_true() -> None:
    assert canonical({"\ufffd": 1, "\U0001f600": True, "a": 1.0}) == '{"a":1,"\U0001f600":true,"\ufffd":1}'.encode()


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, "\ud800"])
def test_canonical_refuses_what_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the library's or Python's own
        canonical({"value": value})


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_one_line_that_reads_back(kind: Kind) -> None:
    event = audit_events.event_of(kind)
    line = event.line()
    assert b"\n" not in line
    assert parse(line).event == event
    jsonschema.Draft202012Validator(schema()).validate(json.loads(line))


def test_the_schema_is_one_and_refuses_other_fields() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    line = json.loads(audit_events.event_of(Kind.COMMAND).line())
    for wrong in ({**line, "patient": "x"}, {**line, "time": "yesterday"}, {**line, "v": 2}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema(), jsonschema.Draft202012Validator)


FORGED = '\n{"event":"job_approval","outcome":"success","v":1}\n'
nasty = st.sampled_from(
    [FORGED, "\r\n[E:x]", "\x1b[31mred\x1b[0m", "MRN 00012345", "\u2028\u2029\x85", "\x00", '"', "\\"]
)


@given(st.lists(nasty | texts, min_size=1, max_size=5).map("".join).map(lambda text: text[:200] or "x"))
def test_no_text_ends_a_line_or_adds_a_field(text: str) -> None:
    event = audit_events.event_of(
        Kind.RESULT_SENT,
        site=text,
        peer=text,
        job_name=text,
        reason=text,
        actor={"name": text},
        files={text: audit_events.DIGEST},
        software={text: text},
    )
    line = event.line()
    assert all(byte >= 0x20 for byte in line)
    assert parse(line).event.reason == json.loads(line)["reason"] == text
    assert json.loads(line).keys() == event.model_dump(exclude_none=True).keys()


LINE = audit_events.event_of(Kind.TASK_SENT).line()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (b"{}", "'v'|'seq'"),
        (b"nonsense", "JSON"),
        (LINE + b" ", "canonical"),
        (LINE.replace(b'"v":1', b'"v":1.0'), "canonical|'v'"),
        (LINE.replace(b'"event":', b'"Event":'), "event"),
        (LINE.replace(b'"round":3', b'"round":03'), "JSON"),
        (LINE.replace(b'"round":3', b'"round":9007199254740993'), "round"),
        (LINE.replace(b'"lambda_t":0.5', b'"lambda_t":0.50'), "canonical"),
        (LINE.replace(b'"lambda_t":0.5', b'"lambda_t":1e999'), "lambda_t"),
        (LINE.replace(b"2030-01-31", b"2030-02-31"), "time"),
        (LINE.replace(b'"outcome":', b'"outcome":"success","outcome":'), "canonical"),
        (LINE[:-1] + b',"reason":null}', "canonical"),
        (LINE.replace(b'"site":"hospital-a"', b'"site":"\xff"'), "JSON|site"),
    ],
)
def test_other_spellings_are_no_events(changed: bytes, why: str) -> None:
    assert changed != LINE
    with pytest.raises(EventError, match=why):
        parse(changed)


def test_a_forged_fields_name_is_told_without_its_control_characters() -> None:
    with pytest.raises(EventError) as error:
        parse(b'{"\\u001b[31m":1,' + LINE[1:])
    assert "\x1b" not in str(error.value)


def test_times_are_moments() -> None:
    time = now()
    assert moment(time).strftime("%Y-%m-%dT%H:%M:%S.%fZ") == time
    assert Event.model_validate({**json.loads(LINE), "time": time}, strict=False).time == time
