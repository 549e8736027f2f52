"""`fedad audit schema`: the fields of an event, for programs."""

from __future__ import annotations

import json

EPILOG = "Example:  fedad audit schema > audit-event.schema.json"


def schema() -> None:
    """Print the JSON Schema (2020-12) of an event: of each line of a log."""
    from fedad_components.audit.event import schema as event_schema

    print(json.dumps(event_schema(), indent=2, ensure_ascii=False))
