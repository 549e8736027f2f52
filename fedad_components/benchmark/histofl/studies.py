"""The studies by name. Imports no FLARE."""

from __future__ import annotations

from fedad_components.benchmark.histofl import brca, kirc, musk

STUDIES = {study.name: study for study in (musk.STUDY, kirc.STUDY, brca.STUDY)}
