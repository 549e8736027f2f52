"""Single settings as people write them: ``loss.gamma=0``. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fedad_components.config import ConfigError


def apply_settings(data: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """``data`` changed, in place, by settings such as ``training.epochs=1``; a value is JSON or a bare word.

    Raises:
        ConfigError: naming a setting that has not that form.
    """
    for setting in settings:
        name, separator, text = setting.partition("=")
        *sections, key = name.split(".")
        if not separator or not all([*sections, key]):
            raise ConfigError(f"{setting!r}: expected SECTION.KEY=VALUE, such as training.epochs=1")
        try:
            value = json.loads(text)
        except ValueError:
            value = text  # a bare word is a string
        place = data
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{setting!r}: {section} is not a section")
        place[key] = value
    return data
