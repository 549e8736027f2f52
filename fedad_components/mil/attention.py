"""From prepared features, a trained model and the slides themselves to heatmaps: ``fedad slides heatmap``. No FLARE.

``OUT/<pseudonym>.heatmap.png``, ``OUT/<pseudonym>.patches.png``, ``OUT/scores.csv`` and ``OUT/report.html``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.files import make_private_dir, replacing, write_atomic
from fedad_components.imaging.account import Unusable
from fedad_components.mil.heatmap import COLUMNS, Scored, heatmap_png, patches_png, score_lines, top_rows
from fedad_components.mil.report import Report, SlideView, write_report
from fedad_components.mil.state import SavedModel
from fedad_components.slides.bags import ListedEncoder, SlideBag, load_bags, prepared_slides
from fedad_components.slides.catalogue import load_catalogue
from fedad_components.slides.patches import plan_patches, read_patch
from fedad_components.slides.reader import Pixels, Slide, SlidesError, open_slide
from fedad_components.slides.thumbnail import render_overview

MOST_SHOWN = 20
"""Slides in the report, which holds their pictures; of all of them there are files."""
SHOWN_SIDE = 224
"""Pixels of a patch's side on the sheet, at most."""


class HeatmapError(SlidesError):
    """Slide, features and model do not fit together; the message says what was expected, and names no file."""


class Prepared(BaseModel):
    """What of a slide's metadata is needed to draw on it: lengths in pixels of level 0 and µm/px."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    encoder: ListedEncoder
    slide_mpp: Annotated[float, Field(gt=0.0)]
    slide_size: Annotated[list[int], Field(min_length=2, max_length=2)]
    patch_size: Annotated[int, Field(gt=0)]
    patch_mpp: Annotated[float, Field(gt=0.0)]
    footprint: Annotated[float, Field(gt=0.0)]


@dataclass
class Drawn:
    """What became of the slides, by pseudonym."""

    slides: list[str] = field(default_factory=list)
    left_out: dict[str, Unusable] = field(default_factory=dict)


def slides_to_draw(
    slides: Path, features: str | Path, wanted: str | None = None, key: Path | None = None
) -> dict[str, Path]:
    """Pseudonym to file of the slides that have features.

    Args:
        slides: a catalogue (``.csv``), or one slide.
        features: a folder that ``fedad slides prepare`` wrote.
        wanted: pseudonym of the only slide to draw.
        key: of the pseudonyms, where it is not beside the catalogue.

    Raises:
        SlidesError: if catalogue or folder cannot be read.
        HeatmapError: if no slide, or not the one wanted, has features there; if one file is given for several slides.
    """
    prepared = prepared_slides(features)
    if wanted is not None and wanted not in prepared:
        raise HeatmapError(
            f"slide {wanted}: not in the folder of features: expected a pseudonym that its bags.json lists; "
            f"account.json says what became of every slide"
        )
    if slides.suffix.lower() != ".csv":
        if wanted is None and len(prepared) != 1:
            raise HeatmapError(
                f"the folder has features of {len(prepared)} slides: name the one that this is by --slide"
            )
        return {wanted or prepared[0]: slides}
    files = {entry.slide: entry.path for entry in load_catalogue(slides, key)}
    found = {name: files[name] for name in prepared if name in files and wanted in (None, name)}
    if not found:
        raise HeatmapError(
            f"{f'slide {wanted}' if wanted else 'the prepared slides'}: not in the catalogue: expected the one that "
            f"was prepared, and its key (--key)"
        )
    return found


def score_bag(bag: SlideBag, model: SavedModel, device: torch.device | str = "cpu") -> Scored:
    """Attention of a slide's patches, and what the model predicts of it.

    Raises:
        HeatmapError: if the features are of no slide, of another length or another encoder than the model's, or not
            finite.
    """
    prepared = _prepared(bag)
    width = bag.features.shape[1]
    made_by = prepared.encoder
    if width != model.in_features:
        raise HeatmapError(
            f"slide {bag.slide}: {width} features a patch, by encoder {made_by.name!r}; the model expects "
            f"{model.in_features}: prepare the slides with the encoder that it was trained with"
        )
    if model.encoder_sha256 not in (None, made_by.weights_sha256):
        raise HeatmapError(
            f"slide {bag.slide}: its features are of the encoder {made_by.name!r} with weights of SHA-256 "
            f"{made_by.weights_sha256}; the model expects {model.encoder_sha256}: prepare the slides with that one"
        )
    with torch.inference_mode():
        logits, attention = model.module.to(device)(torch.from_numpy(bag.features).to(device))
    if not (bool(attention.isfinite().all()) and bool(logits.isfinite().all())):
        raise HeatmapError(f"slide {bag.slide}: the model gives no finite attention: look for features that are not")
    return Scored(
        bag.slide,
        bag.coordinates,
        prepared.footprint,
        prepared.slide_mpp,
        attention.double().cpu().numpy(),
        model.describe(logits.cpu()),
    )


def _prepared(bag: SlideBag) -> Prepared:
    try:
        return Prepared.model_validate(bag.metadata)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise HeatmapError(
            f"bag {bag.slide}: its file has no usable {place}: of another origin than 'fedad slides prepare', there is "
            f"no slide to draw on; else prepare it again"
        ) from None


def draw(slide: Slide, bag: SlideBag, scored: Scored, top: int) -> SlideView:
    """Heatmap and sheet of the ``top`` most attended patches.

    Raises:
        HeatmapError: if the slide is not the one that the features are of.
        Unusable: if it is damaged.
    """
    prepared = _prepared(bag)
    if list(slide.size) != prepared.slide_size:
        width, height = prepared.slide_size
        raise HeatmapError(
            f"slide {bag.slide}: its features are of a slide of {width} x {height} pixels, this one has "
            f"{slide.size[0]} x {slide.size[1]}: expected the same slide; see --slide"
        )
    view = render_overview(slide)
    heatmap = heatmap_png(np.asarray(view.image), view.scale, scored)
    # The level and the size of the patches themselves, which had the tolerance of their own time.
    plan = plan_patches(slide, scored.mpp, prepared.patch_size, prepared.patch_mpp, tolerance=0.0)
    rows = top_rows(scored.attention, top)
    patches = [_shown(read_patch(slide, plan, bag.coordinates[row])) for row in rows]
    sheet = patches_png(patches, rows, scored)
    return SlideView(bag.slide, scored.prediction, len(scored.attention), heatmap, sheet)


def write_heatmaps(
    slides: Mapping[str, Path],
    features: str | Path,
    model: SavedModel,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    top: int = 12,
    progress: Callable[[int], None] | None = None,
) -> Drawn:
    """Heatmaps of slides, all their scores as one table, and a report of the first :data:`MOST_SHOWN`.

    Args:
        slides: pseudonym to file; each has features in the folder.
        features: a folder that ``fedad slides prepare`` wrote.
        top: patches on a slide's sheet.
        progress: called with the number of slides done.

    Raises:
        SlidesError: if the folder of features is damaged.
        HeatmapError: if slides, features and model do not fit together.
        OSError: if ``out`` cannot be written.
    """
    out = make_private_dir(out)
    drawn, shown = Drawn(), list[SlideView]()
    with replacing(out / "scores.csv") as scores:
        scores.write((",".join(COLUMNS) + "\n").encode("ascii"))
        for number, bag in enumerate(load_bags(features, slides)):
            if progress is not None:
                progress(number)
            scored = score_bag(bag, model, device)
            try:
                with open_slide(slides[bag.slide]) as slide:
                    view = draw(slide, bag, scored, top)
            except Unusable as problem:
                drawn.left_out[bag.slide] = problem
                continue
            write_atomic(out / f"{bag.slide}.heatmap.png", view.heatmap)
            write_atomic(out / f"{bag.slide}.patches.png", view.patches)
            scores.writelines(line.encode("ascii") for line in score_lines(scored))
            drawn.slides.append(bag.slide)
            if len(shown) < MOST_SHOWN:
                shown.append(view)
    more = len(drawn.slides) - len(shown)
    notes = [f"{more} more slides have their pictures in the folder of this report."] if more else []
    write_report(Report("Attention on slides", notes=notes, slides=shown), out / "report.html")
    return drawn


def _shown(patch: Pixels) -> Pixels:
    if len(patch) <= SHOWN_SIDE:
        return patch
    return np.asarray(Image.fromarray(patch).resize((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.BICUBIC))
