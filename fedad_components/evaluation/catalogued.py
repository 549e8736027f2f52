"""An exported extractor and the labelled images of a site's catalogue, as an evaluation takes them; no FLARE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from fedad_components.evaluation.images import LabelledImages
from fedad_components.evaluation.probe import ProbeError
from fedad_components.fedsd.state import load_extractor
from fedad_components.imaging.catalogue import DataSet
from fedad_components.imaging.ingest import Progress, ingest


def open_extractor(path: str | Path) -> tuple[nn.Module, int]:
    """The extractor of an exported file, and the side of its views in pixels.

    Raises:
        StateError: if the file cannot be read, or is not an exported extractor.
    """
    from safetensors import safe_open

    extractor = load_extractor(path)
    with safe_open(path, framework="pt") as file:
        return extractor, int(file.metadata()["image_size"])


def labelled_images(
    data_set: DataSet, cache_dir: str | Path, side: int, progress: Progress | None = None
) -> tuple[LabelledImages, int]:
    """A data set's labelled images, decoded as for training, and the number of images left out for want of a label.

    Raises:
        ProbeError: if its table names no column of labels, or no image has one.
        CatalogueError, DataRefused, IngestError: as :func:`~fedad_components.imaging.ingest.ingest`.
    """
    where = f"data set {data_set.id!r}"
    if data_set.table is None or data_set.table.label is None:
        raise ProbeError(
            f"{where}: no labels: expected 'table: {{file: labels.csv, path: file, label: class}}' in its catalogue "
            f"entry, with the names of the file and of its columns"
        )
    cached = ingest(data_set, cache_dir, side, progress=progress)
    rows = [row for row, label in enumerate(cached.labels) if label is not None]
    if not rows:
        raise ProbeError(
            f"{where}: none of its {len(cached)} images has a label: expected the column {data_set.table.path!r} to "
            f"hold paths relative to the folder, and {data_set.table.label!r} a class"
        )
    labels = [label for label in cached.labels if label is not None]
    images = cached.images if len(rows) == len(cached) else cached.images[np.array(rows)]
    groups = [cached.patients[row] for row in rows]
    return LabelledImages(data_set.id, images, labels, groups), len(cached) - len(rows)
