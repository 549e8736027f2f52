"""DICOM, against loops over the standard's formulas, other decoders, and every packaged file of pydicom."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from monai.transforms import LoadImage
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import apply_modality_lut, apply_windowing, iter_pixels
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid
from reading import frames, reason

from fedad_components.imaging.account import Reason
from fedad_components.imaging.dicom import DicomReader

RNG = np.random.default_rng(0)


def write(path: Path, pixels: np.ndarray, **tags: Any) -> Path:
    """A DICOM file of grey ``(H, W)`` or ``(F, H, W)``, or colour ``(H, W, 3)`` pixels."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    colour = pixels.shape[-1] == 3
    dataset.Rows, dataset.Columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
    if pixels.ndim == 3 and not colour:
        dataset.NumberOfFrames = len(pixels)
    dataset.SamplesPerPixel = 3 if colour else 1
    dataset.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = pixels.itemsize * 8
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.Modality = "OT"
    dataset.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.HighBit = dataset.BitsStored - 1
    dataset.save_as(path, enforce_file_format=True)
    return path


def slow_linear(stored: float, slope: float, intercept: float, center: float, width: float) -> float:
    x = stored * slope + intercept
    if x <= center - 0.5 - (width - 1) / 2:
        return 0.0
    if x > center - 0.5 + (width - 1) / 2:
        return 255.0
    return ((x - (center - 0.5)) / (width - 1) + 0.5) * 255


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int8, np.uint8])
@pytest.mark.parametrize(("slope", "intercept"), [(1, 0), (1, -1024), (2.5, 7)])
def test_rescale_then_window_for_every_pixel(tmp_path: Path, dtype: type, slope: float, intercept: float) -> None:
    limits = np.iinfo(dtype)
    stored = RNG.integers(max(limits.min, -2000), min(limits.max, 3000), (34, 33)).astype(dtype)
    tags = {"RescaleSlope": slope, "RescaleIntercept": intercept, "WindowCenter": [40, 9], "WindowWidth": [400, 1]}
    got = frames(write(tmp_path / "a.dcm", stored, **tags))[0]
    for row in range(34):
        for column in range(33):
            expected = slow_linear(float(stored[row, column]), slope, intercept, 40, 400)
            assert abs(float(got[row, column, 1]) - expected) <= 0.501
    negative = frames(write(tmp_path / "b.dcm", stored, **tags, PhotometricInterpretation="MONOCHROME1"))[0]
    assert np.array_equal(negative, 255 - got)
    override = frames(tmp_path / "a.dcm", window={"center": -500, "width": 900})[0]
    expected_override = [[slow_linear(float(x), slope, intercept, -500, 900) for x in row] for row in stored]
    assert np.abs(override[:, :, 0] - np.array(expected_override)).max() <= 0.501


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_window_functions_agree_with_pydicom(tmp_path: Path, function: str) -> None:
    stored = RNG.integers(0, 4096, (40, 40)).astype(np.uint16)
    tags = {"WindowCenter": 1000, "WindowWidth": 700, "VOILUTFunction": function, "BitsStored": 12}
    path = write(tmp_path / "a.dcm", stored, **tags)
    reference = apply_windowing(stored, pydicom.dcmread(path)) / 4095 * 255
    assert np.abs(frames(path)[0][:, :, 0] - reference).max() <= 0.501


def test_real_windows_agree_with_pydicom(pydicom_files: Path) -> None:
    for name in ("693_J2KI.dcm", "MR_small.dcm", "examples_overlay.dcm"):
        dataset = pydicom.dcmread(pydicom_files / name)
        values = dataset.pixel_array * float(dataset.get("RescaleSlope", 1)) + float(dataset.get("RescaleIntercept", 0))
        center, width = (
            np.atleast_1d(np.asarray(dataset[key].value, float))[0] for key in ("WindowCenter", "WindowWidth")
        )
        reference = np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1) * 255
        assert np.abs(frames(pydicom_files / name)[0][:, :, 2] - reference).max() <= 0.501


def test_deep_greys_without_a_window_use_one_range_for_all_frames(tmp_path: Path) -> None:
    stored = np.stack([np.arange(1024).reshape(32, 32), np.arange(1024).reshape(32, 32) + 1024]).astype(np.uint16)
    dim, bright = frames(write(tmp_path / "a.dcm", stored))
    assert dim.max() <= bright.min() + 1
    padded = stored[0].astype(np.int16)
    padded[:, :8] = -2000
    got = frames(write(tmp_path / "b.dcm", padded, PixelPaddingValue=-2000))[0]
    assert not got[:, :8].any()
    inside = padded[:, 8:]
    low, high = np.percentile(inside, [0.5, 99.5])
    assert np.abs(got[:, 8:, 0] - np.clip((inside - low) / (high - low), 0, 1) * 255).max() <= 0.51


def test_few_bits_and_deep_colour_are_stretched_by_their_depth(tmp_path: Path) -> None:
    six = RNG.integers(0, 64, (32, 32)).astype(np.uint8)
    got = frames(write(tmp_path / "a.dcm", six, BitsStored=6))[0][:, :, 0]
    assert np.abs(got - six.astype(float) * 255 / 63).max() <= 0.5
    deep = RNG.integers(0, 65536, (32, 32, 3)).astype(np.uint16)
    assert np.abs(frames(write(tmp_path / "b.dcm", deep))[0] - deep / 257).max() <= 0.5


def test_frame_windows_of_enhanced_objects(tmp_path: Path) -> None:
    stored = RNG.integers(0, 1000, (2, 32, 32)).astype(np.uint16)
    groups, shared = [], Dataset()
    for center in (300, 700):
        voi = Dataset()
        voi.WindowCenter, voi.WindowWidth = center, 200
        groups.append(Dataset())
        groups[-1].FrameVOILUTSequence = [voi]
    transform = Dataset()
    transform.RescaleSlope, transform.RescaleIntercept, transform.RescaleType = 2, -500, "US"
    shared.PixelValueTransformationSequence = [transform]
    path = write(
        tmp_path / "a.dcm", stored, PerFrameFunctionalGroupsSequence=groups, SharedFunctionalGroupsSequence=[shared]
    )
    for index, center in enumerate((300, 700)):
        expected = np.array([[slow_linear(float(x), 2, -500, center, 200) for x in row] for row in stored[index]])
        assert np.abs(frames(path)[index][:, :, 0] - expected).max() <= 0.501
    assert np.array_equal(frames(path, frames="middle")[0], frames(path)[1])


def test_planar_configuration_and_ybr(tmp_path: Path) -> None:
    colour = RNG.integers(0, 256, (34, 36, 3), dtype=np.uint8)
    planar = np.ascontiguousarray(np.moveaxis(colour, 2, 0)).tobytes()
    assert np.array_equal(frames(write(tmp_path / "a.dcm", colour, PlanarConfiguration=1, PixelData=planar))[0], colour)
    y, cb, cr = (colour[:, :, channel].astype(float) for channel in range(3))
    # PS3.3 C.7.6.3.1.2, inverted
    rgb = np.stack(
        [y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128), y + 1.772 * (cb - 128)], -1
    )
    got = frames(write(tmp_path / "b.dcm", colour, PhotometricInterpretation="YBR_FULL"))[0]
    assert np.abs(got - np.clip(rgb, 0, 255)).max() <= 1


def test_palette_by_hand(pydicom_files: Path) -> None:
    dataset = pydicom.dcmread(pydicom_files / "examples_palette.dcm")
    got = frames(pydicom_files / "examples_palette.dcm")[0]
    stored = dataset.pixel_array
    first = int(dataset.RedPaletteColorLookupTableDescriptor[1])
    bits = int(dataset.RedPaletteColorLookupTableDescriptor[2])
    for channel, colour in enumerate(("Red", "Green", "Blue")):
        table = np.frombuffer(dataset[f"{colour}PaletteColorLookupTableData"].value, "<u2" if bits == 16 else "u1")
        for row, column in ((0, 0), (100, 400), (200, 300), (349, 799), (175, 20)):
            index = min(max(int(stored[row, column]) - first, 0), len(table) - 1)
            assert abs(float(got[row, column, channel]) - int(table[index]) * 255 / (2**bits - 1)) <= 0.5


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16])
@pytest.mark.parametrize("bits", [8, 12])
def test_modality_and_voi_luts_by_hand(tmp_path: Path, dtype: type, bits: int) -> None:
    first = -128 if dtype is np.int8 else 0
    stored = RNG.integers(first, first + 256, (32, 32)).astype(dtype)
    top = 2**bits - 1
    forward, backward = [4 * value for value in range(256)], [top - value * top // 1023 for value in range(1024)]
    modality, voi = Dataset(), Dataset()
    modality.LUTDescriptor, modality.ModalityLUTType = [256, first, 16], "US"
    modality.LUTData = np.array(forward, "<u2").tobytes()
    voi.LUTDescriptor = [1024, 0, bits]
    voi.LUTData = np.array(backward, "<u2").tobytes()
    tags = {"ModalityLUTSequence": [modality], "VOILUTSequence": [voi]}
    got = frames(write(tmp_path / "a.dcm", stored, **tags))[0][:, :, 0]
    for row in range(32):
        for column in range(32):
            expected = backward[forward[int(stored[row, column]) - first]] * 255 / top
            assert abs(int(got[row, column]) - expected) <= 0.5


def test_real_luts(real_data: Path) -> None:
    dataset = pydicom.dcmread(real_data / "dicom" / "mlut_18.dcm")
    reference = apply_modality_lut(dataset.pixel_array, dataset).astype(float)
    got = frames(real_data / "dicom" / "mlut_18.dcm", window={"center": 700, "width": 500})[0][:, :, 0]
    assert np.abs(got - np.clip((reference - 699.5) / 499 + 0.5, 0, 1) * 255).max() <= 0.501
    dataset = pydicom.dcmread(real_data / "dicom" / "vlut_04.dcm")
    table, item = dataset.VOILUTSequence[0].LUTData, dataset.VOILUTSequence[0]
    got = frames(real_data / "dicom" / "vlut_04.dcm")[0][:, :, 0]
    for row, column in ((0, 0), (255, 255), (511, 3), (100, 400)):
        index = min(max(int(dataset.pixel_array[row, column]) - int(item.LUTDescriptor[1]), 0), len(table) - 1)
        assert abs(int(got[row, column]) - table[index] * 255 / (2 ** int(item.LUTDescriptor[2]) - 1)) <= 0.5


def test_one_image_in_seven_encodings(pydicom_files: Path) -> None:
    reference = frames(pydicom_files / "MR_small.dcm")[0]
    for encoding in ("RLE", "bigendian", "expb", "implicit", "jp2klossless", "jpeg_ls_lossless", "padded"):
        assert np.array_equal(frames(pydicom_files / f"MR_small_{encoding}.dcm")[0], reference), encoding


@pytest.mark.parametrize(
    "name",
    [
        "MR_small_jp2klossless",
        "examples_jpeg2k",
        "MR_small_RLE",
        "SC_rgb_rle_2frame",
        "MR_small_jpeg_ls_lossless",
        "693_J2KI",
    ],
)
def test_decoders_agree(pydicom_files: Path, name: str) -> None:
    path = pydicom_files / f"{name}.dcm"
    plugins = (
        ("pydicom", "pylibjpeg")
        if "rle" in name.lower()
        else ("pyjpegls", "gdcm")
        if "jpeg_ls" in name
        else ("gdcm", "pylibjpeg")
    )
    first, second = (list(iter_pixels(path, decoding_plugin=plugin)) for plugin in plugins)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


REJECTED = {
    "JPEG-lossy.dcm": Reason.UNDECODABLE,  # 12-bit JPEG: no decoder under a free licence
    "JPGExtended.dcm": Reason.UNDECODABLE,
    "JPEG2000-embedded-sequence-delimiter.dcm": Reason.UNDECODABLE,
    "MR_truncated.dcm": Reason.TRUNCATED,
    "badVR.dcm": Reason.WRONG_MODALITY,
    "liver_1frame.dcm": Reason.WRONG_MODALITY,
    "liver_expb_1frame.dcm": Reason.WRONG_MODALITY,
    "meta_missing_tsyntax.dcm": Reason.UNDECODABLE,
    "nested_priv_SQ.dcm": Reason.UNDECODABLE,
    "no_meta.dcm": Reason.NOT_AN_IMAGE,
    **{
        f"rtdose{kind}.dcm": Reason.WRONG_MODALITY
        for kind in ("", "_1frame", "_expb", "_expb_1frame", "_rle", "_rle_1frame")
    },
    **{
        f"{name}.dcm": Reason.NO_PIXEL_DATA
        for name in (
            "ExplVR_BigEndNoMeta",
            "ExplVR_LitEndNoMeta",
            "UN_sequence",
            "empty_charset_LEI",
            "no_meta_group_length",
            "priv_SQ",
            "reportsi",
            "reportsi_with_empty_number_tags",
            "rtplan",
            "rtplan_truncated",
            "rtstruct",
            "test-SR",
            "waveform_ecg",
        )
    },
    **dict.fromkeys(
        ("README.txt", "crayons.icc", "rtplan.dump", "rtstruct.dump", "test1.json", "test_PN.json", "zipMR.gz"),
        Reason.NOT_AN_IMAGE,
    ),
}


def test_every_packaged_file_is_read_or_named(pydicom_files: Path) -> None:
    seen = 0
    for path in sorted(pydicom_files.iterdir()):
        if not path.is_file():
            continue
        seen += 1
        if path.name in REJECTED:
            assert reason(path) == REJECTED[path.name], path.name
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = pydicom.dcmread(path, force=True)
        found = frames(path)
        assert len(found) == int(dataset.get("NumberOfFrames") or 1), path.name
        assert all(frame.shape == (dataset.Rows, dataset.Columns, 3) for frame in found), path.name
        assert found[0].max() > found[0].min(), path.name
    assert seen >= 80


def test_colour_of_the_same_picture_agrees_over_encodings(pydicom_files: Path) -> None:
    reference = frames(pydicom_files / "SC_rgb_rle.dcm")[0].astype(int)
    for name in (
        "SC_rgb_rle_16bit",
        "SC_rgb_rle_32bit",
        "SC_ybr_full_422_uncompressed",
        "SC_rgb_dcmtk_+eb+cr",
        "SC_rgb_dcmtk_+eb+cy+n1",
        "SC_rgb_dcmtk_+eb+cy+np",
        "SC_rgb_jpeg_gdcm",
        "SC_rgb_gdcm_KY",
        "SC_rgb_jls_lossy_sample",
    ):
        assert np.median(np.abs(frames(pydicom_files / f"{name}.dcm")[0] - reference)) <= 2, name


@pytest.mark.parametrize(
    "name", ["MR_small_jp2klossless", "MR_small_jpeg_ls_lossless", "SC_rgb_dcmtk_+eb+cr", "examples_ybr_color"]
)
@pytest.mark.parametrize("cut", [3, 100])
def test_short_streams_are_truncated(pydicom_files: Path, tmp_path: Path, name: str, cut: int) -> None:
    dataset = pydicom.dcmread(pydicom_files / f"{name}.dcm")
    streams = list(generate_frames(dataset.PixelData, number_of_frames=int(dataset.get("NumberOfFrames") or 1)))
    dataset.PixelData = encapsulate([*streams[:-1], streams[-1].rstrip(b"\0")[:-cut]])
    dataset.save_as(tmp_path / "short.dcm")
    assert reason(tmp_path / "short.dcm") == Reason.TRUNCATED
    if len(streams) > 1:
        dataset.PixelData = encapsulate(streams[:-1])
        dataset.save_as(tmp_path / "fewer.dcm")
        assert reason(tmp_path / "fewer.dcm") == Reason.TRUNCATED


@pytest.mark.parametrize("name", ["MR_small", "MR_small_jp2klossless", "SC_rgb_rle", "examples_ybr_color", "image_dfl"])
@pytest.mark.parametrize("keep", [0.7, 0.97])
def test_short_files_are_truncated(pydicom_files: Path, tmp_path: Path, name: str, keep: float) -> None:
    data = (pydicom_files / f"{name}.dcm").read_bytes()
    (tmp_path / "a.dcm").write_bytes(data[: int(len(data) * keep)])
    assert reason(tmp_path / "a.dcm") == Reason.TRUNCATED


def test_modalities(tmp_path: Path) -> None:
    path = write(tmp_path / "a.dcm", RNG.integers(0, 256, (32, 32), dtype=np.uint8), Modality="CT")
    assert len(frames(path, modalities=["mr", "ct"])) == 1
    assert reason(path, modalities="MR") == Reason.WRONG_MODALITY


def test_named_modality_allows_what_is_no_picture(pydicom_files: Path) -> None:
    assert len(frames(pydicom_files / "rtdose.dcm", modalities=["RTDOSE"])) == 15


def test_monai_load_image_gives_the_same_pixels(pydicom_files: Path) -> None:
    for name in ("MR_small.dcm", "693_J2KI.dcm", "examples_rgb_color.dcm"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = np.asarray(LoadImage(reader=DicomReader(), image_only=True, dtype=np.uint8)(pydicom_files / name))
        assert np.array_equal(np.swapaxes(loaded, 0, 1), frames(pydicom_files / name)[0])


def test_real_files(real_data: Path) -> None:
    folder = real_data / "dicom"
    assert reason(folder / "emri_small_jpeg_2k_lossless_too_short.dcm") == Reason.TRUNCATED
    assert reason(folder / "liver_rle.dcm") == Reason.WRONG_MODALITY
    assert np.array_equal(frames(folder / "693_J2KR.dcm")[0], frames(folder / "693_UNCR.dcm")[0])
    assert len(frames(folder / "OBXXXX1A_2frame.dcm")) == 2
    assert frames(folder / "OT-PAL-8-face.dcm")[0].shape == (480, 640, 3)  # has no preamble
