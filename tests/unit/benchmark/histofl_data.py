"""Small files in the form of the three public data sets of HistoFL's benchmark."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedad_components.benchmark.histofl import brca, kirc, musk

REGION_CODES = {"Northeast": "A0", "South": "A1", "West": "A2", "Midwest": "A3", "Europe": "A4", "Canada": "A5"}


def write_musk(folder: Path, molecules: int, features: int = 166) -> Path:
    """Three conformations a molecule; in every other one the first has its first ten features shifted."""
    generator = np.random.default_rng(0)
    of_bag = np.repeat(np.arange(molecules), 3)
    labels = of_bag % 2
    values = generator.normal(scale=100, size=(len(of_bag), features))
    values[(labels == 1) & (np.arange(len(of_bag)) % 3 == 0), :10] += 500
    path = folder / musk.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, X=values.astype(np.float32), bag=of_bag, y=labels)
    return path


def write_kirc(folder: Path, patients: int) -> Path:
    """Patients of every grade and stage, who die the sooner the higher both are; every third is censored."""
    generator = np.random.default_rng(1)
    path = folder / kirc.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(kirc.COLUMNS)
        for number in range(patients):
            grade, stage = generator.integers(1, 5, 2).tolist()
            days = round(generator.exponential(4000 / (grade + stage))) + 1
            name = [*kirc.STAGES][stage - 1]
            rows.writerow([f"P{number}", days, int(number % 3 > 0), f"G{grade}", name, kirc.SITES[number // 3 % 3]])
    return path


def write_brca(folder: Path, patients: int, without_events: str = "") -> None:
    """So many patients in each region, every fifth for the test; one patient more is in no part of the split."""
    place = folder / brca.FOLDER
    place.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(2)
    others = [f"covariate {number}" for number in range(38)]
    table, split = [["pid", brca.AGE, *others, "E", "T"]], [["pid", "fold", "fold2"]]
    for centre, (region, code) in enumerate(REGION_CODES.items()):
        for number in range(patients):
            pid = f"TCGA-{code}-{number:04d}"
            fold = "test" if number % 5 == 4 else "train"
            stage = number % 2
            event = float(number % 3 > 0 and region != without_events)
            days = round(generator.exponential(2000 / (1 + 2 * stage))) + 1
            table.append([pid, f"{40 + number}", f"{stage}", *["0"] * 37, f"{event}", f"{days}.0"])
            split.append([pid, fold, f"{fold}_{centre}"])
    table.append(["TCGA-ZZ-0000", "50", *["0"] * 38, "0.0", "100.0"])
    centres = [["TSS Code", "Region"], *([code, region] for region, code in REGION_CODES.items())]
    for name, rows in (("brca.csv", table), ("train_test_split.csv", split), ("centers.csv", centres)):
        with open(place / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
