"""The demo's images: four hospitals that train without labels, and a fifth, unseen one that the probe is run on.

``embedded``: images that come with this package and its dependencies (``assets/README.md`` gives their licences).
``wbc``: white blood cells from five laboratories, a folder with ``benchmark.csv``. Imports no FLARE.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pydicom
from PIL import Image
from skimage.color import rgb2hed
from sklearn.model_selection import StratifiedGroupKFold

from fedad_components.demo.tiles import draw, textured, tiles, windowed, write_dicom, write_png

if TYPE_CHECKING:
    from importlib.abc import Traversable  # importlib.resources.abc only exists from Python 3.11

SITE_IMAGES = 128
"""Images of an embedded hospital at most, so that the demo fits two cores and five minutes"""

WBC_COLUMNS = ("file", "site", "label", "role", "split", "group")
WBC_ROLES = {"client": "a hospital that trains", "unseen_target": "the unseen laboratory"}


class DemoDataError(ValueError):
    """Images that the demo cannot use; the message names the file or column and what was expected."""


@dataclass(frozen=True)
class Labelled:
    """Image files and their labels, in the same order."""

    files: tuple[Path, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Unseen:
    """The site that no client has seen: what the linear probe is fitted on and tested on.

    Attributes:
        site: its name.
        label: what the labels are, named for what it is.
        description: one sentence on the label and on how train and test are kept apart.
        train, test: share no pixel (embedded) or no slide (wbc).
    """

    site: str
    label: str
    description: str
    train: Labelled
    test: Labelled


@dataclass(frozen=True)
class DemoData:
    """What a demo runs on.

    Attributes:
        name: ``embedded`` or ``wbc``.
        sites: hospital -> entry of its catalogue for the data set that the job names; without labels.
        unseen: the fifth site.
    """

    name: str
    sites: dict[str, dict[str, Any]]
    unseen: Unseen


def prepare_embedded(out_dir: str | Path, seed: int = 0) -> DemoData:
    """Cut the embedded images into four hospitals of different modality and an unseen one.

    Each gets the folder ``out_dir/<hospital>/images``. The same seed gives the same pixels.

    Raises:
        DemoDataError: if one of these folders already holds files, or a dependency no longer ships an image.
    """
    out_dir = Path(out_dir)
    sites: dict[str, dict[str, Any]] = {}
    for index, (site, write) in enumerate(_HOSPITALS.items()):
        folder = _empty_folder(out_dir / site / "images")
        write(folder, np.random.default_rng([seed, index]))
        sites[site] = {"folder": str(folder)}
    return DemoData(
        "embedded", sites, _immunohistochemistry(_empty_folder(out_dir / "immunohistochemistry" / "images"))
    )


def prepare_wbc(data_dir: str | Path, out_dir: str | Path, seed: int = 0) -> DemoData:
    """Take the five-laboratory benchmark of white blood cells; the images stay where they are.

    The clients get the benchmark's training images, without labels. The unseen laboratory is split by slide, so that
    no slide gives images to both the probe's training and its test; about a third is test, stratified by cell type as
    far as whole slides allow.

    Args:
        data_dir: the folder that holds ``benchmark.csv`` and ``images/``.
        out_dir: where each hospital's list of files is written, as ``<hospital>/images.txt``.
        seed: draws the slides of the test.

    Raises:
        DemoDataError: if the folder, ``benchmark.csv``, a column, a value or an image is missing.
    """
    data_dir, out_dir = Path(data_dir).resolve(), Path(out_dir)
    rows = read_benchmark(data_dir / "benchmark.csv")
    missing = sum(not (data_dir / row["file"]).is_file() for row in rows)
    if missing:
        raise DemoDataError(f"{data_dir}: {missing} of the {len(rows)} images that benchmark.csv lists are missing")

    clients: dict[str, list[Path]] = {}
    for row in rows:
        if row["role"] == "client" and row["split"] == "train":
            clients.setdefault(row["site"], []).append(data_dir / row["file"])
    target = [row for row in rows if row["role"] == "unseen_target"]
    targets = {row["site"] for row in target}
    if not clients or len(targets) != 1:
        raise DemoDataError(
            f"{data_dir / 'benchmark.csv'}: expected at least one client and one unseen_target, got "
            f"{len(clients)} and {len(targets)}"
        )

    sites = {}
    for site, images in sorted(clients.items()):
        folder = Path(os.path.commonpath([image.parent for image in images]))
        file_list = out_dir.resolve() / site / "images.txt"
        file_list.parent.mkdir(parents=True, exist_ok=True)
        file_list.write_text("".join(f"{image.relative_to(folder)}\n" for image in images), encoding="utf-8")
        sites[site] = {"folder": str(folder), "files": str(file_list)}
    labels, groups = [row["label"] for row in target], [row["group"] for row in target]
    folds = StratifiedGroupKFold(n_splits=3, shuffle=True, random_state=seed)
    train, test = next(folds.split(np.zeros(len(target)), labels, groups))
    paths = [data_dir / row["file"] for row in target]
    unseen = Unseen(
        site=targets.pop(),
        label="cell type",
        description="Type of the white blood cell, five classes, as annotated by the data set's authors; images of "
        "one slide are either all in training or all in test.",
        train=_select(paths, labels, train),
        test=_select(paths, labels, test),
    )
    return DemoData("wbc", sites, unseen)


def _select(paths: Sequence[Path], labels: Sequence[str], indices: npt.NDArray) -> Labelled:
    return Labelled(tuple(paths[index] for index in indices), tuple(labels[index] for index in indices))


def read_benchmark(path: Path) -> list[dict[str, str]]:
    """Rows of the benchmark's table; DemoDataError if it is missing, lacks a column or has a wrong value."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or ()
    except OSError as error:
        raise DemoDataError(
            f"{path}: cannot be read ({error.strerror}); expected the folder of the white-blood-cell benchmark, with "
            f"benchmark.csv and images/ (is FEDAD_DATA set?)"
        ) from None
    if lacking := [column for column in WBC_COLUMNS if column not in columns]:
        raise DemoDataError(f"{path}: column {', '.join(lacking)} is missing; it has {', '.join(columns) or 'none'}")
    for number, row in enumerate(rows, start=2):
        if row["role"] not in WBC_ROLES:
            raise DemoDataError(f"{path}, line {number}: role {row['role']!r}; expected {' or '.join(WBC_ROLES)}")
        if row["role"] == "unseen_target" and not (row["label"] and row["group"]):
            raise DemoDataError(f"{path}, line {number}: an image of the unseen laboratory needs a label and a group")
    return rows


def _empty_folder(folder: Path) -> Path:
    if folder.exists() and any(folder.iterdir()):
        raise DemoDataError(f"{folder}: already holds files; choose another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _packaged(package: str, name: str) -> Traversable:
    """A file inside an installed package; never the package's downloader, which would need a network."""
    file = files(package).joinpath(name)
    if not file.is_file():
        raise DemoDataError(f"{name}: not in the installed {package}; install the versions that constraints.txt pins")
    return file


def packaged_picture(package: str, name: str) -> npt.NDArray[np.uint8]:
    with _packaged(package, name).open("rb") as file, Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def _dicom(name: str) -> pydicom.Dataset:
    with as_file(_packaged("pydicom", f"data/test_files/{name}")) as path:
        return pydicom.dcmread(path)


def _histology(folder: Path, generator: np.random.Generator) -> None:
    slide = packaged_picture("fedad_components", "demo/assets/CMU-1-Small-Region.svs")
    write_png(folder, draw(textured(list(tiles(slide, 128, 128)), least=20), SITE_IMAGES, generator))


def _ophthalmology(folder: Path, generator: np.random.Generator) -> None:
    fundus = packaged_picture("skimage", "data/retina.jpg")
    inside = (140, 140, 1270, 1270)  # the field of view, without most of the black mask
    write_png(folder, draw(list(tiles(fundus, 128, 80, inside)), SITE_IMAGES, generator))


def _radiology(folder: Path, generator: np.random.Generator) -> None:
    """DICOM files in four transfer syntaxes: two CT images and one MR image."""
    for name, stride, window, count in (
        ("CT_small.dcm", 8, (40, 400), 25),  # HU: the usual window of soft tissue
        ("J2K_pixelrep_mismatch.dcm", 32, (300, 1500), 75),  # HU: bone, for a skull
        ("examples_overlay.dcm", 24, (450, 790), 60),
    ):
        source = _dicom(name)
        cut = [tile for tile in tiles(source.pixel_array, 96, stride) if textured([windowed(tile, source, window)], 10)]
        write_dicom(folder, draw(cut, count, generator), source, window)


def _ultrasound(folder: Path, generator: np.random.Generator) -> None:
    """Every second frame of a beating heart, and a lymph node with power Doppler; boxes without burned-in text."""
    heart = _dicom("examples_ybr_color.dcm").pixel_array[::2]
    node = _dicom("examples_jpeg2k.dcm").pixel_array
    cut = [tile for frame in heart for tile in tiles(frame, 96, 48, (88, 24, 232, 216))]
    cut += tiles(node, 96, 48, (60, 120, 590, 330))
    write_png(folder, draw(cut, SITE_IMAGES, generator))


_HOSPITALS: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "histology": _histology,
    "ophthalmology": _ophthalmology,
    "radiology": _radiology,
    "ultrasound": _ultrasound,
}


def _immunohistochemistry(folder: Path) -> Unseen:
    """Left half: the probe's training; right half: its test. The label is a property of the pixels, no diagnosis."""
    image = packaged_picture("skimage", "data/ihc.png")
    dab = rgb2hed(image)[..., 2]  # optical density of the DAB stain, by colour deconvolution (Ruifrok 2001)
    halves = {"train": (0, 0, 256, 512), "test": (256, 0, 512, 512)}
    stain = {half: [float(tile.mean()) for tile in tiles(dab, 64, 32, box)] for half, box in halves.items()}
    median = float(np.median(stain["train"]))
    labelled = {
        half: Labelled(
            tuple(write_png(folder / half, list(tiles(image, 64, 32, box)))),
            tuple("above" if value > median else "at_or_below" for value in stain[half]),
        )
        for half, box in halves.items()
    }
    return Unseen(
        site="immunohistochemistry",
        label="dab_above_median",
        description="Whether a tile's mean DAB stain, by colour deconvolution, is above the median of the training "
        "tiles: a property of the pixels, not a diagnosis; training tiles are from the left half of the image, test "
        "tiles from the right half.",
        train=labelled["train"],
        test=labelled["test"],
    )
