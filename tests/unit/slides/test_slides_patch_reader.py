"""Slides as a data set of the imaging catalogue, for pre-training."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import tifffile
from slide_files import tissue_picture, write_pyramid

from fedad_components.imaging.account import FileRecord, Reason, Unusable
from fedad_components.imaging.catalogue import Catalogue, CatalogueError, DataSet
from fedad_components.imaging.decoding import decode
from fedad_components.imaging.readers import read_frames

PICTURE = tissue_picture(1280, 1024, (0, 0, 1024, 768))


def entry(**keys: object) -> DataSet:
    return DataSet.model_validate(
        {"id": "x", "folder": "/", "reader": "slide", "frames": 100, "slide": {"tissue": "biopsy"}} | keys
    )


def test_a_slide_yields_its_patches_at_most_so_many(tmp_path: Path) -> None:
    path = write_pyramid(tmp_path / "a slide.tif", PICTURE)
    patches = list(read_frames(path, entry()))
    expected = [PICTURE[y : y + 256, x : x + 256] for y in range(0, 768, 256) for x in range(0, 1024, 256)]
    assert np.array_equal(np.stack(patches), np.stack(expected))
    few = list(read_frames(path, entry(frames=4)))
    assert np.array_equal(np.stack(few), np.stack(expected)[[1, 4, 7, 10]])


def test_patches_reach_the_cache_in_its_size(tmp_path: Path) -> None:
    path = write_pyramid(tmp_path / "a.tif", PICTURE, mpp=None)
    record = FileRecord("a.tif", 1, 1)
    refused, _ = decode(path, record, entry(), 64)
    assert refused.reason == Reason.NO_RESOLUTION
    done, frames = decode(path, record, entry(slide={"mpp": 0.5, "tissue": "biopsy"}, frames=5), 64)
    assert (done.reason, done.frames) == (None, 5)
    assert {frame.shape for frame in frames} == {(64, 64, 3)}


def test_reasons(tmp_path: Path) -> None:
    for name, picture, reason in (
        ("white.tif", tissue_picture(1024, 1024), Reason.NO_TISSUE),
        ("thin.tif", tissue_picture(2048, 1024, (0, 448, 2048, 576)), Reason.TOO_FEW_PATCHES),
    ):
        with pytest.raises(Unusable) as caught:
            list(read_frames(write_pyramid(tmp_path / name, picture), entry()))
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("reader: slide", "frames: 200"),
        ("reader: slide, frames: middle", "frames: 200"),
        ("reader: pillow, slide: {mpp: 0.5}", "expected reader slide"),
        ("reader: slide, frames: 9, modalities: SM", "modalities is for DICOM"),
        ("reader: slide, frames: 9, slide: {mpp: 25}", "mpp"),
        ("reader: slide, frames: 9, slide: {tissue: fat}", "biopsy"),
    ],
)
def test_the_catalogue_refuses(tmp_path: Path, keys: str, said: str) -> None:
    path = tmp_path / "catalogue.yaml"
    path.write_text(f"version: 1\ndata_sets:\n  s: {{folder: '.', {keys}}}\n", encoding="utf-8")
    with pytest.raises(CatalogueError, match=said):
        Catalogue.load(path)


def test_how_patches_are_cut_is_part_of_the_caches_definition() -> None:
    others = [entry(), entry(frames=5), entry(slide={"mpp": 0.25, "tissue": "biopsy"}), entry(slide={})]
    assert len({data_set.definition(64) for data_set in others}) == 4


def test_another_reader_does_not_show_a_slides_label(tmp_path: Path) -> None:
    """Aperio's label is a later page of the file, which the reader of pictures would have shown as an image."""
    content = io.BytesIO()
    tifffile.imwrite(content, PICTURE[:64, :64], photometric="rgb", description="Aperio Image Library v11")
    (tmp_path / "a.svs").write_bytes(content.getvalue())
    with pytest.raises(Unusable, match="reader: slide"):
        list(read_frames(tmp_path / "a.svs", DataSet(id="x", folder=tmp_path)))
