"""Hospitals for HistoFL's tests: MUSK1's bags, and bags whose features are drawn, split over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import yaml

from fedad_components.imaging.catalogue import VERSION
from fedad_components.mil.bags import Bag, Outcome
from fedad_components.mil.site_bags import write_bags


def musk(path: Path, sites: Sequence[str]) -> dict[str, list[Bag]]:
    """MUSK1 (Dietterich et al. 1997): 92 molecules, each a bag of conformations; every k-th of a class to a site."""
    data = np.load(path, allow_pickle=False)
    spread = (data["X"] - data["X"].mean(axis=0)) / data["X"].std(axis=0)
    bags: dict[str, list[Bag]] = {site: [] for site in sites}
    turns = {0: 0, 1: 0}
    for number in np.unique(data["bag"]):
        rows = data["bag"] == number
        label = int(data["y"][rows][0])
        site = sites[turns[label] % len(sites)]
        turns[label] += 1
        bags[site].append(Bag(f"m{number}", f"p{number}", torch.from_numpy(spread[rows]).float(), label))
    return bags


def drawn(outcomes: Mapping[str, Outcome | int], severity: Mapping[str, float], seed: int, width: int = 8) -> list[Bag]:
    """Synthetic features: 3 to 9 patches a patient, whose first feature is the patient's severity plus noise."""
    generator = np.random.default_rng(seed)
    bags = []
    for patient, outcome in outcomes.items():
        features = generator.normal(size=(int(generator.integers(3, 10)), width)).astype(np.float32)
        features[:, 0] += severity[patient]
        bags.append(Bag(patient, patient, torch.from_numpy(features), outcome))
    return bags


def write_site(folder: Path, catalogue: Path, bags: Sequence[Bag], units: int | None = None) -> None:
    """Bags as a site has them: prepared files, and the catalogue that names their folder."""
    write_bags(folder, bags, ("0", "1"))
    entry = {"kind": "bags", "folder": str(folder)} | ({} if units is None else {"units": units})
    catalogue.write_text(yaml.safe_dump({"version": VERSION, "data_sets": {"slides": entry}}), encoding="utf-8")
