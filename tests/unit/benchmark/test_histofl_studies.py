"""The cohorts of HistoFL's benchmark: made ones of the files' form, and the real ones where they are."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from histofl_data import REGION_CODES, write_brca, write_kirc, write_musk

from fedad_components.benchmark.histofl import brca, kirc, musk
from fedad_components.benchmark.histofl.cohort import Cohort, StudyError, joined
from fedad_components.benchmark.histofl.studies import STUDIES
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.survival_metrics import c_index


@pytest.fixture
def real() -> Path:
    folder = os.environ.get("FEDAD_DATA")
    if not folder or not (Path(folder) / musk.FILE).is_file():
        pytest.skip("needs FEDAD_DATA")
    return Path(folder)


def config(seed: int = 0) -> HistoFLConfig:
    return STUDIES["brca"].configuration(STUDIES["brca"].variant("federated"), seed, 6, 1)


def outcomes(cohort: Cohort) -> tuple[list[str], list[float], list[bool]]:
    rows = [row for bags in cohort.sites.values() for row in bags.rows]
    return [row.owner for row in rows], [row.target.time for row in rows], [row.target.event for row in rows]  # type: ignore[union-attr]


def replace_cell(path: Path, line: int, column: str, value: str) -> None:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rows[line - 2][column] = value
    write(path, list(rows[0]), [list(row.values()) for row in rows])


def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_every_row_of_a_study_is_a_configuration_and_no_two_have_one_name() -> None:
    for study in STUDIES.values():
        assert len({variant.name for variant in study.variants}) == len(study.variants)
        assert len({variant.title for variant in study.variants}) == len(study.variants)
        for variant in study.variants:
            found = study.configuration(variant, 3, 1, study.epochs)
            told = found.federation.rounds - 1 - found.surveys(0)  # without the survey, and the last validation
            assert (found.seed, told * found.training.epochs >= study.epochs) == (3, True)
            assert (told - 1) * found.training.epochs < study.epochs
    musks = STUDIES["musk"]
    noisy = musks.configuration(musks.variant("alpha-0.01"), 0, 3, 8)
    assert (noisy.privacy.mode, noisy.privacy.weight_noise_alpha) == ("weight_noise", 0.01)
    assert musks.configuration(musks.variant("uniform"), 0, 3, 8).weight(20) == 1
    with pytest.raises(ValueError, match=r"'E-3': expected one of central, alone-1"):
        musks.variant("E-3")


def test_molecules_are_dealt_to_three_sites_class_by_class(tmp_path: Path) -> None:
    path = write_musk(tmp_path, molecules=21)
    cohort = musk.load(tmp_path)
    labels = [Counter(row.target for row in bags.rows) for bags in cohort.sites.values()]
    assert labels == [{0: 4, 1: 4}, {0: 4, 1: 3}, {0: 3, 1: 3}]
    with np.load(path) as content:
        for bags in cohort.sites.values():
            for row in bags.rows:
                rows = content["bag"] == int(row.id.split()[1])
                assert torch.equal(bags.bag(row).features, torch.from_numpy(content["X"][rows]))


def test_features_are_standardised_by_the_training_molecules_alone(tmp_path: Path) -> None:
    write_musk(tmp_path, molecules=42)
    cohort = musk.load(tmp_path)
    splits = cohort.splits(STUDIES["musk"].configuration(STUDIES["musk"].variant("federated"), 0, 3, 1))
    prepared = cohort.prepared(splits)

    def features(of: Cohort, part: str) -> torch.Tensor:
        return torch.cat(
            [
                bags.bag(row).features
                for site, bags in of.sites.items()
                for row in bags.rows
                if row.owner in getattr(splits[site], part)
            ]
        )

    known = features(cohort, "train").double()
    for part in ("train", "test"):
        expected = (features(cohort, part) - known.mean(dim=0)) / known.std(dim=0, unbiased=True)
        torch.testing.assert_close(features(prepared, part).double(), expected, rtol=1e-4, atol=1e-4)
    pool = prepared.pooled
    assert torch.equal(pool.bag(pool.rows[0]).features, rows_of(prepared, "site 1"))


def test_molecules_that_cannot_be_used_are_errors_that_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"musk1\.npz: cannot be read .*--data names the folder with mil/"):
        musk.load(tmp_path)
    path = write_musk(tmp_path, molecules=6)
    with np.load(path) as content:
        arrays = dict(content)
    np.savez(path, **{**arrays, "y": arrays["y"][:-1]})
    with pytest.raises(StudyError, match=r"y \(17,\): expected \(n, d\), \(n,\) and \(n,\)"):
        musk.load(tmp_path)
    mixed = arrays["y"].copy()
    mixed[0] = 1 - mixed[0]
    np.savez(path, **{**arrays, "y": mixed})
    with pytest.raises(StudyError, match="bag 0 has conformations of both classes"):
        musk.load(tmp_path)


def test_synthetic_features_follow_grade_and_stage_and_nothing_else(tmp_path: Path) -> None:
    write_kirc(tmp_path, patients=300)
    cohort = kirc.load(tmp_path)
    rows = [(row, bags) for bags in cohort.sites.values() for row in bags.rows]
    grades, stages = (
        torch.tensor([float(cohort.scores[name][row.owner]) for row, _ in rows]) for name in cohort.scores
    )
    features = torch.stack([bags.bag(row).features for row, bags in rows])  # (n, P, d)
    tumour, other = features[:, : kirc.TUMOUR], features[:, kirc.TUMOUR :]
    for column, score in ((0, grades), (1, stages)):
        slope = torch.cov(torch.stack([tumour[:, :, column].mean(dim=1), score]))[0, 1] / score.var()
        assert slope.item() == pytest.approx(1, abs=0.1)
        assert abs(torch.corrcoef(torch.stack([other[:, :, column].mean(dim=1), score]))[0, 1]) < 0.15
    assert tumour[:, :, 2].mean().item() == pytest.approx(2, abs=0.1)
    again = kirc.load(tmp_path)
    assert torch.equal(again.sites["site_1"].bag(again.sites["site_1"].rows[0]).features, rows_of(cohort, "site_1"))


def rows_of(cohort: Cohort, site: str) -> torch.Tensor:
    return cohort.sites[site].bag(cohort.sites[site].rows[0]).features


def test_a_patient_without_grade_is_in_the_middle_and_one_without_time_an_error(tmp_path: Path) -> None:
    path = write_kirc(tmp_path, patients=9)
    replace_cell(path, 2, "grade", "GX")
    replace_cell(path, 3, "stage", "")
    cohort = kirc.load(tmp_path)
    assert cohort.scores["grade"]["P0"] == cohort.scores["stage"]["P1"] == 2.5
    for column, value, message in (
        ("os_days", "", "line 4: os_days is '': expected a number"),
        ("event", "yes", "line 4: expected a site of site_0, site_1, site_2, and event 0 or 1"),
    ):
        before = path.read_text(encoding="utf-8")
        replace_cell(path, 4, column, value)
        with pytest.raises(StudyError, match=message):
            kirc.load(tmp_path)
        path.write_text(before, encoding="utf-8")
    path.write_text("case_id,event\na,1\n", encoding="utf-8")
    with pytest.raises(StudyError, match="no column os_days, grade, stage, histofl_site"):
        kirc.load(tmp_path)


def test_the_test_patients_of_fed_tcga_brca_stay_its_own(tmp_path: Path) -> None:
    write_brca(tmp_path, patients=20)
    cohort = brca.load(tmp_path)
    assert list(cohort.sites) == list(REGION_CODES)
    splits = [cohort.splits(config(seed)) for seed in (0, 1)]
    for region, bags in cohort.sites.items():
        first, second = splits[0][region], splits[1][region]
        assert first.test == second.test == cohort.held_out & frozenset(bags.labels)
        assert first.validation != second.validation
        assert first.train | first.validation | first.test == frozenset(bags.labels)
        assert len(first.train) + len(first.validation) + len(first.test) == len(bags.rows) == 20
        assert len(first.test) == 4
        assert 1 <= len(first.validation) <= 4
    row = cohort.sites["Northeast"].rows[0]
    features = cohort.sites["Northeast"].bag(row).features
    assert features.shape == (1, 39)
    assert features[0, 0].item() == pytest.approx((40 - 60) / 10)  # of age 40


def test_files_of_fed_tcga_brca_that_do_not_go_together_are_errors(tmp_path: Path) -> None:
    write_brca(tmp_path, patients=5)
    folder = tmp_path / brca.FOLDER
    centres = (folder / "centers.csv").read_text(encoding="utf-8")
    (folder / "centers.csv").write_text(centres.replace("Canada", "Atlantis"), encoding="utf-8")
    with pytest.raises(StudyError, match=r"region 'Atlantis': expected one of Northeast, South"):
        brca.load(tmp_path)
    (folder / "centers.csv").write_text(centres, encoding="utf-8")
    with open(folder / "train_test_split.csv", "a", encoding="utf-8") as file:
        file.write("TCGA-A0-LOST,train,train_0\n")
    with pytest.raises(StudyError, match=r"1 patients are not in brca\.csv"):
        brca.load(tmp_path)
    (folder / "brca.csv").unlink()
    with pytest.raises(StudyError, match=r"brca\.csv: cannot be read"):
        brca.load(tmp_path)


def test_the_pool_is_all_sites_in_the_same_parts(tmp_path: Path) -> None:
    write_brca(tmp_path, patients=20)
    cohort = brca.load(tmp_path)
    splits = cohort.splits(config())
    pool, whole = cohort.pooled, joined(splits)
    assert len(pool.rows) == 120
    assert whole.test == cohort.held_out
    for site, bags in cohort.sites.items():
        assert splits[site].train <= whole.train
        for row in bags.rows:
            assert torch.equal(pool.bag(row).features, bags.bag(row).features)


def test_the_real_molecules(real: Path) -> None:
    cohort = musk.load(real)
    assert [len(bags.rows) for bags in cohort.sites.values()] == [31, 31, 30]
    assert Counter(row.target for row in cohort.pooled.rows) == {0: 45, 1: 47}
    assert {bags.bag(bags.rows[0]).features.shape[1] for bags in cohort.sites.values()} == {166}


def test_the_real_kidney_cancer_patients(real: Path) -> None:
    cohort = kirc.load(real)
    assert [len(cohort.sites[site].rows) for site in kirc.SITES] == [157, 98, 282]
    patients, times, events = outcomes(cohort)
    assert sum(events) == 177
    for name, expected in (("grade", 0.674), ("stage", 0.729)):  # scikit-survival; unknown values were left out there
        found = c_index(times, events, [cohort.scores[name][patient] for patient in patients])
        assert found == pytest.approx(expected, abs=0.006)


def test_the_real_fed_tcga_brca_has_the_sizes_that_flamby_publishes(real: Path) -> None:
    cohort = brca.load(real)
    splits = cohort.splits(config())
    sizes = [(len(split.train | split.validation), len(split.test)) for split in splits.values()]
    assert sizes == [(248, 63), (156, 40), (164, 42), (129, 33), (129, 33), (40, 11)]
    patients, _, events = outcomes(cohort)
    assert sum(event for patient, event in zip(patients, events, strict=True) if patient in cohort.held_out) == 32
    assert rows_of(cohort, "Canada").shape == (1, 39)
