"""The forms of FedAD that a job may name: what ``preset`` fills in where the job says nothing. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["paper", "recommended"]

PRESETS: Mapping[PresetName, Mapping[str, Mapping[str, Any]]] = {
    "paper": {},
    "recommended": {
        "loss": {"temperature": 0.5, "gamma": 0.0},
        "atsa": {"schedule": "fixed", "lambda_fixed": 0.0},
        "views": {"hue": 0.1, "crop_scale_min": 0.3, "stain_jitter": 0.4},
    },
}
"""Sections of the configuration. ``paper``: the defaults. ``recommended``: what docs/experiments.md supports: a private
head, a stain jitter and milder views, without teacher and orthogonality."""
