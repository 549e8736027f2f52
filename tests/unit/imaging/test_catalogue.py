"""The catalogue's rules, and that each error names file, data set, key, value and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedad_components.imaging.account import Reason
from fedad_components.imaging.catalogue import Catalogue, CatalogueError, DataSet, Table


def load(tmp_path: Path, text: str) -> Catalogue:
    (tmp_path / "catalogue.yaml").write_text(text, encoding="utf-8")
    return Catalogue.load(tmp_path / "catalogue.yaml")


def entry(tmp_path: Path, line: str) -> DataSet:
    return load(tmp_path, f"version: 1\ndata_sets:\n  images:\n    folder: pictures\n    {line}\n").data_set("images")


@pytest.mark.parametrize("text", ["version: 1\n", "version: 1\ndata_sets:\n", "version: 1\ndata_sets: {}\n"])
def test_empty_is_valid(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text).data_sets == {}


def test_relative_paths_start_at_the_catalogue(tmp_path: Path) -> None:
    data_set = entry(tmp_path, "table: {file: t.csv, patient: p}")
    assert data_set.folder == tmp_path / "pictures"
    assert data_set.table is not None
    assert data_set.table.file == tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("fit: squash", "fit", "squash"),
        ("reader: png", "reader", "png"),
        ("reader: 'os:system()'", "reader", "os:system()"),
        ("max_rejected: 1.5", "max_rejected", "1.5"),
        ("window: {center: 1, width: 0}", "window.width", "0"),
        ("window: {center: .nan, width: 1}", "window.center", "nan"),
        ("frames: 0", "frames", "0"),
        ("frames: last", "frames", "last"),
        ("min_side: 0", "min_side", "0"),
        ("units: 0", "units", "0"),
        ("units: true", "units", "True"),
        ("units: 62.5", "units", "62.5"),
        ("pattern: 'sub/*.png'", "pattern", "sub/*.png"),
        ("colour: true", "colour", "True"),
        ("patern: '*.png'", "patern", "unknown key: expected one of folder, pattern, files"),
        ("table: {file: t.csv, patients: p}", "table.patients", "expected one of file, path, patient, label"),
    ],
)
def test_errors_name_all(tmp_path: Path, line: str, key: str, value: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        entry(tmp_path, line)
    for part in (str(tmp_path / "catalogue.yaml"), f"data_sets.images.{key}", value):
        assert part in str(caught.value)


def test_declaring_units_decodes_again_since_duplicates_then_stay(tmp_path: Path) -> None:
    plain, declared, more = entry(tmp_path, "fit: crop"), entry(tmp_path, "units: 625"), entry(tmp_path, "units: 700")
    assert (plain.units, declared.units) == (None, 625)
    assert (plain.keeps_duplicates, declared.keeps_duplicates) == (False, True)
    assert plain.definition(64) != declared.definition(64)
    assert declared.definition(64) == more.definition(64)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("version: 2\n", "version = 2: expected 1"),
        ("data_sets: {}\n", "version = None: expected 1"),
        ("- a\n", "list at the top level"),
        ("version: 1\nimages: {}\n", "unknown key 'images'"),
        ("version: 1\ndata_sets: [a]\n", "data_sets is a list"),
        ("version: 1\ndata_sets: {a: /data}\n", "data_sets.a = '/data'"),
        ("version: 1\ndata_sets: {'a/b': {folder: /data}}\n", "a/b"),
        ("version: 1\ndata_sets: {a: {}}\n", "data_sets.a.folder"),
        ("version: 1\ndata_sets:\n  a: {folder: /x}\n  a: {folder: /y}\n", "'a' appears twice"),
        ("version: 1\ndata_sets: {a: {folder: !!python/object/apply:os.getcwd []}}\n", "not valid YAML"),
        ("version: [1\n", "not valid YAML"),
        ("version: 1\ndata_sets: {a: {folder: /x, files: [b], pattern: '*.png'}}\n", "exclude each other"),
        ("version: 1\ndata_sets: {a: {folder: /x, reader: pillow, modalities: CT}}\n", "modalities is for DICOM"),
    ],
)
def test_wrong_catalogues(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(CatalogueError, match=match) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "catalogue.yaml") in str(caught.value)


def test_missing_catalogue_and_data_set(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="No such file"):
        Catalogue.load(tmp_path / "none.yaml")
    with pytest.raises(CatalogueError, match=r"no data set 'ct': expected one of its data sets \(mr\)"):
        load(tmp_path, "version: 1\ndata_sets: {mr: {folder: /x}}\n").data_set("ct")


def test_definition_follows_what_decides_about_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = DataSet.model_validate({"id": "a", "folder": "/x"})
    same = base.model_copy(update={"max_rejected": 0.5, "timeout": 1.0})
    assert same.definition(64) == base.definition(64)
    others = [base.model_copy(update={"fit": "pad"}), base.model_copy(update={"frames": 3})]
    assert len({base.definition(64), base.definition(65), *(other.definition(64) for other in others)}) == 4
    monkeypatch.syspath_prepend(tmp_path)
    own = DataSet.model_validate({"id": "a", "folder": "/x", "reader": "definition_reader:R"})
    (tmp_path / "definition_reader.py").write_text("R = 1\n", encoding="ascii")
    before = own.definition(64)
    (tmp_path / "definition_reader.py").write_text("R = 2\n", encoding="ascii")
    assert own.definition(64) != before


def test_table(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "﻿image,who,class\na.png, p1 ,x\nsub/b.png,,y\n" + f"{tmp_path}/pictures/c.png,p2,\n", encoding="utf-8"
    )
    data_set = entry(tmp_path, "table: {file: t.csv, path: image, patient: who, label: class}")
    assert data_set.rows() == {"a.png": ("p1", "x"), "sub/b.png": (None, "y"), "c.png": ("p2", None)}
    table.write_text("image,who,class\na.png,Secret Name,x\na.png,Other Name,x\n", encoding="utf-8")
    with pytest.raises(CatalogueError, match="1 lines contradict") as caught:
        data_set.rows()
    assert "Name" not in str(caught.value)
    table.write_text("image,class\na.png,x\n", encoding="utf-8")
    with pytest.raises(CatalogueError, match=r"table.patient = 'who'.*\['image', 'class'\]"):
        data_set.rows()
    table.unlink()
    with pytest.raises(CatalogueError, match="No such file"):
        data_set.rows()


def test_the_guide_names_every_key_and_reason() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    for key in (*DataSet.model_fields.keys() - {"id"}, *Table.model_fields, *Reason):
        assert str(key) in guide
