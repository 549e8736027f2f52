"""``fedad slides prepare``: whole-slide images to features. Prints line numbers and pseudonyms, never a name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from fedad_components.cli.messages import complain
from fedad_components.cli.slides.ending import NOTHING_USABLE, fail, reported

if TYPE_CHECKING:
    from fedad_components.slides.account import SlideAccount

ROWS = 20
"""Slides that are left out and shown; all are in account.json."""
MAX_READERS = 16
EPILOG = (
    "Examples:\n\nfedad slides prepare slides.csv --out features --weights resnet50.pth --sha256 0676ba61...\n\n"
    "fedad slides prepare slides.csv --out features --encoder fedad --weights extractor.safetensors\n\n"
    "fedad slides prepare slides.csv --out features --weights resnet50.pth --sha256 0676ba61... --mpp 0.25 "
    "--preset biopsy\n\n"
    "Exit codes: 0 at least one slide is used; 1 none is; 2 the catalogue, the encoder or the folder cannot be used; "
    "130 interrupted: run it again to continue."
)


class Preset(str, Enum):
    """Names of the tissue presets, without importing scipy."""

    DEFAULT = "default"
    BIOPSY = "biopsy"
    RESECTION = "resection"


class Form(str, Enum):
    """Formats of the features' files."""

    SAFETENSORS = "safetensors"
    H5 = "h5"


def prepare(
    catalogue: Annotated[
        Path,
        typer.Argument(
            metavar="CATALOGUE", help="CSV: slide, slide_id, patient_id[, label, time, event, mpp].", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the features; an earlier run's is continued.")],
    encoder: Annotated[
        str, typer.Option(metavar="NAME", help="resnet50 (to its third block), fedad, torchvision:NAME or timm:NAME.")
    ] = "resnet50",
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The encoder's weights: safetensors, or PyTorch tensors.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="Digest of FILE, as its publisher tells it; fedad: optional.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="No file: random weights. To try the command only.")
    ] = False,
    preset: Annotated[Preset, typer.Option(help="How tissue is found.")] = Preset.DEFAULT,
    otsu: Annotated[bool, typer.Option("--otsu", help="Threshold of the saturation by Otsu's method.")] = False,
    min_area: Annotated[
        float | None,
        typer.Option(metavar="MM2", min=0.0, help="Smallest piece of tissue in mm²; default: the preset's."),
    ] = None,
    mpp: Annotated[
        float | None, typer.Option(metavar="MICRON", help="µm/px of slides that neither catalogue nor file tells.")
    ] = None,
    patch_size: Annotated[int, typer.Option(min=16, max=4096, help="Pixels of a patch's side.")] = 256,
    patch_mpp: Annotated[float, typer.Option(min=0.05, max=10.0, help="µm/px of the patches; 0.5 is 20x.")] = 0.5,
    tolerance: Annotated[float, typer.Option(min=0.0, max=0.5, help="A level this near to it is not resized.")] = 0.05,
    min_tissue: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of a patch that is tissue.")] = 0.5,
    min_patches: Annotated[int, typer.Option(min=1, help="Slides with fewer patches are left out.")] = 1,
    form: Annotated[Form, typer.Option("--format", help="Of the features' files.")] = Form.SAFETENSORS,
    batch_size: Annotated[int, typer.Option(min=1, help="Patches encoded at once.")] = 64,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Threads that read patches; default: one for each CPU.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1 ...")] = "auto",
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Key of the pseudonyms; default: slide_ids.key beside CATALOGUE."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON instead of a table.")] = False,
) -> None:
    """Find the tissue of slides, cut it into patches, and store a feature vector of each.

    Every slide is used, or listed with its reason. Writes features,
    thumbnails with tissue and patches for review, bags.json and account.json;
    slides and patients have pseudonyms there. A killed run continues with
    the slide at which it stopped.
    """
    with reported(out, "run the same command again to continue"):
        import torch

        from fedad_components.fedsd.trainer import choose_device
        from fedad_components.slides.catalogue import load_catalogue
        from fedad_components.slides.encoder import load_encoder
        from fedad_components.slides.prepare import Settings
        from fedad_components.slides.prepare import prepare as prepare_slides
        from fedad_components.slides.reader import check_mpp, require_openslide

        require_openslide()
        settings = Settings(
            preset.value,
            otsu,
            min_area,
            check_mpp(mpp, "--mpp") if mpp is not None else None,
            patch_size,
            patch_mpp,
            tolerance,
            min_tissue,
            min_patches,
        )
        entries = load_catalogue(catalogue, key)
        try:
            loaded = load_encoder(encoder, weights, sha256, random_weights)
            with _bars(len(entries)) as progress:
                account = prepare_slides(
                    entries,
                    out,
                    loaded,
                    settings,
                    device=choose_device(device),
                    form=form.value,
                    batch_size=batch_size,
                    workers=workers or min(len(os.sched_getaffinity(0)), MAX_READERS),
                    progress=progress,
                )
        except torch.cuda.OutOfMemoryError:
            fail(f"the GPU's memory does not hold {batch_size} patches: expected a smaller --batch-size")
    if as_json:
        print(json.dumps(account.to_json(), indent=2))
    else:
        _print(account, out)
    if not account.used:
        complain("no slide can be used: see the reasons above", "refused")
        raise typer.Exit(NOTHING_USABLE)


def _print(account: SlideAccount, out: Path) -> None:
    from fedad_components.imaging.account import MEANING

    console = Console(highlight=False, markup=False)
    table = Table("outcome", Column("slides", justify="right"), "meaning", title="Slides", title_justify="left")
    patches = sum(record.patches for record in account.used)
    resumed = sum(record.resumed for record in account.used)
    table.add_row("used", str(len(account.used)), f"{patches:,} patches; {resumed} slides were prepared before")
    for reason, count in account.rejected.items():
        table.add_row(str(reason), str(count), MEANING[reason])
    table.add_section()
    without = f"{account.patients} patients; {account.patients_without} more without a usable slide"
    table.add_row("all", str(len(account.records)), without)
    console.print(table)
    if account.left_out:
        listed = Table(
            Column("line", justify="right"), "slide", "reason", "what to do", box=SIMPLE_HEAD, pad_edge=False
        )
        for record in account.left_out[:ROWS]:
            listed.add_row(str(record.line), record.slide, str(record.reason), record.detail)
        console.print("Left out, by line of the catalogue:")
        console.print(listed)
        if len(account.left_out) > ROWS:
            console.print(f"and {len(account.left_out) - ROWS} more: see account.json")
    if account.encoder["random_weights"]:
        complain("the encoder's weights are random: these features are for a trial of the command only", "RANDOM")
    console.print(f"Look at {out / 'thumbnails'}; the whole account: {out / 'account.json'}", soft_wrap=True)


@contextmanager
def _bars(slides: int) -> Iterator[Callable[[int, int, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        all_slides = progress.add_task("slides", total=slides)
        one_slide = progress.add_task("patches of this slide", total=None)

        def update(slides_done: int, total: int, patches_done: int, patches: int) -> None:
            progress.update(all_slides, completed=slides_done, total=total)
            progress.update(one_slide, completed=patches_done, total=patches or None)

        yield update
