"""Fixtures of the slides' tests: real slides where they are mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_slides() -> Path:
    """The folder ``wsi`` of that which FEDAD_DATA names."""
    folder = os.environ.get("FEDAD_DATA")
    if not folder:
        pytest.skip("FEDAD_DATA is not set: it names a folder with wsi/")
    return Path(folder) / "wsi"
