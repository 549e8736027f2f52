"""Fed-TCGA-BRCA (FLamby, Ogier du Terrail et al. 2022): 1,088 patients of 6 regions, real covariates. No FLARE."""

from __future__ import annotations

from pathlib import Path

import torch

from fedad_components.benchmark.histofl.cohort import Cohort, StudyError, number, read_table
from fedad_components.benchmark.histofl.study import FEDERATED, UNIFORM, Reference, Study, central_and_alone
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.site_bags import SiteBags

FOLDER = "survival/flamby_fed_tcga_brca"
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
"""In FLamby's order: centre 0 is the first."""
AGE, MIDDLE, DECADE = "age_at_index", 60.0, 10.0
"""The one covariate that is not 0 or 1 enters as decades from 60, constants that no patient decides about."""
FLAMBY = "FLamby's repository, results of seeds 42 to 46, pooled test set, mean ± SD computed from them"


def load(data_dir: Path) -> Cohort:
    """The patients of FLamby's split, each a bag of one instance: 39 covariates.

    Raises:
        StudyError: if a file is missing, or a patient of the split has no covariates, outcome or region.
    """
    folder = data_dir / FOLDER
    table, split, centres = folder / "brca.csv", folder / "train_test_split.csv", folder / "centers.csv"
    region_of = {row["TSS Code"]: row["Region"] for row in read_table(centres, ("TSS Code", "Region"))}
    fold_of = {row["pid"]: row["fold"] for row in read_table(split, ("pid", "fold"))}
    rows = read_table(table, ("pid", AGE, "E", "T"))
    covariates = [column for column in rows[0] if column not in ("pid", "E", "T")]
    bags: dict[str, list[Bag]] = {region: [] for region in REGIONS}
    found = set()
    for line, row in enumerate(rows, start=2):
        patient = row["pid"]
        if patient not in fold_of:
            continue  # FLamby leaves out the patients of no region
        region = region_of.get(patient.split("-")[1] if patient.count("-") > 1 else "")
        if region not in bags:
            raise StudyError(f"{table}, line {line}: region {region!r}: expected one of {', '.join(REGIONS)}")
        values = [number(row, column, table, line) for column in covariates]
        values[covariates.index(AGE)] = (values[covariates.index(AGE)] - MIDDLE) / DECADE
        outcome = Outcome(number(row, "T", table, line), number(row, "E", table, line) == 1)
        bags[region].append(Bag(patient, patient, torch.tensor([values]), outcome))
        found.add(patient)
    if lost := len(fold_of.keys() - found):
        raise StudyError(f"{split}: {lost} patients are not in {table.name}: expected both files of one version")
    held_out = frozenset(patient for patient, fold in fold_of.items() if fold == "test")
    return Cohort({region: SiteBags.of(of_region) for region, of_region in bags.items()}, held_out)


STUDY = Study(
    name="brca",
    title="HistoFL's hazard loss on Fed-TCGA-BRCA",
    load=load,
    epochs=3,
    settings={
        "model": {"in_features": 39},
        "target": {"kind": "survival", "bins": 4, "horizon": 8192.0},
    },
    variants=(*central_and_alone(REGIONS), FEDERATED, UNIFORM),
    references=(
        Reference("pooled training", "c-index .704 ± .114", FLAMBY),
        Reference("a site alone (0 to 5)", "c-index .695, .728, .604, .565, .725, .710", FLAMBY),
        Reference("FedAvg", "c-index .735 ± .175", FLAMBY),
        Reference("FedProx", "c-index .717 ± .162", FLAMBY),
        Reference("Scaffold", "c-index .699 ± .035", FLAMBY),
        Reference("FedAdam, FedYogi", "c-index .842 ± .017", FLAMBY),
    ),
    notes=(
        "FLamby's own test patients, regions and covariates. Of its training patients 15 % validate, drawn by seed; "
        "FLamby trains on all of them and chooses no model.",
        "FLamby's figures are of a linear Cox model, ours of discrete hazards through gated attention over one "
        "instance. Its c-index and ours are Harrell's over all test patients together, so that the column can be read "
        "beside ours; the model, the loss, the optimiser and the number of steps differ.",
        "The 222 test patients have 32 events; Canada's 11 have one. Figures of single regions are anecdotes.",
    ),
    times=(730.5, 1461.0, 2191.5),
)
