"""Readers in MONAI's idiom: ``read`` opens a file, ``frames`` yields what of it can be shown. Slow to import (MONAI).

A site's own reader is any ``monai.data.ImageReader``: with ``get_data`` alone it gets the frames below by default; as a
:class:`FrameReader` it can yield them itself.
"""

from __future__ import annotations

import gzip
import importlib
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.data.image_reader import ImageReader, NibabelReader, PILReader
from nibabel.filebasedimages import ImageFileError
from PIL import Image, ImageOps, UnidentifiedImageError

from fedad_components.imaging.account import Reason, Unusable
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.imaging.intensity import ranged, to_rgb, to_uint8, value_range, windowed

# A closed list: Pillow would also start Ghostscript for EPS, and knows formats that no scanner writes.
RASTER_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "JPEG2000", "PPM")
_IMAGE_DESCRIPTION = 270
_RASTER_MAGIC = (
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"II*\0",
    b"MM\0*",
    b"II+\0",
    b"MM\0+",
    b"BM",
    b"GIF8",
    b"RIFF",
    b"\0\0\0\x0cjP",
    b"\xff\x4f\xff\x51",
    b"P5",
    b"P6",
)


def chosen(n_frames: int, data_set: DataSet) -> list[int]:
    """Indices of the frames that the catalogue asks for, out of ``n_frames`` ≥ 1, in order."""
    policy = data_set.frames
    if policy == "all":
        return list(range(n_frames))
    if policy == "first":
        return [0]
    wanted = 1 if policy == "middle" else min(policy, n_frames)
    return [int((index + 0.5) * n_frames / wanted) for index in range(wanted)]


def grey_to_uint8(
    frames: Sequence[np.ndarray], data_set: DataSet, padding: float | None = None
) -> Iterator[np.ndarray]:
    """Grey frames ``(H, W)`` of one file, any number type → ``uint8 (H, W)``.

    The catalogue's window if there is one; 8-bit values as they are; else the common range of the frames.
    """
    if data_set.window is not None:
        for frame in frames:
            yield to_uint8(windowed(frame, data_set.window.center, data_set.window.width))
    elif all(frame.dtype == np.uint8 for frame in frames):
        yield from frames
    else:
        low, high = value_range(frames, padding)
        for frame in frames:
            yield to_uint8(ranged(frame, low, high))


class FrameReader(ImageReader):
    """A MONAI reader that also yields display-ready frames."""

    def frames(self, image: Any, data_set: DataSet) -> Iterator[np.ndarray]:
        """Yield ``uint8 (H, W, 3)`` frames of what ``read`` returned.

        Raises:
            Unusable: with the reason that goes into the account.
        """
        yield from frames_from_data(self, image, data_set)


def frames_from_data(reader: ImageReader, image: Any, data_set: DataSet) -> Iterator[np.ndarray]:
    """Frames of any MONAI reader, from its ``get_data``: spatial axes x, y and slices, then channels if it says so."""
    array, meta = reader.get_data(image)
    array = np.asarray(array)
    channel = meta.get("original_channel_dim", float("nan"))
    has_channel = isinstance(channel, (int, np.integer)) and array.ndim > 2 and array.shape[channel] in (1, 3)
    slices_YX = _slices(np.moveaxis(array, channel, -1) if has_channel else array[..., None], axis=2)
    yield from _shown([np.swapaxes(slice_XYC, 0, 1) for slice_XYC in slices_YX], data_set)


def _slices(volume: np.ndarray, axis: int) -> list[np.ndarray]:
    """``(X, Y[, Z[, T]], C)`` → list of ``(X, Y, C)`` along a spatial axis, volume by volume."""
    if volume.ndim < 3:
        raise Unusable(Reason.NO_PIXEL_DATA, f"array of shape {volume.shape[:-1]}: expected at least two axes")
    if volume.ndim == 3:
        return [volume]
    flat = volume.reshape(*volume.shape[:3], -1, volume.shape[-1])
    return [
        np.take(flat[:, :, :, t], index, axis=axis) for t in range(flat.shape[3]) for index in range(flat.shape[axis])
    ]


def _shown(frames: list[np.ndarray], data_set: DataSet) -> Iterator[np.ndarray]:
    """Selected ``(H, W, C)`` frames as ``uint8 (H, W, 3)``."""
    if not frames:
        raise Unusable(Reason.NO_PIXEL_DATA, "no slices")
    picked = [frames[index] for index in chosen(len(frames), data_set)]
    if picked[0].shape[-1] == 1:
        yield from map(to_rgb, grey_to_uint8([frame[:, :, 0] for frame in picked], data_set))
    elif picked[0].dtype == np.uint8:
        yield from map(to_rgb, picked)
    else:
        low, high = value_range(picked)
        yield from (to_rgb(to_uint8(ranged(frame, low, high))) for frame in picked)


class RasterReader(FrameReader, PILReader):
    """PNG, JPEG, TIFF and the like, upright as their EXIF tag says, with all pages of a multi-page file.

    MONAI's reader keeps 16-bit greys and palettes as stored and reads the first page; here greys above 8 bits get a
    range, palettes and CMYK become RGB, and an alpha channel is dropped.

    Whole-slide images of the commonest scanner, which are TIFF too, are refused: among their pages is a photograph of
    the slide's label.
    """

    def __init__(self) -> None:
        super().__init__(formats=RASTER_FORMATS)

    def frames(self, image: Any, data_set: DataSet) -> Iterator[np.ndarray]:
        if str(getattr(image, "tag_v2", {}).get(_IMAGE_DESCRIPTION, "")).startswith("Aperio"):
            raise Unusable(Reason.WRONG_MODALITY, "a whole-slide image: expected 'reader: slide'")
        greys: list[np.ndarray] = []
        for index in chosen(getattr(image, "n_frames", 1), data_set):
            if index:
                image.seek(index)
            image.load()
            page = ImageOps.exif_transpose(image)
            if page.mode in ("1", "L"):
                greys.append(np.asarray(page.convert("L")))
            elif page.mode in ("I", "F") or page.mode.startswith("I;16"):
                greys.append(np.asarray(page))
            else:
                yield to_rgb(np.asarray(page.convert("RGB")))
        yield from map(to_rgb, grey_to_uint8(greys, data_set))


class NiftiReader(FrameReader, NibabelReader):
    """NIfTI 1 and 2: slices of the volume in canonical (RAS+) orientation, anterior or superior up."""

    def __init__(self) -> None:
        super().__init__(as_closest_canonical=True)

    def frames(self, image: Any, data_set: DataSet) -> Iterator[np.ndarray]:
        volume = np.asarray(self.get_data(image)[0])
        if volume.dtype.names:  # RGB24 and RGBA32 come as records
            volume = np.stack([volume[name] for name in volume.dtype.names[:3]], axis=-1)
        else:
            volume = volume[..., None]
        yield from _shown([np.rot90(slice_XYC) for slice_XYC in _slices(volume, data_set.slice_axis)], data_set)


def own_reader(name: str) -> ImageReader:
    """Create a site's own reader from ``module:Class``.

    Raises:
        CatalogueError: if it cannot be imported or is not a MONAI ImageReader.
    """
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
        reader = kind()
    except Exception as error:
        raise CatalogueError(
            f"reader = {name!r}: {type(error).__name__}: {error}: expected module:Class, importable from "
            f"the kit's local/custom and created without arguments"
        ) from error
    if not isinstance(reader, ImageReader):
        raise CatalogueError(f"reader = {name!r}: expected a subclass of monai.data.ImageReader")
    return reader


def reader_kind(path: Path) -> str:
    """``pillow``, ``dicom`` or ``nifti``, from a file's first bytes rather than from its name.

    Raises:
        Unusable: if it is none of them.
    """
    with open(path, "rb") as stream:
        head = stream.read(352)
        if head[:2] == b"\x1f\x8b":
            stream.seek(0)
            try:
                head = gzip.GzipFile(fileobj=stream).read(352)
            except EOFError:
                raise Unusable(Reason.TRUNCATED, "gzip stream ends early") from None
            except (OSError, zlib.error):
                raise Unusable(Reason.UNDECODABLE, "damaged gzip stream") from None
            if not _is_nifti(head):
                raise Unusable(Reason.NOT_AN_IMAGE, "gzip without NIfTI inside")
    if head[128:132] == b"DICM":
        return "dicom"
    if _is_nifti(head):
        return "nifti"
    if head.startswith(_RASTER_MAGIC):
        return "pillow"
    # DICOM without its preamble starts with an element of group 0002 or 0008, in either byte order.
    if head[:2] in (b"\x02\0", b"\x08\0", b"\0\x02", b"\0\x08"):
        return "dicom"
    raise Unusable(Reason.NOT_AN_IMAGE, "unknown first bytes")


def _is_nifti(head: bytes) -> bool:
    return head[344:348] == b"n+1\0" or head[4:8] == b"n+2\0"


def reader_for(kind: str) -> ImageReader:
    """Create the reader ``pillow``, ``dicom``, ``nifti``, ``slide`` or ``module:Class``."""
    if kind == "pillow":
        return RasterReader()
    if kind == "nifti":
        return NiftiReader()
    if kind == "dicom":
        from fedad_components.imaging.dicom import DicomReader

        return DicomReader()
    if kind == "slide":
        from fedad_components.slides.patch_reader import SlidePatchReader

        return SlidePatchReader()
    return own_reader(kind)


def read_frames(path: Path, data_set: DataSet) -> Iterator[np.ndarray]:
    """Yield a file's selected frames, ``uint8 (H, W, 3)``.

    Raises:
        Unusable: with the reason, whatever the decoder raised.
    """
    kind = reader_kind(path) if data_set.reader == "auto" else data_set.reader
    if data_set.modalities and kind in ("pillow", "nifti", "slide"):
        raise Unusable(Reason.WRONG_MODALITY, f"no modality in this format: expected DICOM, {data_set.modalities}")
    reader = reader_for(kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = reader.read(path)
            if isinstance(reader, FrameReader):
                yield from reader.frames(image, data_set)
            else:
                yield from frames_from_data(reader, image, data_set)
    except (Unusable, CatalogueError):
        raise
    except Exception as error:
        raise Unusable(_reason(error, path), f"{type(error).__name__}: {error}") from error


def _reason(error: Exception, path: Path) -> Reason:
    text = str(error).lower()
    if isinstance(error, PermissionError):
        return Reason.UNREADABLE
    if isinstance(error, EOFError) or "truncated" in text or "incomplete" in text or "end of file" in text:
        return Reason.TRUNCATED
    # nibabel: "Expected 61440 bytes, got 100 bytes from object - could the file be damaged?"
    if isinstance(error, OSError) and text.startswith("expected") and "bytes, got" in text:
        return Reason.TRUNCATED
    if isinstance(error, UnidentifiedImageError):
        with open(path, "rb") as stream:
            return Reason.UNDECODABLE if stream.read(16).startswith(_RASTER_MAGIC) else Reason.NOT_AN_IMAGE
    if isinstance(error, ImageFileError):
        return Reason.NOT_AN_IMAGE
    if isinstance(error, OSError) and _tiff_is_short(path):
        return Reason.TRUNCATED
    return Reason.UNDECODABLE


def _tiff_is_short(path: Path) -> bool:
    """Whether a TIFF's strips or tiles lie beyond its end; libtiff reports that as a decoder error."""
    try:
        with Image.open(path, formats=("TIFF",)) as image:
            tags = image.tag_v2
            size = path.stat().st_size
            return any(
                offset + length > size
                for where, count in ((273, 279), (324, 325))
                for offset, length in zip(tags.get(where, ()), tags.get(count, ()), strict=False)
            )
    except Exception:
        return False
