"""Fixtures of the imaging tests: real data where it is mounted, and ingest without its slow extra process."""

from __future__ import annotations

import importlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that FEDAD_DATA names."""
    folder = os.environ.get("FEDAD_DATA")
    if not folder:
        pytest.skip("FEDAD_DATA is not set: it names a folder with dicom/ and wbc/")
    return Path(folder)


@pytest.fixture(scope="session")
def pydicom_files() -> Path:
    """pydicom's own test files, inside its wheel."""
    import pydicom.data

    return Path(pydicom.data.__file__).parent / "test_files"


@pytest.fixture
def build_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build caches in this process, which has imported MONAI already; the decoders are still processes of their own."""
    from fedad_components.imaging.build import build

    def here(job: dict[str, Any], lock: int, progress: Callable[[int, int], None] | None) -> None:
        caller, held_open = os.pipe()
        report = io.StringIO()
        try:
            build(job, report, caller)
        finally:
            os.close(caller)
            os.close(held_open)
        for line in report.getvalue().splitlines():
            if progress is not None:
                progress(json.loads(line)["done"], json.loads(line)["total"])

    monkeypatch.setattr(importlib.import_module("fedad_components.imaging.ingest"), "_build", here)
