"""Preparing a download: what passes, what is written, and the ways in which one may differ from the published."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from downloads import LAYOUTS, picture, table, tiny
from PIL import Image

from fedad_components.datasets import SPECS, PrepareError, prepare
from fedad_components.datasets.split import Item, divide, held_out
from fedad_components.imaging import Catalogue, ingest
from fedad_components.imaging.listing import list_files


@pytest.fixture
def download(tmp_path: Path) -> Path:
    """HAM10000, tiny."""
    LAYOUTS["ham10000"](tmp_path / "download")
    return tmp_path / "download"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", SPECS)
def test_every_set_is_prepared_whole(name: str, tmp_path: Path) -> None:
    source, out, spec = tmp_path / "download", tmp_path / "out", tiny(name)
    LAYOUTS[name](source)
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    prepared = prepare(spec, source, out)

    assert before == {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    assert (prepared.partial, prepared.images) == (False, spec.images.least)
    data_sets = Catalogue.load(prepared.catalogue).data_sets
    assert data_sets.keys() == prepared.entries.keys()
    evaluation = {key: data_set for key, data_set in data_sets.items() if key != "images"}
    assert ("images" in data_sets) == (spec.role == "source")
    listed: list[str] = []
    for key, data_set in evaluation.items():
        records = list_files(data_set).records
        assert [record.reason for record in records] == [None] * prepared.entries[key]["images"]  # type: ignore[operator]
        rows = data_set.rows()
        assert rows.keys() == {record.path for record in records}
        assert all(patient for patient, _ in rows.values()) == (spec.patient is not None)
        listed += rows
    assert len(listed) == len(set(listed)) == spec.images.least


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name].patient])
def test_no_patient_is_in_both_parts(name: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path / "download")
    prepared = prepare(tiny(name), tmp_path / "download", tmp_path / "out")
    patients = {
        key: {patient for patient, _ in data_set.rows().values()}
        for key, data_set in Catalogue.load(prepared.catalogue).data_sets.items()
        if key != "images"
    }
    assert len(patients) >= 2
    assert sum(len(of_part) for of_part in patients.values()) == len(set().union(*patients.values()))


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name].role == "source"])
def test_training_sees_no_label(name: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path / "download")
    prepared = prepare(tiny(name), tmp_path / "download", tmp_path / "out", data_set="pictures")
    data_sets = Catalogue.load(prepared.catalogue).data_sets
    training, probe = data_sets["pictures"], data_sets[f"{name}-train"]
    assert {label for _, label in training.rows().values()} <= {None}
    assert training.files == probe.files
    assert any(label for _, label in probe.rows().values())
    if training.table is not None:
        assert "label" not in rows_of(training.table.file)[0]


@pytest.mark.slow
def test_prepared_images_are_ingested(tmp_path: Path) -> None:
    LAYOUTS["patchcamelyon"](tmp_path / "download")
    prepared = prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")
    images = ingest(Catalogue.load(prepared.catalogue).data_set("images"), tmp_path / "cache", 32, workers=1)
    assert images.account.used == prepared.entries["images"]["images"] == 6
    assert len(set(images.patients)) == prepared.entries["images"]["patients"] == 3


def labels(name: str, tmp_path: Path) -> dict[str, str]:
    LAYOUTS[name](tmp_path / "download")
    prepare(tiny(name), tmp_path / "download", tmp_path / "out")
    tables = [path for path in (tmp_path / "out").glob("*.csv") if path.stem != "images"]
    return {row["file"]: row["label"] for path in tables for row in rows_of(path)}


def test_labels_are_the_published_ones(tmp_path: Path) -> None:
    found = {name: Counter(labels(name, tmp_path / name).values()) for name in SPECS}
    assert found == {
        "chestxray14": {"normal": 5, "abnormal": 5},
        "chexpert": {"normal": 5, "abnormal": 5},
        "patchcamelyon": {"normal": 4, "tumour": 4},
        "breakhis": {"benign": 4, "malignant": 4},
        "ham10000": {"nv": 4, "mel": 2, "bkl": 2, "df": 2},
        "hyperkvasir": {"polyps": 3, "cecum": 3},
        "padchest": {"normal": 2, "abnormal": 2, "": 2},
        "camelyon17": {"normal": 4, "tumour": 4},
    }


def test_camelyon17_has_a_pair_for_each_hospital(tmp_path: Path) -> None:
    LAYOUTS["camelyon17"](tmp_path / "download")
    prepared = prepare(tiny("camelyon17"), tmp_path / "download", tmp_path / "out")
    assert prepared.entries == {
        f"camelyon17-hospital-{hospital}-{part}": {"images": 2, "patients": 1, "labelled": 2}
        for hospital in (0, 1)
        for part in ("train", "test")
    }


def test_patches_are_the_pixels_of_the_file(tmp_path: Path) -> None:
    import h5py

    LAYOUTS["patchcamelyon"](tmp_path / "download")
    prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")
    with h5py.File(tmp_path / "download/camelyonpatch_level_2_split_valid_x.h5") as file:
        expected = file["x"][1]
    found = np.asarray(Image.open(tmp_path / "out/images/valid/000001.png"))
    np.testing.assert_array_equal(found, expected)


def test_patches_already_written_are_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "download", tmp_path / "out"
    LAYOUTS["patchcamelyon"](source)
    steps: list[tuple[int, int]] = []
    prepare(tiny("patchcamelyon"), source, out, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (8, 8)
    written = {path: path.stat().st_mtime_ns for path in (out / "images").rglob("*.png")}
    prepare(tiny("patchcamelyon"), source, out)
    assert written == {path: path.stat().st_mtime_ns for path in (out / "images").rglob("*.png")}


def test_nothing_but_paths_pseudonyms_and_labels_is_written(tmp_path: Path) -> None:
    LAYOUTS["padchest"](tmp_path / "download")
    prepare(tiny("padchest"), tmp_path / "download", tmp_path / "out")
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert b"patient0" in written
    assert b"SECRET" not in written
    assert b"1948" not in written


def test_the_record_tells_licence_counts_and_table(download: Path, tmp_path: Path) -> None:
    prepare(tiny("ham10000"), download, tmp_path / "out")
    record = json.loads((tmp_path / "out/prepared.json").read_text(encoding="utf-8"))
    assert (record["licence"], record["images"], record["partial"]) == ("CC BY-NC 4.0", 10, False)
    assert re.fullmatch(r"[0-9a-f]{64}", record["tables_sha256"]["HAM10000_metadata"])


def test_tables_with_tabs_are_read(download: Path, tmp_path: Path) -> None:
    rows = rows_of(download / "HAM10000_metadata")
    (download / "HAM10000_metadata").unlink()
    table(download / "HAM10000_metadata.tab", rows[0], [row.values() for row in rows], delimiter="\t")
    assert prepare(tiny("ham10000"), download, tmp_path / "out").images == 10


def test_the_real_counts_are_expected(download: Path, tmp_path: Path) -> None:
    with pytest.raises(PrepareError) as caught:
        prepare(SPECS["ham10000"], download, tmp_path / "out")
    message = str(caught.value)
    assert "images: expected 10,015, found 10\n" in message
    assert "dx mel: expected 1,113, found 2\n" in message
    assert "different lesion_id: expected 7,470, found 5\n" in message
    assert "--partial" in message
    assert not (tmp_path / "out/catalogue.yaml").exists()


def test_partial_accepts_less_and_says_so(download: Path, tmp_path: Path) -> None:
    shutil.rmtree(download / "HAM10000_images_part_2")
    prepared = prepare(SPECS["ham10000"], download, tmp_path / "out", partial=True)
    assert (prepared.partial, prepared.images) == (True, 5)
    assert "# PARTIAL: 5 of the 10,015" in prepared.catalogue.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "out/prepared.json").read_text(encoding="utf-8"))["partial"] is True


def test_partial_says_nothing_of_a_whole_set(download: Path, tmp_path: Path) -> None:
    assert prepare(tiny("ham10000"), download, tmp_path / "out", partial=True).partial is False


@pytest.mark.parametrize("partial", [False, True])
def test_more_than_published_is_never_accepted(download: Path, tmp_path: Path, partial: bool) -> None:
    spec = tiny("ham10000")
    spec = spec.model_copy(update={"counts": {"dx": spec.counts["dx"] | {"mel": 1}}})
    with pytest.raises(PrepareError, match="dx mel: expected 1, found 2"):
        prepare(spec, download, tmp_path / "out", partial=partial)


def test_an_unknown_class(download: Path, tmp_path: Path) -> None:
    spec = tiny("ham10000")
    known = {value: count for value, count in spec.counts["dx"].items() if value != "mel"}
    with pytest.raises(PrepareError, match="dx with another value: expected 0, found 2"):
        prepare(spec.model_copy(update={"counts": {"dx": known}}), download, tmp_path / "out")


def test_missing_images_are_counted_not_named(download: Path, tmp_path: Path) -> None:
    next((download / "HAM10000_images_part_1").iterdir()).unlink()
    with pytest.raises(PrepareError, match=r"1 of the 10 images that HAM10000_metadata tells of are missing") as caught:
        prepare(tiny("ham10000"), download, tmp_path / "out")
    assert "ISIC" not in str(caught.value)


def test_no_image_at_all_is_never_accepted(download: Path, tmp_path: Path) -> None:
    for part in (1, 2):
        shutil.rmtree(download / f"HAM10000_images_part_{part}")
    with pytest.raises(PrepareError, match="10 of the 10 images"):
        prepare(tiny("ham10000"), download, tmp_path / "out", partial=True)


@pytest.mark.parametrize("name", SPECS)
def test_an_empty_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "download").mkdir()
    with pytest.raises(PrepareError, match=r"not found: expected|no file matches|cannot be read \(No such file"):
        prepare(tiny(name), tmp_path / "download", tmp_path / "out", partial=True)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="not a folder"):
        prepare(tiny("ham10000"), tmp_path / "no", tmp_path / "out")


def test_a_missing_column(download: Path, tmp_path: Path) -> None:
    rows = [[value for key, value in row.items() if key != "dx"] for row in rows_of(download / "HAM10000_metadata")]
    table(download / "HAM10000_metadata", ("lesion_id", "image_id", "dx_type", "age", "sex", "localization"), rows)
    with pytest.raises(PrepareError, match="expected the columns image_id, lesion_id, dx; not found: dx:"):
        prepare(tiny("ham10000"), download, tmp_path / "out")


def test_a_table_that_is_no_text(download: Path, tmp_path: Path) -> None:
    (download / "HAM10000_metadata").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PrepareError, match="expected a table in UTF-8"):
        prepare(tiny("ham10000"), download, tmp_path / "out")


@pytest.mark.parametrize("inside", ["../outside", "/etc/hosts"])
def test_a_table_cannot_lead_out_of_the_folder(download: Path, tmp_path: Path, inside: str) -> None:
    picture(tmp_path / "outside.jpg", 0)
    header = ("lesion_id", "image_id", "dx")
    table(download / "HAM10000_metadata", header, [("HAM_1", inside, "nv"), ("HAM_2", "ISIC_0024306", "nv")])
    with pytest.raises(PrepareError, match="outside the folder"):
        prepare(SPECS["ham10000"], download, tmp_path / "out", partial=True)


def test_other_files_are_left_alone(download: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("years of work", encoding="ascii")
    with pytest.raises(PrepareError, match="holds other files"):
        prepare(tiny("ham10000"), download, tmp_path / "out")


def test_another_sets_folder_is_left_alone(download: Path, tmp_path: Path) -> None:
    prepare(tiny("ham10000"), download, tmp_path / "out")
    prepare(tiny("ham10000"), download, tmp_path / "out")
    LAYOUTS["hyperkvasir"](tmp_path / "other")
    with pytest.raises(PrepareError, match="hyperkvasir's own"):
        prepare(tiny("hyperkvasir"), tmp_path / "other", tmp_path / "out")


def test_the_download_is_never_written_to(download: Path) -> None:
    with pytest.raises(PrepareError, match="inside the download"):
        prepare(tiny("ham10000"), download, download / "out")


def test_an_image_in_no_list(tmp_path: Path) -> None:
    LAYOUTS["chestxray14"](tmp_path / "download")
    (tmp_path / "download/test_list.txt").write_text("00000004_000.png\n", encoding="ascii")
    with pytest.raises(PrepareError, match=r"3 images are in none of train_val_list.txt, test_list.txt"):
        prepare(tiny("chestxray14"), tmp_path / "download", tmp_path / "out")


def test_an_image_in_two_lists(tmp_path: Path) -> None:
    LAYOUTS["chestxray14"](tmp_path / "download")
    with open(tmp_path / "download/test_list.txt", "a", encoding="ascii") as stream:
        stream.write("\n00000001_000.png")
    with pytest.raises(PrepareError, match="1 of its images are also in another list"):
        prepare(tiny("chestxray14"), tmp_path / "download", tmp_path / "out")


def test_an_official_split_that_shares_a_patient(tmp_path: Path) -> None:
    LAYOUTS["chestxray14"](tmp_path / "download")
    lists = [tmp_path / "download" / name for name in ("train_val_list.txt", "test_list.txt")]
    names = [name for path in lists for name in path.read_text(encoding="ascii").split()]
    lists[0].write_text("\n".join([*names[:5], names[9]]), encoding="ascii")
    lists[1].write_text("\n".join(names[5:9]), encoding="ascii")
    with pytest.raises(PrepareError, match="2 patients are in both parts"):
        prepare(tiny("chestxray14"), tmp_path / "download", tmp_path / "out")


def test_a_path_of_another_form(tmp_path: Path) -> None:
    LAYOUTS["chexpert"](tmp_path / "download")
    table(tmp_path / "download/valid.csv", ("Path", "No Finding"), [("elsewhere/patient1.jpg", "")])
    with pytest.raises(PrepareError, match="1 values of 'Path' are not of the form"):
        prepare(tiny("chexpert"), tmp_path / "download", tmp_path / "out")


def test_a_split_alone_is_partial(tmp_path: Path) -> None:
    LAYOUTS["patchcamelyon"](tmp_path / "download")
    for path in (tmp_path / "download").glob("*_train_*"):
        path.unlink()
    with pytest.raises(PrepareError, match=r"split_train_meta.csv not found"):
        prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")
    prepared = prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out", partial=True)
    assert (prepared.partial, prepared.images) == (True, 4)


def test_patches_and_table_of_different_length(tmp_path: Path) -> None:
    LAYOUTS["patchcamelyon"](tmp_path / "download")
    path = tmp_path / "download/camelyonpatch_level_2_split_test_meta.csv"
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(PrepareError, match="expected a line for each of the 2 patches, found 1"):
        prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out", partial=True)


@pytest.mark.parametrize(
    ("name", "key", "shape", "message"),
    [
        ("x", "x", (4, 64, 64, 3), r"expected x as uint8 \(4, 96, 96, 3\), found uint8 \(4, 64, 64, 3\)"),
        ("x", "images", (4, 96, 96, 3), "expected the data set 'x', found images"),
        ("y", "y", (2, 2), r"expected one label for each patch, found y of \(2, 2\)"),
    ],
)
def test_patches_of_another_form(tmp_path: Path, name: str, key: str, shape: tuple[int, ...], message: str) -> None:
    import h5py

    LAYOUTS["patchcamelyon"](tmp_path / "download")
    with h5py.File(tmp_path / f"download/camelyonpatch_level_2_split_train_{name}.h5", "w") as file:
        file.create_dataset(key, data=np.zeros(shape, dtype=np.uint8))
    with pytest.raises(PrepareError, match=message):
        prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")


def test_patches_still_packed_or_cut(tmp_path: Path) -> None:
    LAYOUTS["patchcamelyon"](tmp_path / "download")
    path = tmp_path / "download/camelyonpatch_level_2_split_train_x.h5"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(PrepareError, match="was it copied whole"):
        prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")
    path.rename(f"{path}.gz")
    with pytest.raises(PrepareError, match="unpack it with gunzip"):
        prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")


def test_patches_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LAYOUTS["patchcamelyon"](tmp_path / "download")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(PrepareError, match=r"pip install 'fedad\[datasets\]'"):
        prepare(tiny("patchcamelyon"), tmp_path / "download", tmp_path / "out")


def test_the_split_does_not_depend_on_order() -> None:
    units = [f"patient{number}" for number in range(200)]
    assert held_out(units, "salt") == held_out(reversed(units), "salt")
    assert held_out(units, "salt") != held_out(units, "other")
    assert len(held_out(units, "salt")) == 40


@pytest.mark.parametrize(("units", "test"), [(2, 1), (3, 1), (5, 1), (7, 1), (8, 2)])
def test_both_parts_have_a_patient(units: int, test: int) -> None:
    assert len(held_out(map(str, range(units)), "salt")) == test


def test_one_patient_cannot_be_split() -> None:
    items = [Item(f"{number}.png", "only", None, None, "") for number in range(9)]
    with pytest.raises(PrepareError, match="expected two at least"):
        divide(SPECS["ham10000"], items)
