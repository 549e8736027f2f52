"""The paper's public data sets: facts about each, one engine that checks and prepares them, and what training costs.

Images stay where they were downloaded; what is written is a site's catalogue, with lists of files and tables beside it.
Imports neither torch nor FLARE before a command needs them.
"""

from __future__ import annotations

from fedad_components.datasets.cost import Cost, estimate
from fedad_components.datasets.facts import SPECS
from fedad_components.datasets.prepare import Prepared, prepare
from fedad_components.datasets.spec import DataSetSpec, PrepareError

__all__ = ["SPECS", "Cost", "DataSetSpec", "PrepareError", "Prepared", "estimate", "prepare"]
