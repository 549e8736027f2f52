from __future__ import annotations

import csv
import hashlib
import os
import socket
from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from skimage.color import rgb2hed

from fedad_components.demo.data import DemoData, DemoDataError, prepare_embedded, prepare_wbc
from fedad_components.demo.tiles import draw, textured, tiles

LABORATORIES = {"barcelona_pbc": 2400, "bccd": 273, "cellavision_blog": 80, "jiangxi_tecom": 240}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> DemoData:
    return prepare_embedded(tmp_path_factory.mktemp("embedded"))


def files_of(data: DemoData, site: str) -> list[Path]:
    return sorted(path for path in Path(data.sites[site]["folder"]).iterdir())


def test_four_hospitals_with_enough_different_images(embedded: DemoData) -> None:
    assert list(embedded.sites) == ["histology", "ophthalmology", "radiology", "ultrasound"]
    for site in embedded.sites:
        digests = {hashlib.sha256(file.read_bytes()).digest() for file in files_of(embedded, site)}
        assert 100 <= len(digests) <= 200
        assert len(digests) == len(files_of(embedded, site)), "two files with the same bytes"


def test_no_hospital_shares_a_folder(embedded: DemoData) -> None:
    folders = [Path(entry["folder"]) for entry in embedded.sites.values()]
    assert len(set(folders)) == 4
    assert not any(file.is_relative_to(folder) for file in embedded.unseen.train.files for folder in folders)


def test_radiology_holds_lossless_dicom_in_four_encodings_and_names_no_patient(embedded: DemoData) -> None:
    images = [pydicom.dcmread(file) for file in files_of(embedded, "radiology")]
    assert Counter(image.file_meta.TransferSyntaxUID.name for image in images) == {
        "Explicit VR Little Endian": 40,
        "RLE Lossless": 40,
        "JPEG 2000 Image Compression (Lossless Only)": 40,
        "JPEG-LS Lossless Image Compression": 40,
    }
    assert {image.Modality for image in images} == {"CT", "MR"}
    assert not any("PatientName" in image or "PatientBirthDate" in image for image in images)
    assert {image.PatientID for image in images} == {"demo-ct", "demo-mr"}
    # Lossless, whatever the encoding: each decoded tile is found in one of its sources.
    for name, of_source in (("CT_small.dcm", images[:25]), ("examples_overlay.dcm", images[100:])):
        source = pydicom.dcmread(pydicom.data.get_testdata_file(name, download=False)).pixel_array
        windows = np.lib.stride_tricks.sliding_window_view(source, (96, 96))
        for image in of_source[::6]:
            tile = image.pixel_array
            assert (windows[:, :, 0, 0] == tile[0, 0]).any()
            candidates = np.argwhere(windows[:, :, 0, 0] == tile[0, 0])
            assert any(np.array_equal(windows[y, x], tile) for y, x in candidates)


def test_the_probe_s_label_is_the_stain_and_its_halves_share_no_pixel(embedded: DemoData) -> None:
    unseen = embedded.unseen
    assert unseen.label == "dab_above_median"
    assert "not a diagnosis" in unseen.description
    stains: dict[str, list[float]] = {}
    for half, labelled in (("train", unseen.train), ("test", unseen.test)):
        assert len(labelled.files) == len(labelled.labels) == 105
        assert min(Counter(labelled.labels).values()) >= 30
        pictures = [np.asarray(Image.open(file)) for file in labelled.files]
        stains[half] = [float(rgb2hed(picture)[..., 2].mean()) for picture in pictures]
    cut = float(np.median(stains["train"]))
    for half, labelled in (("train", unseen.train), ("test", unseen.test)):
        assert list(labelled.labels) == ["above" if stain > cut else "at_or_below" for stain in stains[half]]

    whole = np.zeros((512, 512), dtype=int)
    for x0 in (0, 256):
        for tile in tiles(whole, 64, 32, (x0, 0, x0 + 256, 512)):
            tile |= 1 if x0 == 0 else 2
    assert set(np.unique(whole)) == {1, 2}, "a pixel of both halves would be 3"


def pixels(data: DemoData, site: str) -> list[bytes]:
    return [file.read_bytes() for file in files_of(data, site)]


def test_the_same_seed_gives_the_same_pixels_without_a_network(
    embedded: DemoData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the demo's data opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    again = prepare_embedded(tmp_path)
    for site in embedded.sites:
        assert pixels(again, site) == pixels(embedded, site)


def test_another_seed_draws_other_tiles_but_the_same_probe(embedded: DemoData, tmp_path: Path) -> None:
    other = prepare_embedded(tmp_path, seed=1)
    assert pixels(other, "histology") != pixels(embedded, "histology")
    assert other.unseen.train.labels == embedded.unseen.train.labels


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "histology" / "images").mkdir(parents=True)
    (tmp_path / "histology" / "images" / "mine.png").touch()
    with pytest.raises(DemoDataError, match="already holds files"):
        prepare_embedded(tmp_path)


def test_a_dependency_without_the_image_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedad_components.demo.data.files", lambda package: tmp_path)
    with pytest.raises(DemoDataError, match=r"CMU-1-Small-Region\.svs: not in the installed fedad_components"):
        prepare_embedded(tmp_path / "out")


def test_tiles_cover_the_box_and_stay_inside() -> None:
    image = np.arange(10 * 12).reshape(10, 12)
    got = list(tiles(image, 4, 3, (1, 2, 12, 10)))
    expected = [image[y : y + 4, x : x + 4] for y in (2, 5) for x in (1, 4, 7)]
    assert len(got) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    assert len(list(tiles(image, 11, 1))) == 0


def test_textured_drops_flat_tiles_and_draw_keeps_the_order() -> None:
    flat, striped = np.full((4, 4), 9), np.tile([0, 10], (4, 2))  # standard deviations 0 and 5
    assert [tile.std() for tile in textured([flat, striped, flat], least=5)] == [5.0]
    numbered = [np.full((1,), number) for number in range(50)]
    drawn = [int(tile[0]) for tile in draw(numbered, 20, np.random.default_rng(0))]
    assert len(drawn) == 20
    assert drawn == sorted(set(drawn))
    assert len(draw(numbered, 60, np.random.default_rng(0))) == 50


@pytest.fixture
def wbc() -> Path:
    root = os.environ.get("FEDAD_DATA")
    if not root or not (Path(root) / "wbc" / "benchmark.csv").is_file():
        pytest.skip("FEDAD_DATA is unset or has no wbc folder")
    return Path(root) / "wbc"


def test_wbc_clients_get_their_training_images_without_labels(wbc: Path, tmp_path: Path) -> None:
    data = prepare_wbc(wbc, tmp_path)
    assert {site: len(Path(entry["files"]).read_text().splitlines()) for site, entry in data.sites.items()} == (
        LABORATORIES
    )
    for site, entry in data.sites.items():
        assert set(entry) == {"folder", "files"}
        assert Path(entry["folder"]).name == site
        assert all((Path(entry["folder"]) / line).is_file() for line in Path(entry["files"]).read_text().splitlines())


def test_wbc_unseen_laboratory_is_split_by_slide(wbc: Path, tmp_path: Path) -> None:
    unseen = prepare_wbc(wbc, tmp_path).unseen
    assert (unseen.site, unseen.label) == ("chulalongkorn", "cell type")
    assert len(unseen.train.files) + len(unseen.test.files) == 511
    assert 0.2 < len(unseen.test.files) / 511 < 0.45
    assert len(set(unseen.train.labels)) == len(set(unseen.test.labels)) == 5
    with open(wbc / "benchmark.csv", newline="") as file:
        rows = {str((wbc / row["file"]).resolve()): row for row in csv.DictReader(file)}
    train, test = ({rows[str(path)]["group"] for path in part.files} for part in (unseen.train, unseen.test))
    assert not train & test
    for part in (unseen.train, unseen.test):
        assert [rows[str(path)]["label"] for path in part.files] == list(part.labels)


def write_benchmark(folder: Path, rows: list[dict[str, str]], drop: str = "") -> Path:
    columns = [column for column in ("file", "site", "label", "role", "split", "group") if column != drop]
    with open(folder / "benchmark.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return folder


CLIENT = {"file": "a.png", "site": "a", "label": "x", "role": "client", "split": "train", "group": ""}
TARGET = {"file": "b.png", "site": "b", "label": "x", "role": "unseen_target", "split": "target", "group": "1"}


def test_wbc_errors_name_the_folder_column_or_line(tmp_path: Path) -> None:
    with pytest.raises(DemoDataError, match=r"nowhere/benchmark\.csv: cannot be read .*FEDAD_DATA"):
        prepare_wbc(tmp_path / "nowhere", tmp_path / "out")
    for column in CLIENT:
        with pytest.raises(DemoDataError, match=f"column {column} is missing"):
            prepare_wbc(write_benchmark(tmp_path, [CLIENT], drop=column), tmp_path / "out")
    with pytest.raises(DemoDataError, match="line 3: role 'server'"):
        prepare_wbc(write_benchmark(tmp_path, [CLIENT, {**TARGET, "role": "server"}]), tmp_path / "out")
    with pytest.raises(DemoDataError, match="line 3: an image of the unseen laboratory needs a label and a group"):
        prepare_wbc(write_benchmark(tmp_path, [CLIENT, {**TARGET, "group": ""}]), tmp_path / "out")
    with pytest.raises(DemoDataError, match="2 of the 2 images"):
        prepare_wbc(write_benchmark(tmp_path, [CLIENT, TARGET]), tmp_path / "out")
    for name in ("a.png", "b.png"):
        (tmp_path / name).touch()
    with pytest.raises(DemoDataError, match="got 1 and 0"):
        prepare_wbc(write_benchmark(tmp_path, [CLIENT]), tmp_path / "out")
