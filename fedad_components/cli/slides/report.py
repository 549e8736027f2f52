"""``fedad slides report``: the sites' evaluations, added up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.slides.ending import reported

EPILOG = (
    "Examples:\n\nfedad slides report hospital-a.json hospital-b.json --out report.html\n\n"
    "fedad slides report seed-*/hospital-*.json --out report.html --unit days --heatmaps maps\n\n"
    "Exit codes: 0 written; 2 a file cannot be used, or they do not go together; 130 interrupted."
)


def report(
    evaluations: Annotated[
        list[Path],
        typer.Argument(metavar="EVAL.json...", help="What fedad slides evaluate wrote: a site, a seed each."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page, one file that needs no other.")],
    unit: Annotated[str, typer.Option(metavar="WORD", help="Survival: unit of the sites' times.")] = "months",
    title: Annotated[str, typer.Option(metavar="TEXT", help="Of the page.")] = "HistoFL on the sites' test patients",
    heatmaps: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of fedad slides heatmap, whose pictures the page is to show."),
    ] = None,
) -> None:
    """Add up the sites' counts: a table by site, ROC and confusion, or survival by predicted risk.

    Several seeds of a site give mean and standard deviation.
    """
    with reported(out, "run the same command again"):
        from fedad_components.mil.evaluate import table
        from fedad_components.mil.report import write_report
        from fedad_components.mil.site_report import report_of

        page = report_of(evaluations, title=title, unit=unit, heatmaps=heatmaps)
        write_report(page, out)
        rows = table(page.classified or page.survived)
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    shown = Table("method", "site", *(Column(name, justify="right") for name in ("seeds", "patients", *names)))
    for row in rows:
        scores = [str(row.scores.get(name) or "–") for name in names]
        shown.add_row(row.method, row.site, str(row.seeds), f"{row.patients:.4g}", *scores)
    console = Console(highlight=False, markup=False)
    console.print(shown)
    console.print(f"Look at {out}", soft_wrap=True)
