"""From a catalogue of slides to a folder of features; a killed run continues with the slide at which it stopped.

``OUT/slides/<pseudonym>.safetensors`` (or ``.h5``), ``OUT/thumbnails/<pseudonym>.png``, ``OUT/bags.json`` and
``OUT/account.json``. Needs torch; no FLARE.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedad_components.fedsd.trainer import uses_bf16
from fedad_components.files import FileLock, make_private_dir, sha256_of, write_atomic
from fedad_components.imaging.account import Reason, Unusable
from fedad_components.slides.account import SlideAccount, SlideRecord
from fedad_components.slides.bags import write_index
from fedad_components.slides.catalogue import SlideEntry
from fedad_components.slides.encoder import Encoder
from fedad_components.slides.features import slide_features
from fedad_components.slides.patches import (
    MIN_TISSUE,
    PATCH_SIZE,
    TARGET_MPP,
    TOLERANCE,
    PatchPlan,
    place_patches,
    plan_patches,
)
from fedad_components.slides.reader import Resolution, Slide, SlidesError, open_slide, require_openslide, resolution
from fedad_components.slides.store import StoredFeatures, read_features, require_h5py, write_features
from fedad_components.slides.thumbnail import draw_review, render_overview
from fedad_components.slides.tissue import PRESETS, Preset, Tissue, find_tissue

FORMAT = 1
"""Raised when the same slide and settings give other features."""

Progress = Callable[[int, int, int, int], None]
"""Called with the slides done, all slides, the current slide's patches done, and all its patches."""


@dataclass(frozen=True)
class Settings:
    """What decides about the patches. Lengths in µm/px and pixels, as :mod:`~fedad_components.slides.patches` has them.

    Raises:
        SlidesError: if a value is out of range.
    """

    preset: str = "default"
    otsu: bool = False
    min_area: float | None = None
    """mm² of the smallest piece of tissue, in place of the preset's."""
    mpp: float | None = None
    """µm/px of every slide of which neither the catalogue nor the file tells it."""
    side: int = PATCH_SIZE
    target_mpp: float = TARGET_MPP
    tolerance: float = TOLERANCE
    min_tissue: float = MIN_TISSUE
    min_patches: int = 1

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise SlidesError(f"preset {self.preset!r}: expected one of {', '.join(PRESETS)}")
        if not 0 < self.min_tissue <= 1:
            raise SlidesError(f"min_tissue = {self.min_tissue:g}: expected a share above 0, at most 1")
        if not 0 <= self.tolerance < 1:
            raise SlidesError(f"tolerance = {self.tolerance:g}: expected a share from 0 to below 1")
        if self.min_area is not None and not 0 <= self.min_area < float("inf"):
            raise SlidesError(f"min_area = {self.min_area:g}: expected mm², 0 or more")
        if self.side < 1 or self.min_patches < 1 or self.target_mpp <= 0:
            raise SlidesError("side, min_patches and target_mpp: expected numbers above 0")

    @property
    def tissue(self) -> Preset:
        """The preset, with the area asked for."""
        preset = PRESETS[self.preset]
        return preset if self.min_area is None else preset._replace(min_area=self.min_area)


def prepare(
    entries: Sequence[SlideEntry],
    out: str | Path,
    encoder: Encoder,
    settings: Settings,
    *,
    device: torch.device,
    form: str = "safetensors",
    batch_size: int = 64,
    workers: int = 1,
    progress: Progress | None = None,
) -> SlideAccount:
    """Prepare every slide, and account for it.

    A slide whose file, settings and encoder are those of an earlier run keeps its features. The folder and its files
    are private to their owner.

    Args:
        form: ``safetensors`` or ``h5``.
        workers: threads that read patches.

    Raises:
        SlidesError: if OpenSlide, or h5py where it is needed, is missing, or the encoder gives no vectors.
        LockedError: if another run writes to the folder.
        OSError: if the folder cannot be written.
    """
    require_openslide()
    if form == "h5":
        require_h5py()
    out = Path(out)
    for folder in (out, out / "slides", out / "thumbnails"):
        make_private_dir(folder)
    lock = FileLock(out / "slides" / "lock")
    lock.acquire()
    try:
        encoder.module.to(device).to(memory_format=torch.channels_last)
        run = _Run(out, encoder, settings, device, form, batch_size, workers)
        records = []
        used = []
        for number, entry in enumerate(entries):
            report = partial(progress or _ignore, number, len(entries))
            report(0, 0)
            try:
                records.append(run.slide(entry, report))
                used.append((entry, run.file(entry)))
            except Unusable as problem:
                records.append(SlideRecord(entry.line, entry.slide, entry.patient, problem.reason, problem.detail))
        account = SlideAccount(records, asdict(settings), encoder.to_json())
        write_index(out, used, account.encoder)
        write_atomic(out / "account.json", json.dumps(account.to_json(), indent=1).encode("ascii"))
        return account
    finally:
        lock.release()


def _ignore(slides_done: int, slides: int, patches_done: int, patches: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class _Run:
    """What all slides of a run have in common."""

    out: Path
    encoder: Encoder
    settings: Settings
    device: torch.device
    form: str
    batch_size: int
    workers: int

    def file(self, entry: SlideEntry) -> Path:
        return self.out / "slides" / f"{entry.slide}.{self.form}"

    def slide(self, entry: SlideEntry, report: Callable[[int, int], None]) -> SlideRecord:
        """Features and thumbnail of one slide.

        Raises:
            Unusable: with the reason why it is left out.
        """
        settings = self.settings
        with open_slide(entry.path) as slide:
            found = resolution(slide, entry.mpp, settings.mpp)
            bf16 = uses_bf16("auto", self.device)
            key = self._key(entry.path, found, bf16)
            thumbnail = self.out / "thumbnails" / f"{entry.slide}.png"
            if (kept := self._kept(entry, key)) is not None and thumbnail.is_file():
                return self._record(entry, found, len(kept.coordinates), resumed=True)
            tissue = find_tissue(slide, found.mpp, settings.tissue, settings.otsu)
            plan = plan_patches(slide, found.mpp, settings.side, settings.target_mpp, settings.tolerance)
            coordinates = place_patches(slide.size, plan, tissue.mask, settings.min_tissue)
            write_atomic(thumbnail, draw_review(render_overview(slide), tissue.mask, plan, coordinates))
            self._check(tissue, len(coordinates))
            features = slide_features(
                slide,
                plan,
                coordinates,
                self.encoder,
                self.device,
                bf16=bf16,
                batch_size=self.batch_size,
                workers=self.workers,
                done=lambda done: report(done, len(coordinates)),
            )
            metadata = self._metadata(entry, slide, found, plan, features.shape, key)
        write_features(self.file(entry), StoredFeatures(features, coordinates, metadata))
        return self._record(entry, found, len(coordinates))

    def _check(self, tissue: Tissue, patches: int) -> None:
        if not tissue.mask.any():
            raise Unusable(
                Reason.NO_TISSUE,
                f"no piece of {self.settings.tissue.min_area:g} mm² or more: see its thumbnail, try another --preset, "
                f"--min-area or --otsu",
            )
        if patches < self.settings.min_patches:
            raise Unusable(
                Reason.TOO_FEW_PATCHES,
                f"{patches} with at least {self.settings.min_tissue:.0%} tissue: expected {self.settings.min_patches} "
                f"or more; see its thumbnail, --min-tissue and --min-patches",
            )

    def _kept(self, entry: SlideEntry, key: str) -> StoredFeatures | None:
        if not self.file(entry).is_file():
            return None
        try:
            stored = read_features(self.file(entry))
        except SlidesError:
            return None
        return stored if stored.metadata.get("key") == key else None

    def _key(self, path: Path, found: Resolution, bf16: bool) -> str:
        """SHA-256 of all that the features depend on."""
        try:
            digest = sha256_of(path)
        except OSError as error:
            raise Unusable(Reason.UNREADABLE, f"{error.strerror} while its digest was taken: copy it again") from None
        cut = asdict(self.settings) | {"mpp": found.mpp}
        content = {
            "format": FORMAT,
            "slide": digest,
            "settings": cut,
            "tissue": self.settings.tissue,
            "encoder": self.encoder.to_json(),
            "bf16": bf16,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()

    def _metadata(
        self, entry: SlideEntry, slide: Slide, found: Resolution, plan: PatchPlan, shape: tuple[int, ...], key: str
    ) -> dict[str, Any]:
        return {
            "slide": entry.slide,
            "key": key,
            "encoder": self.encoder.to_json(),
            "slide_mpp": found.mpp,
            "slide_mpp_source": found.source,
            "slide_size": list(slide.size),
            "patch_mpp": plan.mpp,
            "patch_size": plan.side,
            "footprint": plan.footprint,
            "patches": shape[0],
            "features": shape[1],
        }

    def _record(self, entry: SlideEntry, found: Resolution, patches: int, resumed: bool = False) -> SlideRecord:
        return SlideRecord(
            entry.line,
            entry.slide,
            entry.patient,
            patches=patches,
            mpp=found.mpp,
            mpp_source=found.source,
            resumed=resumed,
        )
