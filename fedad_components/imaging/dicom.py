"""DICOM to display-ready frames: MONAI's PydicomReader, extended by what it leaves out.

It reads, decompresses and rescales with the first-level slope only. Added here, on pydicom's pixel functions:
truncated streams, functional groups of enhanced objects, modality and VOI LUTs, windows, MONOCHROME1, palettes, YBR,
more than 8 bits of colour, multi-frame selection, and objects that hold pixels but no picture.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pydicom
from monai.data.image_reader import PydicomReader
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.pixels import apply_color_lut, get_decoder, iter_pixels
from pydicom.pixels.utils import get_expected_length
from pydicom.uid import (
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000TransferSyntaxes,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
)

from fedad_components.imaging.account import Reason
from fedad_components.imaging.catalogue import DataSet
from fedad_components.imaging.intensity import to_rgb, to_uint8, windowed
from fedad_components.imaging.readers import FrameReader, Unusable, chosen, grey_to_uint8

NOT_PICTURES = {"SEG", "RTDOSE", "RTSTRUCT", "RTPLAN", "PR", "REG", "SR", "KO", "RWV", "FID", "M3D", "DOC"}
"""Modalities that may hold pixel data which is no picture of a patient; used only if the catalogue names them."""
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_ENDS_WITH_MARKER = {*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEG2000TransferSyntaxes}
_ANY = DataSet(id="any", folder="/")


class DicomReader(FrameReader, PydicomReader):
    """Reads one DICOM file. ``get_data``, and so MONAI's LoadImage, gives the same pixels as ``frames``."""

    def __init__(self) -> None:
        # force: without it pydicom refuses files that lack the preamble, which archives do hand out.
        super().__init__(channel_dim=-1, force=True)

    def read(self, data: Any, **kwargs: Any) -> Any:
        """Read one file, as MONAI does.

        Raises:
            Unusable: if the file ends early or is not DICOM.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            image = super().read(data, **kwargs)
        # pydicom only warns, and gives back a dataset without its last element or without any.
        if any("End of file reached" in str(warning.message) for warning in caught):
            raise Unusable(Reason.TRUNCATED, "the file ends inside a data element")
        if not any(key in image for key in ("SOPClassUID", "Rows", *_PIXELS)) and not len(
            getattr(image, "file_meta", ())
        ):
            raise Unusable(Reason.NOT_AN_IMAGE, "no DICOM data elements")
        return image

    def frames(self, image: Dataset, data_set: DataSet) -> Iterator[np.ndarray]:
        """Yield ``uint8 (H, W, 3)`` frames; see :class:`FrameReader`."""
        _check_picture(image, data_set)
        _check_complete(image)
        indices = chosen(_frame_count(image), data_set)
        pixels = iter_pixels(image, indices=indices)
        if image.PhotometricInterpretation == "PALETTE COLOR":
            depth = int(image.RedPaletteColorLookupTableDescriptor[2])
            yield from (_colour(apply_color_lut(frame, image), depth) for frame in pixels)
        elif image.SamplesPerPixel > 1:
            yield from (_colour(frame, int(image.BitsStored)) for frame in pixels)
        else:
            yield from map(to_rgb, _greys(image, indices, pixels, data_set))

    def _get_array_data(self, img: Dataset, filename: Any) -> np.ndarray:
        frames = list(self.frames(img, _ANY))
        return frames[0] if len(frames) == 1 else np.stack(frames, axis=2)


def _check_picture(image: Dataset, data_set: DataSet) -> None:
    modality = str(image.get("Modality") or "").strip().upper()
    if data_set.modalities:
        if modality not in data_set.modalities:
            raise Unusable(Reason.WRONG_MODALITY, f"{modality or 'none'}: expected {', '.join(data_set.modalities)}")
    elif modality in NOT_PICTURES and any(key in image for key in _PIXELS):
        raise Unusable(Reason.WRONG_MODALITY, f"{modality} is not a picture")
    if not any(key in image for key in _PIXELS):
        raise Unusable(Reason.NO_PIXEL_DATA, modality)


def _check_complete(image: Dataset) -> None:
    """Refuse what decoders would silently pad: too few bytes, too few frames, a stream without its end marker."""
    syntax = _transfer_syntax(image)
    if "PixelData" not in image:
        return
    n_frames = _frame_count(image)
    if not syntax.is_encapsulated:
        expected = get_expected_length(image)
        if len(image.PixelData) < expected:
            raise Unusable(Reason.TRUNCATED, f"{len(image.PixelData)} bytes of pixel data: expected {expected}")
        return
    get_decoder(syntax)  # NotImplementedError names an unsupported transfer syntax
    offsets = (image.ExtendedOffsetTable, image.ExtendedOffsetTableLengths) if "ExtendedOffsetTable" in image else None
    found = 0
    for stream in generate_frames(image.PixelData, number_of_frames=n_frames, extended_offsets=offsets):
        found += 1
        # Padding to an even length is a zero byte; some writers append FF.
        if syntax in _ENDS_WITH_MARKER and not stream.rstrip(b"\0\xff").endswith(b"\xff\xd9"):
            raise Unusable(Reason.TRUNCATED, f"frame {found} has no end marker")
    if found < n_frames:
        raise Unusable(Reason.TRUNCATED, f"{found} frames: expected {n_frames}")


def _transfer_syntax(image: Dataset) -> pydicom.uid.UID:
    """The file's transfer syntax; where its header lacks one, that of the bytes as they were read."""
    meta = image.file_meta
    if "TransferSyntaxUID" not in meta:
        implicit, little = image.original_encoding
        if implicit:
            meta.TransferSyntaxUID = ImplicitVRLittleEndian
        else:
            meta.TransferSyntaxUID = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    return meta.TransferSyntaxUID


def _frame_count(image: Dataset) -> int:
    return max(1, int(image.get("NumberOfFrames") or 1))


def _colour(frame: np.ndarray, bits: int) -> np.ndarray:
    """``(H, W, 3)`` of ``bits`` bits → ``uint8``; pydicom has already put it into RGB."""
    return to_rgb(frame if bits == 8 and frame.dtype == np.uint8 else to_uint8(frame / np.float64(2**bits - 1)))


def _greys(image: Dataset, indices: list[int], pixels: Iterator[np.ndarray], data_set: DataSet) -> Iterator[np.ndarray]:
    """Modality LUT, VOI and polarity, in DICOM's order (PS3.3 C.11): stored ``(H, W)`` → ``uint8 (H, W)``."""
    inverted = image.PhotometricInterpretation == "MONOCHROME1"
    plain: list[np.ndarray] = []
    padding = None
    for index, stored in zip(indices, pixels, strict=True):
        rescale = _group(image, index, "PixelValueTransformationSequence")
        values = _modality_values(image, rescale, stored)
        voi = _group(image, index, "FrameVOILUTSequence")
        window = None if data_set.window else _window(voi)
        if data_set.window is None and voi.get("VOILUTSequence"):
            shown = to_uint8(_lookup(image, voi.VOILUTSequence[0], values))
        elif window:
            shown = to_uint8(windowed(values, *window, str(voi.get("VOILUTFunction") or "LINEAR").upper()))
        else:
            if "PixelPaddingValue" in image:
                padding = float(_modality_values(image, rescale, np.array([image.PixelPaddingValue]))[0])
            plain.append(_eight_bits(image, values))
            continue
        yield 255 - shown if inverted else shown
    for shown in grey_to_uint8(plain, data_set, padding):
        yield 255 - shown if inverted else shown


def _modality_values(image: Dataset, rescale: Dataset, stored: np.ndarray) -> np.ndarray:
    """Stored values in the modality's unit, by LUT or by slope and intercept; unchanged if the file has neither."""
    if rescale.get("ModalityLUTSequence"):
        item = rescale.ModalityLUTSequence[0]
        return _lookup(image, item, stored) * np.float64(2 ** int(item.LUTDescriptor[2]) - 1)
    slope, intercept = _first(rescale.get("RescaleSlope")), _first(rescale.get("RescaleIntercept"))
    if slope is None and intercept is None:
        return stored
    return stored * np.float64(1.0 if slope is None else slope) + (intercept or 0.0)


def _lookup(image: Dataset, item: Dataset, values: np.ndarray) -> np.ndarray:
    """A modality or VOI LUT (PS3.3 C.11.1.1, C.11.2.1.1) → ``float64`` in [0, 1] of the range of its entries.

    pydicom's own functions index with the LUT's output type or the input's, which overflows (an 8-bit VOI LUT of 4096
    entries; signed 8-bit pixels).
    """
    entries, first, bits = (int(number) for number in item.LUTDescriptor)
    data = item.LUTData
    if isinstance(data, bytes):
        order = "<" if image.original_encoding[1] else ">"
        data = np.frombuffer(data, np.uint8 if len(data) == entries else f"{order}u2")
    table = np.asarray(data)[: entries or 2**16]
    index = np.clip(np.rint(values).astype(np.int64) - first, 0, len(table) - 1)
    return table[index] / np.float64(2**bits - 1)


def _eight_bits(image: Dataset, values: np.ndarray) -> np.ndarray:
    """Up to 8 stored bits without a rescale are display values already: ``uint8``. Others stay as they are."""
    if values.dtype != np.uint8:
        return values
    bits = int(image.BitsStored)
    return values if bits == 8 else to_uint8(values / np.float32(2**bits - 1))


def _group(image: Dataset, index: int, name: str) -> Dataset:
    """The item of a functional group that holds for a frame: its own, the shared one, or the object itself."""
    for sequence, position in (("PerFrameFunctionalGroupsSequence", index), ("SharedFunctionalGroupsSequence", 0)):
        items = image.get(sequence) or []
        if position < len(items) and items[position].get(name):
            return items[position].get(name)[0]
    return image


def _window(voi: Dataset) -> tuple[float, float] | None:
    """First of the windows, if it has a usable width."""
    center, width = _first(voi.get("WindowCenter")), _first(voi.get("WindowWidth"))
    return (center, width) if center is not None and width is not None and width > 0 else None


def _first(value: Any) -> float | None:
    if isinstance(value, (list, pydicom.multival.MultiValue)):
        value = value[0] if len(value) else None
    return None if value in (None, "") else float(value)
