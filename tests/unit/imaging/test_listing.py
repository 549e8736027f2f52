"""Which files are listed: names of every kind, and nothing outside the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedad_components.imaging.account import Reason
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.imaging.listing import list_files


def listed(folder: Path, **keys: object) -> dict[str, Reason | None]:
    records = list_files(DataSet.model_validate({"id": "x", "folder": folder} | keys)).records
    assert [record.path for record in records] == sorted(record.path for record in records)
    return {record.path: record.reason for record in records}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.png").write_bytes(b"x")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "b.png").write_bytes(b"x")
    return inside


def test_names_of_every_kind(folder: Path) -> None:
    names = [
        "a b.png",
        "naïve–βήτα.PNG",
        "line\nbreak.png",
        "'quote\".png",
        "sub dir/x.png",
        os.fsdecode(b"latin\xe9.png"),
    ]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "folder.png").mkdir()
    assert listed(folder, pattern="*.png") == dict.fromkeys(names)


def test_hidden_files_leftovers_and_the_table_are_ignored(folder: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "._a.png", "t.csv", "a.png"):
        (folder / name).write_bytes(b"x")
    data_set = DataSet.model_validate({"id": "x", "folder": folder, "table": {"file": folder / "t.csv"}})
    listing = list_files(data_set)
    assert [record.path for record in listing.records] == ["a.png"]
    assert listing.ignored == 4


def test_links_that_leave_are_rejected_and_not_followed(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"x")
    (folder / "out.png").symlink_to("../secret.png")
    (folder / "outdir").symlink_to("../private")
    (folder / "in.png").symlink_to("a.png")
    (folder / "loop").symlink_to(".")
    (folder / "broken.png").symlink_to("nowhere.png")
    assert listed(folder) == {
        "a.png": None,
        "broken.png": Reason.MISSING,
        "in.png": None,
        "out.png": Reason.OUTSIDE_FOLDER,
        "outdir": Reason.OUTSIDE_FOLDER,
    }


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"x")
    (folder.parent / "link").symlink_to(folder)
    assert listed(folder.parent / "link") == {"a.png": None}


def test_empty_and_special_files(folder: Path) -> None:
    (folder / "zero.png").touch()
    os.mkfifo(folder / "pipe.png")
    assert listed(folder) == {"pipe.png": Reason.NOT_A_FILE, "zero.png": Reason.EMPTY_FILE}


def test_file_lists(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"x")
    (folder / "b.png").write_bytes(b"x")
    assert listed(folder, files=["a.png", "./a.png", "gone.png"]) == {"a.png": None, "gone.png": Reason.MISSING}
    (folder.parent / "list.txt").write_text("b.png\n\n" + f"{folder}/a.png\n", encoding="utf-8")
    assert listed(folder, files=folder.parent / "list.txt") == {"a.png": None, "b.png": None}


@pytest.mark.parametrize("path", ["../secret.png", "sub/../../secret.png", "/etc/hostname", ".."])
def test_listed_paths_may_not_leave(folder: Path, path: str) -> None:
    with pytest.raises(CatalogueError, match="entry 2 leads out of the folder") as caught:
        listed(folder, files=["a.png", path])
    assert "secret" not in str(caught.value)


def test_unusable_folders(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"x")
    for wrong in (folder / "none", folder / "a.png"):
        with pytest.raises(CatalogueError, match="expected a readable folder"):
            listed(wrong)
