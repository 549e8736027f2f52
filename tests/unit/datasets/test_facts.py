"""The published facts agree with one another, and with figures that are published elsewhere."""

from __future__ import annotations

import re
from string import Formatter

import pytest
from pydantic import ValidationError

from fedad_components.datasets.facts import (
    BREAKHIS,
    CAMELYON17,
    CHESTXRAY14,
    CHEXPERT,
    HAM10000,
    PADCHEST,
    PATCHCAMELYON,
    SPECS,
)
from fedad_components.datasets.spec import Count, DataSetSpec, Label


def test_the_papers_six_sources_and_two_targets() -> None:
    roles = [spec.role for spec in SPECS.values()]
    assert roles == ["source"] * 6 + ["target"] * 2


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_counts_add_up(spec: DataSetSpec) -> None:
    assert [sum(values.values()) for values in spec.counts.values()] == [spec.images.least] * len(spec.counts)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_column_that_is_used_is_read(spec: DataSetSpec) -> None:
    templates = [spec.path, spec.patient or ""]
    used = {field for template in templates for _, field, _, _ in Formatter().parse(template) if field}
    used |= {spec.label.column, *spec.counts, *spec.distinct} | ({spec.site} if spec.site else set())
    known = {*spec.columns, "path" if spec.tree else "split"}
    known |= set(re.compile(spec.parse[1]).groupindex) if spec.parse else set()
    known |= {"row", "y"} if spec.patches else set()
    assert used - known == set()
    assert set(spec.parts) == set(spec.counts["split"] if spec.parts else ())


def test_figures_published_elsewhere() -> None:
    # CheXpert's paper counts its hidden test set too: 668 images of 500 patients.
    assert CHEXPERT.images.least + 668 == 224_316
    assert CHEXPERT.distinct["patient"].least + 500 == 65_240
    # PCam's paper: powers of two.
    assert PATCHCAMELYON.counts["split"] == {"train": 2**18, "valid": 2**15, "test": 2**15}
    # WILDS: training and in-distribution validation come from hospitals 0, 3 and 4.
    hospitals = CAMELYON17.counts["center"]
    assert hospitals["0"] + hospitals["3"] + hospitals["4"] == 302_436 + 33_560
    # HAM10000's two archives hold 5,000 and 5,015 images.
    assert HAM10000.images.least == 5_000 + 5_015


def test_images_to_train_on() -> None:
    assert CHESTXRAY14.training_images(0.2) == 86_524
    assert PATCHCAMELYON.training_images(0.2) == 262_144 + 32_768
    assert BREAKHIS.training_images(0.2) == 6_327  # 0.8 · 7,909 = 6,327.2


@pytest.mark.parametrize(
    ("label", "value", "expected"),
    [
        (CHESTXRAY14.label, "No Finding", "normal"),
        (CHESTXRAY14.label, "Effusion|Mass", "abnormal"),
        (CHEXPERT.label, "", "abnormal"),
        (PADCHEST.label, "['normal', 'nodule']", "abnormal"),
        (PADCHEST.label, "['exclude']", None),
        (Label(column="x"), "mel", "mel"),
        (Label(column="x"), "", None),
    ],
)
def test_labels(label: Label, value: str, expected: str | None) -> None:
    assert label.of(value) == expected


@pytest.mark.parametrize(
    ("folder", "patient"),
    [
        ("benign/SOB/adenosis/SOB_B_A_14-22549AB/40X/SOB_B_A-14-22549AB-40-001.png", "14-22549"),
        ("benign/SOB/adenosis/SOB_B_A_14-22549CD/40X/SOB_B_A-14-22549CD-40-007.png", "14-22549"),
        ("malignant/SOB/ductal_carcinoma/SOB_M_DC_14-11951/100X/SOB_M_DC-14-11951-100-010.png", "14-11951"),
        ("malignant/SOB/lobular_carcinoma/SOB_M_LC_14-13412/100X/SOB_M_LC-14-13412-100-030.png", "14-13412"),
    ],
)
def test_breakhis_paths_as_they_are_in_the_archive(folder: str, patient: str) -> None:
    assert BREAKHIS.parse is not None
    match = re.fullmatch(BREAKHIS.parse[1], f"histology_slides/breast/{folder}")
    assert match is not None
    assert match["patient"] == patient


def test_rounded_numbers_are_ranges() -> None:
    assert (str(Count.of(7_909)), str(PADCHEST.images)) == ("7,909", "160,000 to 161,000")


def test_a_set_has_tables_or_a_tree() -> None:
    with pytest.raises(ValidationError, match="either tables or a tree"):
        DataSetSpec.model_validate(HAM10000.model_dump() | {"tree": "*.png"})
