"""Tiny downloads: for each data set a few generated pictures, in the folders and tables of the published one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from fedad_components.datasets import SPECS, DataSetSpec
from fedad_components.datasets.spec import Count

SIDE = 40


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(path)


def table(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]], delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(header)
        writer.writerows(rows)


def chestxray14(folder: Path) -> None:
    """Five patients of two images, in the folders of the archives; patients 4 and 5 are the official test."""
    rows = []
    for number in range(10):
        patient, name = number // 2 + 1, f"{number // 2 + 1:08d}_{number % 2:03d}.png"
        finding = "No Finding" if number % 2 else "Effusion|Mass"
        rows.append((name, finding, number % 2, patient, 60, "F", "PA", 2500, 2048, 0.171, 0.171))
        picture(folder / f"images_{number % 3 + 1:03d}" / "images" / name, number)
    header = ("Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender",
              "View Position", "OriginalImage[Width", "Height]", "OriginalImagePixelSpacing[x", "y]")  # fmt: skip
    table(folder / "Data_Entry_2017_v2020.csv", header, rows)
    names = [str(row[0]) for row in rows]
    (folder / "train_val_list.txt").write_text("\n".join(names[:6]), encoding="ascii")
    (folder / "test_list.txt").write_text("\n".join(names[6:]), encoding="ascii")


def chexpert(folder: Path) -> None:
    """Four training patients and one of the validation set; paths begin with the folder's published name."""
    rows: dict[str, list[tuple[str, ...]]] = {"train": [], "valid": []}
    for number in range(10):
        split = "train" if number < 8 else "valid"
        inside = (
            f"{split}/patient{number // 2 + (1 if number < 8 else 64537):05d}/study1/view{number % 2 + 1}_frontal.jpg"
        )
        rows[split].append((f"CheXpert-v1.0-small/{inside}", "Female", "1.0" if number % 2 else ""))
        picture(folder / inside, number)
    for split, of_split in rows.items():
        table(folder / f"{split}.csv", ("Path", "Sex", "No Finding"), of_split)


def patchcamelyon(folder: Path) -> None:
    """Four, two and two patches, each slide in one split only."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    for number, (split, count) in enumerate((("train", 4), ("valid", 2), ("test", 2))):
        stem = folder / f"camelyonpatch_level_2_split_{split}"
        with h5py.File(f"{stem}_x.h5", "w") as file:
            pixels = np.random.default_rng(number).integers(0, 256, (count, 96, 96, 3), dtype=np.uint8)
            file.create_dataset("x", data=pixels)
        with h5py.File(f"{stem}_y.h5", "w") as file:
            file.create_dataset("y", data=np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1) % 2)
        header = ("", "coord_y", "coord_x", "tumor_patch", "center_tumor_patch", "wsi")
        rows = [(row, 0, 0, "True", "True", f"camelyon16_{split}_{row // 2}") for row in range(count)]
        table(Path(f"{stem}_meta.csv"), header, rows)


def breakhis(folder: Path) -> None:
    """Two benign slides of one patient, and one patient's slide in two classes of carcinoma."""
    slides = (("benign", "adenosis", "SOB_B_A_14-22549AB"), ("benign", "adenosis", "SOB_B_A_14-22549CD"),
              ("malignant", "ductal_carcinoma", "SOB_M_DC_14-13412"),
              ("malignant", "lobular_carcinoma", "SOB_M_LC_14-13412"))  # fmt: skip
    for number, (kind, tumour, slide) in enumerate(slides):
        for zoom in (40, 400):
            name = f"{slide.replace('_14', '-14')}-{zoom}-001.png"
            where = folder / "histology_slides/breast" / kind / "SOB" / tumour / slide / f"{zoom}X"
            picture(where / name, 10 * number + zoom)


def ham10000(folder: Path) -> None:
    """Ten images of five lesions, in the two archives."""
    rows = []
    for number in range(10):
        name = f"ISIC_{24306 + number:07d}"
        kind = ("nv", "nv", "mel", "bkl", "df")[number // 2]
        rows.append((f"HAM_{number // 2:07d}", name, kind, "histo", 50.0, "male", "back"))
        picture(folder / f"HAM10000_images_part_{number % 2 + 1}" / f"{name}.jpg", number)
    header = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization")
    table(folder / "HAM10000_metadata", header, rows)


def hyperkvasir(folder: Path) -> None:
    """Six images of two findings."""
    rows = []
    for number in range(6):
        finding, where = ("polyps", "pathological-findings") if number % 2 else ("cecum", "anatomical-landmarks")
        name = f"0000000{number}-8233-41fc-9614-344e6d0fc351"
        rows.append((name, "Lower GI", finding, where))
        picture(folder / "labeled-images" / "lower-gi-tract" / where / finding / f"{name}.jpg", number)
    table(folder / "labeled-images/image-labels.csv", ("Video file", "Organ", "Finding", "Classification"), rows)


def padchest(folder: Path) -> None:
    """Three patients; the table holds a report and a date of birth, as the published one does."""
    rows = []
    labels = ("['normal']", "['pleural effusion', 'cardiomegaly']", "['exclude']", "", "['normal']", "['nodule']")
    for number, label in enumerate(labels):
        name = f"2168401113669640138295431665120133381357{number}_02-0{number}.png"
        rows.append((number, name, number % 2, f"patient{number // 2}", "1948-02-17", "SECRET REPORT", label))
        picture(folder / str(number % 2) / name, number)
    header = ("", "ImageID", "ImageDir", "PatientID", "PatientBirth", "Report", "Labels")
    table(folder / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv", header, rows)


def camelyon17(folder: Path) -> None:
    """Two hospitals of two patients, two patches each."""
    rows = []
    for number in range(8):
        patient, x = f"{number // 2 + 4:03d}", 3328 + 32 * number
        slide = f"patient_{patient}_node_4"
        rows.append((number, patient, 4, x, 21792, number % 2, number // 2, number // 4, 0))
        picture(folder / "patches" / slide / f"patch_{slide}_x_{x}_y_21792.png", number)
    header = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
    table(folder / "metadata.csv", header, rows)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    layout.__name__: layout
    for layout in (chestxray14, chexpert, patchcamelyon, breakhis, ham10000, hyperkvasir, padchest, camelyon17)
}

_TINY = {
    "chestxray14": (10, {"split": {"train": 6, "test": 4}}, {"Patient ID": 5}),
    "chexpert": (10, {"split": {"train": 8, "valid": 2}}, {"patient": 5}),
    "patchcamelyon": (8, {"split": {"train": 4, "valid": 2, "test": 2}}, {}),
    "breakhis": (8, {"class": {"benign": 4, "malignant": 4}, "zoom": {"40X": 4, "400X": 4}}, {"slide": 4}),
    "ham10000": (10, {"dx": {"nv": 4, "mel": 2, "bkl": 2, "df": 2}}, {"lesion_id": 5}),
    "hyperkvasir": (6, {}, {"Finding": 2}),
    "padchest": (6, {}, {"PatientID": 3}),
    "camelyon17": (8, {"center": {"0": 4, "1": 4}}, {"slide": 4}),
}


def tiny(name: str) -> DataSetSpec:
    """The published facts with the tiny download's numbers: everything else is checked as for the real one."""
    images, counts, distinct = _TINY[name]
    numbers = {column: Count.of(number) for column, number in distinct.items()}
    return SPECS[name].model_copy(update={"images": Count.of(images), "counts": counts, "distinct": numbers})
