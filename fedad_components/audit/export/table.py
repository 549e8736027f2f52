"""The log as a table for a spreadsheet: CSV of RFC 4180 in UTF-8, a row an event, a column a field."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator

from fedad_components.audit.event import Event
from fedad_components.audit.export.fields import COLUMNS, Field, fields

_FORMULA = re.compile("(^|;)(?=[=+\\-@＝＋－＠])")
"""What a spreadsheet takes for the beginning of a formula, in either width, and where a cell begins: many languages'
spreadsheets part cells at semicolons."""


def export(events: Iterable[Event]) -> Iterator[bytes]:
    """A row of names, then one for each event; lists and mappings are JSON in their cell.

    Text that a spreadsheet would run as a formula gets an apostrophe before it; numbers stay numbers.
    """
    yield _row(COLUMNS)
    for event in events:
        cells = {field.name: _cell(field) for field in fields(event)}
        yield _row([cells.get(column, "") for column in COLUMNS])


def _cell(field: Field) -> str:
    return field.text if field.number else _FORMULA.sub(r"\1'", field.text)


def _row(cells: Iterable[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode()
