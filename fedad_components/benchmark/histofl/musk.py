"""MUSK1 (Dietterich et al. 1997): molecules, each a bag of conformations of 166 features; musk or not. No FLARE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedad_components.benchmark.histofl.cohort import Cohort, StudyError
from fedad_components.benchmark.histofl.study import (
    FEDERATED,
    UNIFORM,
    Reference,
    Study,
    Variant,
    central_and_alone,
    every,
)
from fedad_components.mil.bags import Bag
from fedad_components.mil.site_bags import SiteBags

FILE = "mil/musk1.npz"
EXPECTED = "an independent implementation, 3 sites, 5 seeds"
SITES = ("site 1", "site 2", "site 3")


def load(data_dir: Path) -> Cohort:
    """Every third molecule of a class to a site.

    Raises:
        StudyError: if the file is missing, or its arrays are not X ``(n, d)``, bag ``(n,)`` and y ``(n,)``, 0 or 1.
    """
    path = data_dir / FILE
    try:
        with np.load(path, allow_pickle=False) as content:
            features, of_bag, labels = content["X"], content["bag"], content["y"]
    except (OSError, KeyError, ValueError) as error:
        raise StudyError(
            f"{path}: cannot be read ({error}): expected MUSK1 as arrays X, bag and y; --data names the folder with "
            f"mil/ and survival/"
        ) from None
    if features.ndim != 2 or not len(features) == len(of_bag) == len(labels) or not np.isin(labels, (0, 1)).all():
        raise StudyError(
            f"{path}: X {features.shape}, bag {of_bag.shape}, y {labels.shape}: expected (n, d), (n,) and (n,), and "
            f"classes 0 and 1"
        )
    bags: dict[str, list[Bag]] = {site: [] for site in SITES}
    turns = [0, 0]
    for molecule in np.unique(of_bag):
        rows = of_bag == molecule
        if len(set(labels[rows].tolist())) > 1:
            raise StudyError(f"{path}: bag {molecule} has conformations of both classes: expected one class a bag")
        label = int(labels[rows][0])
        name = f"molecule {molecule}"
        instances = torch.from_numpy(features[rows]).float()
        bags[SITES[turns[label] % len(SITES)]].append(Bag(name, name, instances, label))
        turns[label] += 1
    return Cohort({site: SiteBags.of(of_site) for site, of_site in bags.items()}, standardised=True)


def noisy(alpha: float) -> Variant:
    """The sites add alpha std(W) N(0, 1) to what they upload."""
    privacy = {"mode": "weight_noise", "weight_noise_alpha": alpha}
    return Variant(f"alpha-{alpha:g}", f"federated, α = {alpha:g}", settings={"privacy": privacy})


STUDY = Study(
    name="musk",
    title="HistoFL on MUSK1",
    load=load,
    epochs=16,
    settings={
        "model": {"in_features": 166},
        "target": {"classes": ("no musk", "musk")},
        # A site has four molecules to validate on: with five patients or more behind a count it would tell nothing.
        "counts": {"min_cell": 1},
    },
    variants=(
        *central_and_alone(SITES),
        FEDERATED,
        *(noisy(alpha) for alpha in (0.001, 0.01, 0.1, 1.0)),
        *every(2, 4, 8),
        UNIFORM,
    ),
    references=(
        Reference("central", "AUC .914", EXPECTED),
        Reference("a site alone", "AUC .88 to .91", EXPECTED),
        Reference("federated", "AUC .939", EXPECTED),
        Reference("federated, α = 0.01", "AUC .943", EXPECTED),
        Reference("federated, α = 0.1", "AUC .89 to .94", EXPECTED),
        Reference("federated, α = 1", "AUC .55", f"{EXPECTED}; unweighted sum of the noised weights at the server"),
        Reference("federated, α ≤ 0.1", "AUC .833 to .862", "Lu et al. 2022, breast cancer slides: another task"),
    ),
    notes=(
        "Twelve molecules are validated on and twelve are tested in each seed: one pair of molecules is 0.03 of AUC, "
        "and differences of a few hundredths say nothing.",
        "Features are standardised by mean and deviation of the training molecules of all sites, the same for every "
        "row; no molecule that is validated or tested on is in them.",
        "α: noise at each site before the upload, biases included, and a weighted mean at the server. The paper's code "
        "adds it at the server to an unweighted sum: another experiment at large α.",
    ),
)
