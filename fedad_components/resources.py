"""Where the files that FedAD writes for people come from: one source, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the folder ``provisioning`` or ``custom``.

    A wheel carries it under ``fedad_components/_resources``; in a checkout it lies beside the package.

    Raises:
        FileNotFoundError: if the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"FedAD's folder {name!r} is missing from this installation: reinstall the package")
