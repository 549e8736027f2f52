"""Every random stream of an experiment, derived from its one seed. Imports nothing but torch."""

from __future__ import annotations

import hashlib

import torch

PUBLIC = ""
"""The site of a stream that is the same everywhere: initial weights, the teacher's projection."""


def stream_seed(seed: int, purpose: str, site: str = PUBLIC, round_number: int = -1) -> int:
    """Seed of the stream for one purpose, site and round: 63 bits of a SHA-256, so that no two streams are related.

    ``round_number`` is -1 for what is drawn once in an experiment.
    """
    key = "\x1f".join(["fedad", str(int(seed)), purpose, site, str(int(round_number))])
    return int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big") >> 1


def stream(seed: int, purpose: str, site: str = PUBLIC, round_number: int = -1) -> torch.Generator:
    """A CPU generator for that stream: the same numbers on every device."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, site, round_number))
