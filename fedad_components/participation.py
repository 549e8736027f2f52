"""Which sites take part in a round. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedad_components.fedsd.seeds import stream_seed


def draw_sites(sites: Iterable[str], count: int, seed: int, round_number: int) -> list[str]:
    """M of K sites, uniformly without replacement (Algorithm 1, line 4); all of them if ``count`` is 0 or larger.

    The draw depends on seed, round and the sites present alone: a server that restarts draws the same again.
    """
    present = sorted(sites)
    if count == 0 or count >= len(present):
        return present
    generator = np.random.default_rng(stream_seed(seed, "sites", round_number=round_number))
    return sorted(generator.choice(present, size=count, replace=False).tolist())
