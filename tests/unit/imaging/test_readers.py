"""Raster and NIfTI files, and readers of a site's own, against Pillow, nibabel and hand-made arrays."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from reading import entry, frames, reason

from fedad_components.imaging.account import Reason
from fedad_components.imaging.catalogue import CatalogueError
from fedad_components.imaging.readers import chosen, own_reader

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (48, 64, 3), dtype=np.uint8)
GREY = COLOUR[:, :, 0].copy()
DEEP = RNG.integers(0, 4096, (48, 64), dtype=np.uint16)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp", "gif", "webp", "jp2", "ppm"])
def test_colour_formats_are_as_pillow_decodes_them(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(COLOUR).save(path)
    with Image.open(path) as image:
        assert np.array_equal(frames(path)[0], np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_modes(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image = Image.fromarray(COLOUR).convert(mode)
    image.save(path)
    expected = image.convert("L" if mode in ("1", "L") else "RGB").convert("RGB")
    assert np.array_equal(frames(path)[0], np.asarray(expected))


def test_ycbcr_tiff_is_read_as_rgb(tmp_path: Path) -> None:
    """Compressed, since not every Pillow reads the uncompressed one that it writes; libtiff rounds on its own."""
    image = Image.fromarray(COLOUR).convert("YCbCr")
    image.save(tmp_path / "a.tif", compression="tiff_lzw")
    difference = frames(tmp_path / "a.tif")[0].astype(int) - np.asarray(image.convert("RGB"))
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bits_use_the_range_or_the_catalogues_window(tmp_path: Path, name: str) -> None:
    Image.fromarray(DEEP).save(tmp_path / name)
    low, high = np.percentile(DEEP, [0.5, 99.5])
    expected = np.rint(np.clip((DEEP.astype(np.float32) - low) / (high - low), 0, 1) * 255)
    got = frames(tmp_path / name)[0]
    assert np.abs(got[:, :, 0] - expected).max() <= 1
    assert np.array_equal(got[:, :, 0], got[:, :, 2])
    window = frames(tmp_path / name, window={"center": 1000, "width": 501})[0][:, :, 0]
    assert np.array_equal(window == 0, DEEP <= 749.5 + 500 * 0.5 / 255)
    assert np.array_equal(window == 255, DEEP >= 1249.5 - 500 * 0.5 / 255)


def test_float_tiff(tmp_path: Path) -> None:
    ramp = np.linspace(-1, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
    Image.fromarray(ramp).save(tmp_path / "a.tif")
    got = frames(tmp_path / "a.tif")[0][:, :, 0].reshape(-1)
    assert got[0] == 0
    assert got[-1] == 255
    assert np.all(np.diff(got.astype(int)) >= 0)


def test_pages_and_frame_policies(tmp_path: Path) -> None:
    pages = [np.full((40, 40), value, np.uint8) for value in range(0, 100, 10)]
    first, *others = (Image.fromarray(page) for page in pages)
    first.save(tmp_path / "a.tif", save_all=True, append_images=others)
    values = {
        policy: [int(frame[0, 0, 0]) for frame in frames(tmp_path / "a.tif", frames=policy)]
        for policy in ("all", "first", "middle", 3, 50)
    }
    assert values["all"] == values[50] == list(range(0, 100, 10))
    assert values["first"] == [0]
    assert values["middle"] == [50]
    assert values[3] == [10, 50, 80]


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_chosen_frames_are_distinct_and_in_order(n: int) -> None:
    for policy in ("all", "first", "middle", 1, 2, 5, 1000):
        picked = chosen(n, entry(frames=policy))
        assert picked == sorted(set(picked))
        assert 0 <= picked[0] <= picked[-1] < n


def test_exif_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    Image.fromarray(COLOUR).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(frames(tmp_path / "a.png")[0], np.rot90(COLOUR, -1))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "raw.tif", "lzw.tif", "a.jp2"])
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_truncated_files_are_never_padded(tmp_path: Path, name: str, keep: float) -> None:
    path = tmp_path / name
    Image.fromarray(COLOUR).save(path, **({"compression": "tiff_lzw"} if name == "lzw.tif" else {}))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    # A TIFF's directory is at its end and is lost with it: then nothing tells truncation from damage.
    assert reason(path) in (
        {Reason.TRUNCATED} if name in ("a.jpg", "a.png", "a.bmp") else {Reason.TRUNCATED, Reason.UNDECODABLE}
    )


def test_wrong_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("name,diagnosis\n" * 40, encoding="ascii")
    assert reason(tmp_path / "a.png") == Reason.NOT_AN_IMAGE
    assert reason(tmp_path / "a.png", reader="pillow") == Reason.NOT_AN_IMAGE
    assert reason(tmp_path / "a.png", reader="dicom") in (Reason.NOT_AN_IMAGE, Reason.NO_PIXEL_DATA, Reason.UNDECODABLE)
    assert reason(tmp_path / "a.png", reader="nifti") == Reason.NOT_AN_IMAGE
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(RNG.integers(0, 256, 500, dtype=np.uint8)))
    assert reason(tmp_path / "b.png") == Reason.UNDECODABLE
    (tmp_path / "c.gz").write_bytes(gzip.compress(b"x" * 1000))
    assert reason(tmp_path / "c.gz") == Reason.NOT_AN_IMAGE
    (tmp_path / "d.gz").write_bytes(gzip.compress(bytes(RNG.integers(0, 256, 9000, dtype=np.uint8)))[:60])
    assert reason(tmp_path / "d.gz") == Reason.TRUNCATED
    Image.fromarray(COLOUR).save(tmp_path / "photo.dcm", "JPEG")
    assert len(frames(tmp_path / "photo.dcm")) == 1  # contents decide, not names
    assert reason(tmp_path / "photo.dcm", modalities=["CT"]) == Reason.WRONG_MODALITY


def test_postscript_never_reaches_ghostscript(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    assert reason(tmp_path / "a.png", reader="pillow") == Reason.NOT_AN_IMAGE


def test_nifti_slices_are_canonical(tmp_path: Path) -> None:
    volume = RNG.integers(0, 256, (40, 36, 34), dtype=np.uint8)  # x to the right, y to the front, z up
    for name, affine, stored in (
        ("ras.nii", np.diag([1, 1, 1, 1]), volume),
        ("las.nii.gz", np.diag([-1, 1, 1, 1]), volume[::-1]),
    ):
        nibabel.save(nibabel.Nifti1Image(stored, affine), tmp_path / name)
        axial = frames(tmp_path / name)
        assert len(axial) == 34
        for z in (0, 17, 33):
            for row, y in ((0, 35), (35, 0), (10, 25)):
                assert np.array_equal(axial[z][row, :, 1], volume[:, y, z])
    sagittal = frames(tmp_path / "ras.nii", slice_axis=0, frames="middle")
    assert sagittal[0].shape == (34, 36, 3)
    assert np.array_equal(sagittal[0][0, :, 0], volume[20, :, 33])


def test_nifti_scaling_window_time_and_colour(tmp_path: Path) -> None:
    hounsfield = RNG.integers(-1000, 1000, (33, 34, 3, 2)).astype(np.int16)
    image = nibabel.Nifti1Image(hounsfield, np.eye(4))
    image.header.set_slope_inter(2, -100)
    nibabel.save(image, tmp_path / "a.nii")
    # nibabel keeps the real values when saving: what it reads back is the reference
    values = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)
    shown = frames(tmp_path / "a.nii", window={"center": 40, "width": 400})
    assert len(shown) == 6
    reference = np.clip((values[..., 1] - 39.5) / 399 + 0.5, 0, 1)
    assert np.abs(shown[3][:, :, 0] - np.rot90(reference[:, :, 0]) * 255).max() <= 0.51
    colour = np.zeros((33, 34, 2), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    colour["G"] = 9
    nibabel.save(nibabel.Nifti1Image(colour, np.eye(4)), tmp_path / "rgb.nii")
    assert frames(tmp_path / "rgb.nii")[0][5, 5].tolist() == [0, 9, 0]


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_truncated_nifti(tmp_path: Path, name: str) -> None:
    nibabel.save(nibabel.Nifti1Image(RNG.normal(size=(40, 40, 40)), np.eye(4)), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
    assert reason(tmp_path / name) == Reason.TRUNCATED


def test_real_nifti(real_data: Path) -> None:
    path = real_data / "dicom" / "example_nifti2.nii.gz"
    shape = nibabel.load(path).shape
    assert len(frames(path)) == shape[2] * shape[3]
    assert frames(path, frames="first")[0].shape == (shape[1], shape[0], 3)


def test_real_jpegs_are_bit_equal_to_pillow(real_data: Path) -> None:
    paths = sorted((real_data / "wbc" / "images").rglob("*.jpg"))[::100]
    assert len(paths) > 30
    for path in paths:
        with Image.open(path) as image:
            assert np.array_equal(frames(path)[0], np.asarray(image.convert("RGB")))


OWN = """
import numpy as np
from monai.data.image_reader import ImageReader
from fedad_components.imaging.readers import FrameReader

class Plain(ImageReader):
    def verify_suffix(self, filename): return True
    def read(self, data, **kwargs): return np.load(data, allow_pickle=False)
    def get_data(self, img): return img, {"original_channel_dim": float("nan")}

class Framed(Plain, FrameReader):
    def frames(self, image, data_set): yield np.repeat(image.astype(np.uint8)[:, :, None], 3, axis=2)

class NotAReader: pass
class Broken(Plain):
    def read(self, data, **kwargs): raise KeyError("no such thing")
"""


def test_own_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_reader_module.py").write_text(OWN, encoding="ascii")
    monkeypatch.syspath_prepend(tmp_path)
    np.save(tmp_path / "a.npy", GREY)
    assert np.array_equal(frames(tmp_path / "a.npy", reader="own_reader_module:Framed")[0][:, :, 0], GREY)
    # MONAI's arrays are x first: a plain reader's are transposed for display
    assert np.array_equal(frames(tmp_path / "a.npy", reader="own_reader_module:Plain")[0][:, :, 0], GREY.T)
    assert reason(tmp_path / "a.npy", reader="own_reader_module:Broken") == Reason.UNDECODABLE
    for name in ("own_reader_module:NotAReader", "own_reader_module:Missing", "no_such_module:Reader"):
        with pytest.raises(CatalogueError, match=name):
            own_reader(name)
