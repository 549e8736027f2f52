"""docs/licences.md lists every package that running FedAD installs, and none of them is under the GPL or AGPL."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[2] / "docs" / "licences.md"
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|non-?commercial)", re.IGNORECASE)


def required(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Collect what ``name`` with ``extras`` needs at run time, and what that needs."""
    package = distribution(name)
    for line in package.requires or []:
        requirement = Requirement(line)
        wanted = [{"extra": extra} for extra in extras | {""}]
        if requirement.marker and not any(requirement.marker.evaluate(extra) for extra in wanted):
            continue
        key = canonicalize_name(requirement.name)
        if key not in found or requirement.extras:
            try:
                found[key] = distribution(key)
            except PackageNotFoundError:
                continue  # asked for by an older release's metadata only; `pip check` is the judge of that
            required(key, frozenset(requirement.extras), found)


@pytest.fixture(scope="module")
def runtime() -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    required("fedad", frozenset(), found)
    return found


def test_every_package_is_listed(runtime: dict[str, Distribution]) -> None:
    listed = set(re.findall(r"^\| `([a-z0-9-]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"torch", "nvflare"} <= runtime.keys()
    assert runtime.keys() - listed == set()


def test_none_is_copyleft(runtime: dict[str, Distribution]) -> None:
    offending = {}
    for name, package in runtime.items():
        fields = [package.metadata.get("License-Expression") or "", package.metadata.get("License") or ""]
        classifiers = [line for line in package.metadata.get_all("Classifier") or [] if line.startswith("License")]
        # A License field that holds a whole text names other licences in passing.
        declared = [field for field in fields if len(field) < 200] + classifiers
        if hits := [text for text in declared if COPYLEFT.search(text)]:
            offending[name] = hits
    assert offending == {}
