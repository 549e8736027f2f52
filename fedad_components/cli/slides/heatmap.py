"""``fedad slides heatmap``: where on slides a trained model looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedad_components.cli.messages import complain
from fedad_components.cli.slides.ending import NOTHING_USABLE, reported

EPILOG = (
    "Examples:\n\nfedad slides heatmap slides.csv --features features --model model.safetensors --out maps\n\n"
    "fedad slides heatmap slides.csv --features features --model model.safetensors --out maps "
    "--slide 0f2d94c1a7b35e68\n\n"
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
    with reported(out, "run the same command again"):
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


@contextmanager
def _bar(slides: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("slides"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("slides", total=slides)
        yield lambda done: progress.update(task, completed=done)
