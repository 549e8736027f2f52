"""The command ``fedad``: one thin module a group; heavy imports happen inside the commands, so that help is instant."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fedad_components import __version__
from fedad_components.cli import (
    audit,
    benchmark,
    config,
    data,
    datasets,
    demo,
    diagnose,
    egress,
    export,
    figures,
    job,
    privacy,
    probe,
    provision,
    site,
    slides,
)

app = typer.Typer(
    name="fedad",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Federated pre-training of medical-image encoders on NVIDIA FLARE.\n\n"
    "See it run on this machine, with real processes and mutual TLS:  [bold]fedad demo --out demo-out[/]",
)
app.command(name="demo", epilog=demo.EPILOG)(demo.demo)
app.command(name="probe", epilog=probe.EPILOG)(probe.probe)
app.command(name="diagnose", epilog=diagnose.EPILOG)(diagnose.diagnose)
app.command(name="figures", epilog=figures.EPILOG)(figures.figures)
app.add_typer(audit.app, name="audit")
app.add_typer(benchmark.app, name="benchmark")
app.add_typer(data.app, name="data")
app.add_typer(datasets.app, name="dataset")
app.add_typer(job.app, name="job")
app.add_typer(export.app, name="export")
app.add_typer(egress.app, name="egress")
app.add_typer(config.app, name="config")
app.add_typer(privacy.app, name="privacy")
app.add_typer(provision.app, name="provision")
app.add_typer(site.app, name="site")
app.add_typer(slides.app, name="slides")


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"fedad {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Entry point of the command."""
    app()
