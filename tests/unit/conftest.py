"""What all unit tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models this small run fastest without threads to synchronise, and independent of the machine's load."""
    torch.set_num_threads(1)
