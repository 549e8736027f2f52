"""TCGA-KIRC (Liu et al. 2018): 537 kidney-cancer patients with real outcomes, and SYNTHETIC features. No FLARE.

The slides are not here: a bag is drawn so that it depends on the patient's grade and stage, and on nothing else. What
the study says is how the federation of hazards works on real times, censoring and sites; it says nothing about slides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedad_components.benchmark.histofl.cohort import Cohort, StudyError, number, read_table
from fedad_components.benchmark.histofl.study import FEDERATED, Reference, Study, Variant, central_and_alone, every
from fedad_components.fedsd.seeds import stream_seed
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.site_bags import SiteBags

FILE = "survival/tcga_kirc_cdr.csv"
COLUMNS = ("case_id", "os_days", "event", "grade", "stage", "histofl_site")
SITES = ("site_0", "site_1", "site_2")
GRADES = {"G1": 1, "G2": 2, "G3": 3, "G4": 4}
STAGES = {"Stage I": 1, "Stage II": 2, "Stage III": 3, "Stage IV": 4}
UNKNOWN = 2.5
"""Grade or stage of a patient without one: the middle."""
PATCHES, TUMOUR, WIDTH = 16, 6, 32
"""Instances of a bag, how many of them are drawn around grade and stage, and their length d."""


def load(data_dir: Path) -> Cohort:
    """HistoFL's three sites.

    Raises:
        StudyError: if the file is missing, or a row has no time, event or site.
    """
    path = data_dir / FILE
    bags: dict[str, list[Bag]] = {site: [] for site in SITES}
    scores: dict[str, dict[str, float]] = {"grade": {}, "stage": {}}
    for line, row in enumerate(read_table(path, COLUMNS), start=2):
        patient, site = row["case_id"], row["histofl_site"]
        if site not in bags or row["event"] not in ("0", "1"):
            raise StudyError(f"{path}, line {line}: expected a site of {', '.join(SITES)}, and event 0 or 1")
        outcome = Outcome(number(row, "os_days", path, line), row["event"] == "1")
        scores["grade"][patient] = grade = GRADES.get(row["grade"], UNKNOWN)
        scores["stage"][patient] = stage = STAGES.get(row["stage"], UNKNOWN)
        bags[site].append(Bag(patient, patient, synthetic(patient, grade, stage), outcome))
    return Cohort({site: SiteBags.of(of_site) for site, of_site in bags.items()}, scores=scores)


def synthetic(patient: str, grade: float, stage: float) -> torch.Tensor:
    """``(PATCHES, WIDTH)``: standard normal; in the first ``TUMOUR`` patches the first two columns are shifted.

    A third column marks these patches, as tumour looks different from other tissue. The same for every seed of a run.
    """
    generator = np.random.default_rng(stream_seed(0, f"synthetic features of {patient}"))
    features = generator.normal(size=(PATCHES, WIDTH))
    features[:TUMOUR, :3] += (grade - UNKNOWN, stage - UNKNOWN, 2.0)
    return torch.from_numpy(features).float()


def bins(count: int) -> Variant:
    """Federated, with R time bins."""
    return Variant(f"R-{count}", f"federated, R = {count}", settings={"target": {"bins": count}})


STUDY = Study(
    name="kirc",
    title="HistoFL's survival on TCGA-KIRC, with synthetic features",
    load=load,
    epochs=4,
    settings={"model": {"in_features": WIDTH}, "target": {"kind": "survival", "bins": 4}},
    variants=(
        Variant("grade", "grade, untrained", "none", score="grade"),
        Variant("stage", "stage, untrained", "none", score="stage"),
        *central_and_alone(SITES),
        FEDERATED,
        *every(2, 4),
        *(bins(count) for count in (2, 8)),
    ),
    references=(
        Reference("grade alone", "c-index .674, mean AUC(t) .697", "all 537 patients, scikit-survival"),
        Reference("stage alone", "c-index .729", "the 527 patients with a stage known there, scikit-survival"),
        Reference("R", "R = 8 best; E = 4 and 8 cost 2 to 3 points of c-index", "Lu et al. 2022, real slides"),
    ),
    notes=(
        "The features are SYNTHETIC: drawn around each patient's real grade and stage. Outcomes, follow-up and "
        "sites are real. No figure here says anything about slides, and none can exceed what grade and stage know.",
    ),
    times=(365.25, 730.5, 1095.75, 1461.0, 1826.25),
)
