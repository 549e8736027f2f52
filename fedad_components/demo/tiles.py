"""Cutting images into tiles and writing them down as PNG or DICOM files. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels, right and bottom excluded"""

TRANSFER_SYNTAXES: tuple[UID, ...] = (ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless, JPEGLSLossless)
"""What :func:`write_dicom` uses in turn: one native and three compressed encodings, all of them lossless"""


def tiles(image: npt.NDArray, side: int, stride: int, box: Box | None = None) -> Iterator[npt.NDArray]:
    """Yield the square tiles ``(side, side, ...)`` of ``image`` ``(H, W, ...)`` in reading order.

    A tile never reaches beyond ``box`` (none: the whole image), so that tiles of two disjoint boxes share no pixel.
    """
    left, top, right, bottom = box or (0, 0, image.shape[1], image.shape[0])
    for y in range(top, bottom - side + 1, stride):
        for x in range(left, right - side + 1, stride):
            yield image[y : y + side, x : x + side]


def textured(cut: Sequence[npt.NDArray], least: float) -> list[npt.NDArray]:
    """Those tiles whose standard deviation is at least ``least`` grey values: no bare glass, no empty background."""
    return [tile for tile in cut if float(np.std(tile)) >= least]


def windowed(stored: npt.NDArray, source: Dataset, window: tuple[float, float]) -> npt.NDArray:
    """Grey values 0 to 255 that a window, centre and width after rescaling, makes of stored values."""
    rescaled = stored * float(source.get("RescaleSlope", 1)) + float(source.get("RescaleIntercept", 0))
    centre, width = window
    return 255 * np.clip((rescaled - centre) / width + 0.5, 0, 1)


def draw(cut: Sequence[npt.NDArray], count: int, generator: np.random.Generator) -> list[npt.NDArray]:
    """At most ``count`` of the tiles, drawn without replacement, in their order."""
    if len(cut) <= count:
        return list(cut)
    return [cut[index] for index in sorted(generator.choice(len(cut), size=count, replace=False))]


def write_png(folder: Path, cut: Sequence[npt.NDArray]) -> list[Path]:
    """Write uint8 tiles ``(S, S)`` or ``(S, S, 3)`` as ``0000.png``, ``0001.png``, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:04d}.png" for number in range(len(cut))]
    for file, tile in zip(files, cut, strict=True):
        Image.fromarray(np.ascontiguousarray(tile)).save(file)
    return files


def write_dicom(folder: Path, cut: Sequence[npt.NDArray], source: Dataset, window: tuple[float, float]) -> list[Path]:
    """Write stored values ``(S, S)`` as DICOM files that keep the source's scale and name no patient.

    Args:
        folder: where the files go, after those that it already holds.
        cut: int16 or uint16 tiles, stored values.
        source: the image the tiles were cut from: its modality, rescale slope and intercept are kept, nothing else.
        window: centre and width of the VOI window, in the units after rescaling (HU for CT).
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = len(list(folder.glob("*.dcm")))
    files = [folder / f"{number:04d}.dcm" for number in range(first, first + len(cut))]
    for number, (file, tile) in enumerate(zip(files, cut, strict=True), start=first):
        image = Dataset()
        image.SOPClassUID = SecondaryCaptureImageStorage
        image.SOPInstanceUID = generate_uid(entropy_srcs=[folder.name, file.name, str(source.SOPInstanceUID)])
        image.Modality = source.Modality
        image.PatientID = f"demo-{source.Modality.lower()}"
        image.Rows, image.Columns = tile.shape
        image.SamplesPerPixel = 1
        image.PhotometricInterpretation = "MONOCHROME2"
        image.BitsAllocated = image.BitsStored = 16
        image.HighBit = 15
        image.PixelRepresentation = int(np.issubdtype(tile.dtype, np.signedinteger))
        image.RescaleSlope = source.get("RescaleSlope", 1)
        image.RescaleIntercept = source.get("RescaleIntercept", 0)
        image.WindowCenter, image.WindowWidth = window
        image.PixelData = np.ascontiguousarray(tile).astype(tile.dtype.newbyteorder("<")).tobytes()
        image.file_meta = FileMetaDataset()
        image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
        image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        syntax = TRANSFER_SYNTAXES[number % len(TRANSFER_SYNTAXES)]
        if syntax.is_compressed:
            image.compress(syntax, generate_instance_uid=False)
        image.save_as(file, enforce_file_format=True)
    return files
