"""`fedad job`: write the job's folder that FLARE's console submits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedad_components.cli.config import ConfigFile, Settings, read_config
from fedad_components.cli.messages import complain

app = typer.Typer(no_args_is_help=True, help="Write the job that an operator submits.")

_console = Console()


@app.callback()
def _group() -> None:
    """Keep ``export`` a subcommand while it is the only one."""


@app.command(
    epilog="Examples:\n\n"
    "fedad job export --out jobs --set federation.data_set=chest-xray --set federation.rounds=40\n\n"
    "fedad job export --out jobs --set algorithm=histofl --set target.kind=survival"
)
def export(
    out: Annotated[Path, typer.Option(help="Folder in which the job's folder is made.")] = Path("jobs"),
    name: Annotated[
        str | None,
        typer.Option(
            help="FLARE's name of the job, and the name of its folder.", show_default="fedad_job, histofl_job"
        ),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    tracking: Annotated[
        Literal["tensorboard", "mlflow"] | None,
        typer.Option(help="Where the server also writes each round's numbers, in the job's run folder; default: none."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a job's folder that exists.")] = False,
) -> None:
    """Write OUT/NAME: JSON files only, no code. Submit it with submit_job in FLARE's console."""
    parsed = read_config(config, settings)
    from fedad_components.algorithms import name_of
    from fedad_components.flare.recipe import RECIPES, export_job

    name = name or f"{name_of(parsed)}_job"
    target = out / name
    if target.exists() and not force:
        complain(f"{target} exists: use --force, or another --out or --name")
        raise typer.Exit(1)
    try:
        export_job(RECIPES[name_of(parsed)](parsed, name=name, tracking=tracking), out)
    except (ValueError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    _console.print(
        f"{target}\nexperiment {parsed.federation.experiment}, data set {parsed.federation.data_set}, "
        f"{parsed.federation.rounds} rounds, configuration {parsed.digest()[:12]}…\n"
        f"Next, in FLARE's console:  submit_job {target.resolve()}",
        highlight=False,
        soft_wrap=True,
    )
