"""Packages that not every installation has: the module, or the line that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def required(module: str, need: str, extra: str, error: type[Exception]) -> Any:
    """The module of that name.

    Args:
        module: what to import.
        need: for the message, such as ``HDF5 files need h5py``.
        extra: of this package, that brings it.
        error: raised if it is not installed, with ``need`` and pip's line.
    """
    try:
        return import_module(module)
    except ImportError:
        raise error(f"{need}: pip install 'fedad[{extra}]'") from None
