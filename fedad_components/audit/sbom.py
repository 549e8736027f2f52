"""The software of this installation as a CycloneDX 1.5 bill of materials: what its own metadata say, nothing else."""

from __future__ import annotations

import json
import re
import uuid
from importlib.metadata import Distribution, distributions
from typing import Any
from urllib.parse import quote

from fedad_components import __version__

_LONGEST_LICENCE = 100
"""A field that is longer holds the text of a licence, not its name."""


def sbom() -> dict[str, Any]:
    """The bill of materials, in CycloneDX's JSON: one component a package, by name; the same for the same packages."""
    packages = {_normal(name): one for one in distributions() if (name := _field(one, "Name"))}
    components = [_component(name, packages[name]) for name in sorted(packages) if name != "fedad"]
    content = json.dumps([__version__, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "fedad",
                "name": "fedad",
                "version": __version__,
                "purl": _purl("fedad", __version__),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }


def _normal(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(name: str, package: Distribution) -> dict[str, Any]:
    component = {
        "type": "library",
        "bom-ref": f"{name}@{package.version}",
        "name": name,
        "version": package.version,
        "purl": _purl(name, package.version),
    }
    return component | ({"licenses": licences} if (licences := _licences(package)) else {})


def _licences(package: Distribution) -> list[dict[str, Any]]:
    """An SPDX expression if the package has one, else what it calls its licence."""
    if expression := _field(package, "License-Expression"):
        return [{"expression": expression}]
    named = _field(package, "License").strip()
    if named and len(named) <= _LONGEST_LICENCE and "\n" not in named:
        return [{"license": {"name": named}}]
    classifiers = [text for text in package.metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    return [{"license": {"name": text.rpartition(" :: ")[2]}} for text in sorted(set(classifiers))]


def _field(package: Distribution, name: str) -> str:
    """A field of the package's metadata, or nothing; where it is missing, some of the finders of packages raise."""
    return (package.metadata.get_all(name) or [""])[0]


def _purl(name: str, version: str) -> str:
    """Package URL, https://github.com/package-url/purl-spec."""
    return f"pkg:pypi/{name}@{quote(version, safe='')}"
