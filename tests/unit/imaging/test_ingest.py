"""Ingest: every file accounted for, decoders that die or hang, resumption, thresholds, and real folders."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image

from fedad_components.imaging import (
    CachedImages,
    CacheMissing,
    CatalogueError,
    DataRefused,
    DataSet,
    Reason,
    ingest,
    open_cache,
)
from fedad_components.privacy.units import assign_units

SIDE = 40


def data_set(folder: Path, **keys: object) -> DataSet:
    return DataSet.model_validate({"id": "images", "folder": folder, "max_rejected": 1.0} | keys)


def picture(path: Path, seed: int, size: tuple[int, int] = (48, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(12):
        picture(tmp_path / "in" / f"{index:02}.png", index)
    return tmp_path / "in"


OWN = """
import os, signal, sys, time
from fedad_components.imaging.readers import RasterReader

class Fragile(RasterReader):
    def read(self, data, **kwargs):
        with open(os.environ["FRAGILE_LOG"], "a") as log: log.write(data.name + "\\n")
        if "crash" in data.name: os.kill(os.getpid(), signal.SIGSEGV)
        if "exit" in data.name: os._exit(3)
        if "hang" in data.name:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            time.sleep(600)
        if "noise" in data.name: os.write(1, b"{Patient^Name}"); print("Patient^Name")
        return super().read(data, **kwargs)
"""


@pytest.fixture
def fragile_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's own reader, importable as ``fragile_reader:Fragile``, and the file in which it notes what it reads."""
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom" / "fragile_reader.py").write_text(OWN, encoding="ascii")
    monkeypatch.syspath_prepend(tmp_path / "custom")
    monkeypatch.setenv("FRAGILE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.mark.usefixtures("build_here")
def test_every_file_is_accounted_for(folder: Path, tmp_path: Path, pydicom_files: Path) -> None:
    shutil.copy(folder / "00.png", folder / "copy of 00.png")
    Image.open(folder / "01.png").save(folder / "same pixels.bmp")
    (folder / "cut.png").write_bytes((folder / "02.png").read_bytes()[:2000])
    (folder / "zero.jpg").touch()
    (folder / "report.txt").write_text("nothing to see", encoding="ascii")
    (folder / "folder.png").mkdir()
    (folder / "out.png").symlink_to("/etc/hostname")
    picture(folder / "tiny.png", 99, (20, 60))
    Image.new("L", (50, 50), 9).save(folder / "blank.png")
    for name in ("rtplan.dcm", "rtdose.dcm", "examples_ybr_color.dcm", "MR_truncated.dcm", "JPGExtended.dcm"):
        shutil.copy(pydicom_files / name, folder)
    steps: list[tuple[int, int]] = []
    images = ingest(data_set(folder), tmp_path / "cache", SIDE, progress=lambda *step: steps.append(step))
    account = images.account
    assert account.rejected == {
        Reason.NOT_AN_IMAGE: 1,
        Reason.UNDECODABLE: 1,
        Reason.TRUNCATED: 2,
        Reason.EMPTY_FILE: 1,
        Reason.NO_PIXEL_DATA: 1,
        Reason.WRONG_MODALITY: 1,
        Reason.TOO_SMALL: 1,
        Reason.BLANK: 1,
        Reason.DUPLICATE: 2,
        Reason.OUTSIDE_FOLDER: 1,
    }
    assert account.files == account.used + account.rejected_files == 25
    assert (account.used, account.frames, len(images)) == (13, 42, 42)
    assert steps == [(done, 25) for done in range(1, 26)]
    assert images.files == [f"{index:02}.png" for index in range(12)] + ["examples_ybr_color.dcm"] * 30
    with Image.open(folder / "07.png") as image:
        expected = image.crop((0, 4, 40, 44))
    assert np.array_equal(images.images[7], np.asarray(expected))
    for path in (tmp_path / "cache").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path.name


@pytest.mark.usefixtures("build_here")
def test_dying_and_hanging_decoders_cost_one_file_each(folder: Path, tmp_path: Path, fragile_log: Path) -> None:
    for name in ("crash", "exit", "hang", "zz_crash"):
        picture(folder / f"{name}.png", len(name))
    entry = data_set(folder, reader="fragile_reader:Fragile", timeout=1.0)
    images = ingest(entry, tmp_path / "cache", SIDE, workers=2)
    assert images.account.rejected == {Reason.DECODER_CRASHED: 3, Reason.TIMEOUT: 1}
    assert images.account.used == 12


@pytest.mark.usefixtures("build_here")
def test_result_does_not_depend_on_workers(folder: Path, tmp_path: Path) -> None:
    one, many = (ingest(data_set(folder), tmp_path / f"cache{n}", SIDE, workers=n) for n in (1, 5))
    assert np.array_equal(one.images, many.images)
    assert one.files == many.files


@pytest.mark.usefixtures("build_here")
def test_only_what_changed_is_decoded_again(folder: Path, tmp_path: Path, fragile_log: Path) -> None:
    entry = data_set(folder, reader="fragile_reader:Fragile")

    def read_by(**keys: object) -> tuple[list[str], CachedImages]:
        fragile_log.write_text("", encoding="ascii")
        images = ingest(entry.model_copy(update=keys), tmp_path / "cache", SIDE, again=bool(keys.pop("again", False)))
        return sorted(fragile_log.read_text(encoding="ascii").split()), images

    with pytest.raises(CacheMissing):
        open_cache(entry, tmp_path / "cache", SIDE)
    names = [f"{index:02}.png" for index in range(12)]
    assert read_by()[0] == names
    assert read_by()[0] == []
    before = open_cache(entry, tmp_path / "cache", SIDE).images.copy()
    picture(folder / "03.png", 300)
    (folder / "05.png").unlink()
    picture(folder / "05b.png", 500)
    with pytest.raises(CacheMissing):
        open_cache(entry, tmp_path / "cache", SIDE)
    read, images = read_by()
    assert read == ["03.png", "05b.png"]
    unchanged = [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]
    assert np.array_equal(images.images[unchanged], before[unchanged])
    assert not np.array_equal(images.images[3], before[3])
    assert len(read_by(fit="pad")[0]) == 12
    assert len(list((tmp_path / "cache" / "images-40").glob("images-*.npy"))) == 1


@pytest.mark.usefixtures("build_here")
def test_a_duplicate_takes_over_when_its_original_goes(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "00.png", folder / "copy.png")
    before = ingest(data_set(folder), tmp_path / "cache", SIDE)
    (folder / "00.png").unlink()
    after = ingest(data_set(folder), tmp_path / "cache", SIDE)
    assert after.account.rejected == {}
    assert np.array_equal(after.images[-1], before.images[0])


@pytest.mark.usefixtures("build_here")
def test_with_privacy_units_an_image_never_depends_on_another(folder: Path, tmp_path: Path) -> None:
    """Patient a's copy of patient b's picture would otherwise take its place, and give it back when a is removed."""
    shutil.copy(folder / "11.png", folder / "00-copy.png")

    def units() -> dict[str, list[bytes]]:
        cached = ingest(data_set(folder, units=20), tmp_path / "cache", SIDE)
        patients = ["a" if name.endswith("copy.png") else "b" for name in cached.files]
        found = assign_units(patients, cached.files, "patient", 20, b"k" * 32)
        return {patients[of[0]]: [cached.images[index].tobytes() for index in of] for of in found.values()}

    before = units()
    assert len(before["a"]) == 1
    assert len(before["b"]) == 12
    (folder / "00-copy.png").unlink()
    assert units() == {"b": before["b"]}


@pytest.mark.usefixtures("build_here")
def test_thresholds(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")  # 1 of 13: 7.7 %
    with pytest.raises(
        DataRefused, match=r"7.7% of the files were rejected, max_rejected is 5.0%.*undecodable 1"
    ) as caught:
        ingest(data_set(folder, max_rejected=0.05), tmp_path / "cache", SIDE)
    assert caught.value.account.used == 12
    travelled = pickle.loads(pickle.dumps(caught.value))  # from a worker to the process that asked
    assert (str(travelled), travelled.account) == (str(caught.value), caught.value.account)
    assert "broken.png" not in str(caught.value)
    with pytest.raises(DataRefused, match=r"max_rejected is 5\.0%"):
        open_cache(data_set(folder, max_rejected=0.05), tmp_path / "cache", SIDE)
    assert len(ingest(data_set(folder, max_rejected=0.08), tmp_path / "cache", SIDE)) == 12
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataRefused, match=r"no usable image \(the folder holds no file.*\); 0 files"):
        ingest(data_set(tmp_path / "empty"), tmp_path / "cache2", SIDE)


@pytest.mark.usefixtures("build_here")
def test_patients_and_labels_of_each_frame(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,patient,label\n00.png,p1,a\n01.png,p1,b\n02.png,,a\n", encoding="ascii")
    table = {"file": tmp_path / "t.csv", "patient": "patient", "label": "label"}
    images = ingest(
        data_set(folder, table=table, files=["00.png", "01.png", "02.png", "03.png"]), tmp_path / "cache", SIDE
    )
    assert images.patients == ["p1", "p1", None, None]
    assert images.labels == ["a", "b", "a", None]


@pytest.mark.usefixtures("build_here")
def test_unusable_own_reader(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no_such_module:Reader"):
        ingest(data_set(folder, reader="no_such_module:Reader"), tmp_path / "cache", SIDE)


@pytest.mark.usefixtures("build_here")
def test_real_dicom_folder(real_data: Path, tmp_path: Path) -> None:
    images = ingest(data_set(real_data / "dicom"), tmp_path / "cache", SIDE)
    same = len({pydicom.dcmread(real_data / "dicom" / f"{n}.dcm").PixelData for n in (0, 1)}) == 1
    assert same
    assert images.account.rejected == {
        Reason.TRUNCATED: 1,  # emri_small_jpeg_2k_lossless_too_short
        Reason.WRONG_MODALITY: 1,  # liver_rle
        Reason.TOO_SMALL: 2,  # the two NIfTI
        Reason.BLANK: 1,  # decimal_rescale
        Reason.DUPLICATE: 3,  # 1 of 0, 693_UNCR of 693_J2KR, and one of another size
    }
    assert images.account.files == 29


CALLER = """
import sys
from pathlib import Path
from fedad_components.imaging import DataSet, ingest
ingest(DataSet.model_validate({"id": "images", "folder": sys.argv[1], "reader": "fragile_reader:Fragile",
                               "timeout": 600.0}), Path(sys.argv[2]), 40, workers=2)
"""


@pytest.mark.slow
def test_continues_after_kill_9(
    tmp_path: Path, fragile_log: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    for index in range(300):
        picture(folder / f"{index:03}{'_noise' if index == 5 else ''}.png", index)
    picture(folder / "300_hang.png", 300)
    environment = os.environ | {"PYTHONPATH": str(fragile_log.parent / "custom")}
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(folder), str(tmp_path / "cache")], env=environment)
    journal = tmp_path / "cache" / "images-40" / "building" / "journal"
    deadline = time.monotonic() + 120
    try:
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 256):
            assert time.monotonic() < deadline
            assert caller.poll() is None
            time.sleep(0.1)
    finally:
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
    with open(journal.parent.parent / "lock", "rb") as lock:
        while True:  # the building process and its hanging decoder end when the caller has
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    done = journal.read_bytes().count(b"\n") - 1
    assert done >= 256
    (folder / "300_hang.png").rename(folder / "300.png")
    fragile_log.unlink()
    request.getfixturevalue("build_here")
    images = ingest(data_set(folder, reader="fragile_reader:Fragile", timeout=600.0), tmp_path / "cache", SIDE)
    assert len(fragile_log.read_text(encoding="ascii").split()) == 301 - done
    assert images.account.used == 301
    fresh = ingest(data_set(folder), tmp_path / "fresh", SIDE)
    assert np.array_equal(images.images, fresh.images)
    assert "Patient" not in "".join(capfd.readouterr())
