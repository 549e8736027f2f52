"""The five-laboratory benchmark of white blood cells: who trains, who is unseen. Imports no FLARE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from fedad_components.demo.data import DemoDataError, read_benchmark
from fedad_components.evaluation.images import LabelledImages
from fedad_components.fedsd.trainer import chosen_images
from fedad_components.files import write_atomic
from fedad_components.imaging.cache import cache_side
from fedad_components.imaging.catalogue import VERSION, DataSet
from fedad_components.imaging.ingest import ingest

TARGETS = ("chulalongkorn", "barcelona_pbc", "bccd")
BENCHMARK = "benchmark.csv"
FEWEST = 20
"""Images of a class below which the target's folds and ten labels a class make no sense: the class is left out."""

Line = dict[str, str]
"""A line of ``benchmark.csv``: an image."""


@dataclass(frozen=True)
class Laboratories:
    """What one target's runs need.

    Attributes:
        sources: the laboratories that train, with labels for the probe alone.
        target: the unseen one.
        left_out: class -> images of it, classes of the target with too few.
    """

    sources: tuple[LabelledImages, ...]
    target: LabelledImages
    left_out: dict[str, int]

    @property
    def classes(self) -> list[str]:
        """Of all training images."""
        return sorted({label for source in self.sources for label in source.labels})

    def pooled(self, max_images: int, seed: int) -> LabelledImages:
        """In one place, the very images that the laboratories would train on, each at its own."""
        chosen = [
            source.take(chosen_images(len(source.labels), max_images, seed, source.name).numpy())
            for source in self.sources
        ]
        images = np.concatenate([source.images for source in chosen])
        return LabelledImages("pooled", images, [label for source in chosen for label in source.labels])


def load(data_dir: str | Path, target: str, image_size: int, cache_dir: str | Path) -> Laboratories:
    """Read all laboratories, as a hospital's images are read.

    A laboratory that trains gives the images that ``benchmark.csv`` marks for training, or all of them where that file
    has it as the target; the unseen one gives all its images.

    Raises:
        DemoDataError: if the folder, ``benchmark.csv`` or an image is missing, or there is no such target.
    """
    data_dir, cache_dir = Path(data_dir).resolve(), Path(cache_dir)
    rows = read_benchmark(data_dir / BENCHMARK)
    sites = sorted({row["site"] for row in rows})
    if target not in sites:
        raise DemoDataError(f"target {target!r}: no such laboratory; expected one of {', '.join(sites)}")

    def images(site: str, chosen: Sequence[Line]) -> LabelledImages:
        entry = DataSet(id=site, folder=data_dir, files=tuple(row["file"] for row in chosen))
        cached = ingest(entry, cache_dir / "train" if site != target else cache_dir / "unseen", cache_side(image_size))
        by_file = {row["file"]: row for row in chosen}
        found = [by_file[file] for file in cached.files]
        groups = [row["group"] or None for row in found]
        return LabelledImages(site, cached.images, [row["label"] for row in found], groups if any(groups) else None)

    return Laboratories(
        tuple(images(site, training_rows(rows, site)) for site in sites if site != target),
        images(target, unseen_rows(rows, target)),
        _too_few(rows, target),
    )


def training_rows(rows: Sequence[Line], site: str) -> list[Line]:
    """What a laboratory trains on: all of its images that are not marked for tests."""
    return [row for row in rows if row["site"] == site and row["split"] != "test"]


def unseen_rows(rows: Sequence[Line], site: str) -> list[Line]:
    """What is tested where the laboratory is the unseen one: all of its images, but for classes with too few."""
    too_few = _too_few(rows, site)
    return [row for row in rows if row["site"] == site and row["label"] not in too_few]


def _too_few(rows: Sequence[Line], site: str) -> dict[str, int]:
    counts = Counter(row["label"] for row in rows if row["site"] == site)
    return {label: count for label, count in sorted(counts.items()) if count < FEWEST}


def write_catalogue(data_dir: str | Path, path: Path) -> None:
    """A catalogue with two data sets of each laboratory: ``<laboratory>``, what it trains on, and
    ``<laboratory>-unseen``, what is tested where it is the unseen one. `fedad probe` and `fedad diagnose` read it.

    Raises:
        DemoDataError: if ``benchmark.csv`` is missing or cannot be used.
    """
    data_dir = Path(data_dir).resolve()
    rows = read_benchmark(data_dir / BENCHMARK)
    table = {"file": str(data_dir / BENCHMARK), "path": "file", "patient": "group", "label": "label"}
    entries = {
        name: {"folder": str(data_dir), "files": [row["file"] for row in chosen], "table": dict(table)}
        for site in sorted({row["site"] for row in rows})
        for name, chosen in ((site, training_rows(rows, site)), (f"{site}-unseen", unseen_rows(rows, site)))
    }
    write_atomic(path, yaml.safe_dump({"version": VERSION, "data_sets": entries}, sort_keys=False).encode("utf-8"))
