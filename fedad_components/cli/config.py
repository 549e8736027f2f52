"""`fedad config`: what can be set, what a file sets, and whether it is valid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedad_components.cli.messages import complain

app = typer.Typer(no_args_is_help=True, help="Show and check experiment configurations.")

_console = Console()

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="JSON file with the settings that differ from the defaults.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting, over the file; may be repeated. VALUE is JSON or a bare word; text of digits is '\"2027\"'.",
    ),
]


def read_config(path: Path | None, settings: list[str] | None, algorithm: str | None = None) -> Any:
    """The configuration of a file and of ``--set`` options; ends the command with the reason if it is not valid.

    ``algorithm``: the only one that the command can work with.
    """
    from fedad_components.algorithms import name_of, parse_config
    from fedad_components.config import ConfigError, read_settings
    from fedad_components.settings import apply_settings

    try:
        data = read_settings(path) if path else {}
        parsed = parse_config(apply_settings(data, settings or []))
        if algorithm is not None and name_of(parsed) != algorithm:
            raise ConfigError(f"algorithm {name_of(parsed)!r}: this command works with {algorithm!r} alone")
        return parsed
    except ConfigError as error:
        complain(error)
        raise typer.Exit(1) from None


@app.command(epilog="Example:  fedad config show --set training.epochs=1 --set loss.gamma=0")
def show(config: ConfigFile = None, settings: Settings = None) -> None:
    """Print the whole configuration as JSON, every default written out, and check it."""
    _console.print_json(data=read_config(config, settings).to_json())


@app.command(epilog="Example:  fedad config digest --config experiment.json")
def digest(config: ConfigFile = None, settings: Settings = None) -> None:
    """Print the SHA-256 that server and sites compare in every round."""
    _console.print(read_config(config, settings).digest(), highlight=False)


@app.command(epilog="Example:  fedad config docs > docs/configuration.md")
def docs() -> None:
    """Print the reference of all settings as Markdown (docs/configuration.md)."""
    from fedad_components.config_docs import render_markdown

    typer.echo(render_markdown(), nl=False)
