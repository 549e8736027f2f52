"""``fedad slides``: whole-slide images to features, and what a model of HistoFL makes of them."""

from __future__ import annotations

import typer

from fedad_components.cli.slides import evaluate, heatmap, prepare, report

app = typer.Typer(help="Prepare whole-slide images, and look at what a model makes of them.", no_args_is_help=True)
app.command(name="prepare", epilog=prepare.EPILOG)(prepare.prepare)
app.command(name="heatmap", epilog=heatmap.EPILOG)(heatmap.heatmap)
app.command(name="evaluate", epilog=evaluate.EPILOG)(evaluate.evaluate)
app.command(name="report", epilog=report.EPILOG)(report.report)
