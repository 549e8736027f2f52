"""`fedad figures`: the paper's figures from logged runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedad_components.cli.messages import complain

EPILOG = (
    "Examples:\n\nfedad figures bench --out figures\n\n"
    "fedad figures bench/runs/fedad bench/runs/moon --out curves\n\n"
    "fedad figures bench --target chulalongkorn --protocol source --protocol target --out figures\n\n"
    "Exit codes: 0 what the data suffice for is drawn; 1 there are no runs, or a file cannot be used."
)


def figures(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Folders in or below which runs are: each with rounds.jsonl and config.json, and if they are there "
            "evaluation.json and results.json.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where pictures and their data are written.")],
    metric: Annotated[
        Literal["f1", "balanced_accuracy", "accuracy", "auc", "precision", "recall"],
        typer.Option(help="Score of the sweep over gamma and of the bars."),
    ] = "f1",
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", help="Only what was tested on it; may be repeated.", show_default="all"),
    ] = None,
    protocols: Annotated[
        list[str] | None,
        typer.Option("--protocol", help="Only what was tested by it; may be repeated.", show_default="all"),
    ] = None,
) -> None:
    """Draw the paper's Figures 6 to 15, as SVG and PNG, each with its data as CSV.

    Runs that differ in their seed only are one line. A figure whose data
    are missing is listed with the reason.
    """
    from fedad_components.benchmark.figures import draw_all
    from fedad_components.benchmark.logged import RunsError, narrowed, read_rows, read_runs
    from fedad_components.benchmark.results import ResultsError
    from fedad_components.config import ConfigError
    from fedad_components.records import RecordsError

    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        chosen = narrowed(read_runs(runs), read_rows(runs), targets or (), protocols or ())
        drawn = draw_all(*chosen, out, metric)
    except (ConfigError, RecordsError, ResultsError, RunsError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    for name, paths in drawn.files.items():
        console.print(f"{name}: {', '.join(path.suffix[1:] for path in paths)}")
    for name, reason in drawn.missing.items():
        console.print(f"{name}: not drawn, {reason}")
    console.print(f"In {out}")
