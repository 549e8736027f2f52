"""``fedad slides``: whole-slide images to features. Prints line numbers and pseudonyms, never a name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.slides.account import SlideAccount

app = typer.Typer(help="Prepare whole-slide images.", no_args_is_help=True)

NOTHING_USABLE, UNUSABLE, INTERRUPTED = 1, 2, 130
ROWS = 20
"""Slides that are left out and shown; all are in account.json."""
MAX_READERS = 16


class Preset(str, Enum):
    """Names of the tissue presets, without importing scipy."""

    DEFAULT = "default"
    BIOPSY = "biopsy"
    RESECTION = "resection"


class Form(str, Enum):
    """Formats of the features' files."""

    SAFETENSORS = "safetensors"
    H5 = "h5"


@app.command(
    epilog="Examples:  fedad slides prepare slides.csv --out features --weights resnet50.pth --sha256 0676ba61...  |  "
    "fedad slides prepare slides.csv --out features --encoder fedad --weights extractor.safetensors  |  "
    "fedad slides prepare slides.csv --out features --weights resnet50.pth --sha256 0676ba61... --mpp 0.25 "
    "--preset biopsy\n\n"
    "Exit codes: 0 at least one slide is used; 1 none is; 2 the catalogue, the encoder or the folder cannot be used; "
    "130 interrupted: run it again to continue."
)
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
        float | None, typer.Option(metavar="MICRON", help="µm/px of slides whose line in the catalogue gives none.")
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
    with _reported(out, "run the same command again to continue"):
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
            _fail(f"the GPU's memory does not hold {batch_size} patches: expected a smaller --batch-size")
    if as_json:
        print(json.dumps(account.to_json(), indent=2))
    else:
        _print(account, out)
    if not account.used:
        complain("no slide can be used: see the reasons above", "refused")
        raise typer.Exit(NOTHING_USABLE)


@app.command(
    epilog="Examples:  fedad slides heatmap slides.csv --features features --model model.safetensors --out maps  |  "
    "fedad slides heatmap slides.csv --features features --model model.safetensors --out maps "
    "--slide 0f2d94c1a7b35e68  |  "
    "fedad slides heatmap 0001.svs --features features --model model.safetensors --out maps\n\n"
    "Exit codes: 0 every slide is drawn; 1 some cannot be read; 2 slides, features and model do not fit together; "
    "130 interrupted."
)
def heatmap(
    slides: Annotated[
        Path,
        typer.Argument(
            metavar="SLIDE_OR_CATALOGUE",
            help="The catalogue (.csv) that features were prepared from, or one of its slides.",
            show_default=False,
        ),
    ],
    features: Annotated[Path, typer.Option(metavar="DIR", help="Folder that fedad slides prepare wrote.")],
    model: Annotated[Path, typer.Option(metavar="FILE", help="model.safetensors of a job of HistoFL.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the pictures, scores and report.")],
    slide: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Pseudonym of the one slide to draw; default: all of the catalogue's."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=60, help="Most attended patches on a slide's sheet.")] = 12,
    encoder_sha256: Annotated[
        str | None,
        typer.Option(
            metavar="HEX", help="Digest of the encoder's weights that the model was trained with, to compare."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1 ...")] = "auto",
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Key of the pseudonyms; default: slide_ids.key beside the catalogue."),
    ] = None,
) -> None:
    """Show where on slides a trained model looks, from their prepared features.

    Writes an overlay with the percentile of each patch's attention, a sheet of
    the most attended patches, scores.csv and report.html; slides have their
    pseudonyms there.
    """
    with _reported(out, "run the same command again"):
        from dataclasses import replace

        from fedad_components.fedsd.trainer import choose_device
        from fedad_components.mil.attention import slides_to_draw, write_heatmaps
        from fedad_components.mil.state import load_bag_model
        from fedad_components.slides.reader import require_openslide

        require_openslide()
        loaded = load_bag_model(model)
        if encoder_sha256 is not None:
            loaded = replace(loaded, encoder_sha256=encoder_sha256.strip().lower())
        wanted = slides_to_draw(slides, features, slide, key)
        with _bar(len(wanted)) as progress:
            drawn = write_heatmaps(
                wanted, features, loaded, out, device=choose_device(device), top=top, progress=progress
            )
    for name, problem in drawn.left_out.items():
        complain(f"{name}: {problem}", "left out")
    Console(highlight=False, markup=False).print(
        f"{len(drawn.slides)} of {len(wanted)} slides; look at {out / 'report.html'}", soft_wrap=True
    )
    if drawn.left_out:
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
    table.add_row("all", str(len(account.records)), f"{account.patients} patients; {account.patients_without} without")
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


@contextmanager
def _bar(slides: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("slides"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("slides", total=slides)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _reported(out: Path, again: str) -> Iterator[None]:
    """Ends the command with a message where what it was given cannot be used, or somebody interrupts it."""
    try:
        from fedad_components.fedsd.state import StateError
        from fedad_components.fedsd.trainer import TrainingError
        from fedad_components.files import LockedError
        from fedad_components.slides.reader import SlidesError

        try:
            yield
        except (SlidesError, StateError, TrainingError, LockedError) as error:
            _fail(error)
        except OSError as error:
            _fail(f"{out}: {error.strerror}: expected a folder that this user may write, and space")
    except KeyboardInterrupt:
        complain(again, "interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _fail(message: object) -> NoReturn:
    complain(message)
    raise typer.Exit(UNUSABLE)
