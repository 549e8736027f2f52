"""The reference values, and the kidney-cancer patients that some of them are of."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

VALUES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "reference_values.json").read_text("utf-8"))
SMALL = VALUES["small"]
KIRC = VALUES["kirc"]


class Patients(NamedTuple):
    days: npt.NDArray[np.float64]
    events: npt.NDArray[np.bool_]
    grade: npt.NDArray[np.float64]
    stage: npt.NDArray[np.float64]
    site: npt.NDArray[np.str_]

    def take(self, rows: npt.NDArray[np.bool_]) -> Patients:
        return Patients(*(column[rows] for column in self))


def kirc() -> Patients:
    """All 537; grade is NaN where it is unknown."""
    if "FEDAD_DATA" not in os.environ:
        pytest.skip("FEDAD_DATA is not set")
    with (Path(os.environ["FEDAD_DATA"]) / "survival" / "tcga_kirc_cdr.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    grades = {"G1": 1.0, "G2": 2.0, "G3": 3.0, "G4": 4.0}
    stages = {"Stage I": 1.0, "Stage II": 2.0, "Stage III": 3.0, "Stage IV": 4.0}
    return Patients(
        np.array([float(row["os_days"]) for row in rows]),
        np.array([row["event"] == "1" for row in rows]),
        np.array([grades.get(row["grade"], np.nan) for row in rows]),
        np.array([stages[row["stage"]] for row in rows]),
        np.array([row["histofl_site"] for row in rows]),
    )


def graded() -> Patients:
    """The 527 of the reference's c-index, log-rank and AUC."""
    patients = kirc()
    return patients.take(~np.isnan(patients.grade) & (patients.days > 0))
