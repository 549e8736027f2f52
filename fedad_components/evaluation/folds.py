"""Splits that keep a patient's images together and the classes in proportion. Needs scikit-learn; no FLARE."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from fedad_components.evaluation.images import LabelledFeatures
from fedad_components.evaluation.probe import ProbeError
from fedad_components.fedsd.seeds import stream_seed

Rows = npt.NDArray[np.intp]


def folds(data: LabelledFeatures, n_folds: int, seed: int, purpose: str) -> Iterator[tuple[Rows, Rows]]:
    """Rows for training and for test, ``n_folds`` times; fewer if there are fewer units or images of each class.

    No unit (patient) is on both sides. Classes are in proportion as far as whole units allow. ``purpose`` separates
    the random streams of splits with the same seed.

    Raises:
        ProbeError: if the data set cannot be split in two.
    """
    units = int(data.units.max()) + 1
    n_folds = min(n_folds, units, max(Counter(data.labels).values()))
    if n_folds < 2:
        raise ProbeError(
            f"data set {data.name!r}: {len(data)} images of {units} patients or groups cannot be split: expected two "
            f"or more groups, and two or more images of a class"
        )
    # Without groups the stratified split is the same in kind, and much faster.
    kind = StratifiedGroupKFold if units < len(data) else StratifiedKFold
    splitter = kind(n_folds, shuffle=True, random_state=stream_seed(seed, purpose) % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer images than folds is absent from some
        yield from splitter.split(data.x, data.labels, data.units)
