"""``fedad dataset``: check and prepare the paper's public data sets; what its experiment costs. Prints counts only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.datasets import Cost, Prepared

app = typer.Typer(no_args_is_help=True, help="Check and prepare the paper's public data sets; estimate its cost.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]

_console = Console()


@app.command(name="list", epilog="Example:  fedad dataset list --json")
def list_command(as_json: Json = False) -> None:
    """The data sets: what they are, their licence, and how one gets them. Nothing is downloaded."""
    from fedad_components.datasets import SPECS

    if as_json:
        keys = {"name", "title", "role", "url", "licence", "access", "note"}
        rows = [spec.model_dump(include=keys) | {"images": str(spec.images)} for spec in SPECS.values()]
        print(json.dumps({"data_sets": rows}, indent=2))
        return
    table = Table("name", "title", "role", Column("images", justify="right"), "access")
    for spec in SPECS.values():
        table.add_row(spec.name, spec.title, spec.role, str(spec.images), spec.access)
    _console.print(table)
    for spec in SPECS.values():
        _say(f"\n{spec.name}: {spec.url}\n  Licence: {spec.licence}.\n  {spec.note}")


@app.command(
    epilog="Example:  fedad dataset prepare ham10000 --from downloads/ham10000 --out prepared/ham10000\n\n"
    "Exit codes: 0 prepared; 1 the download is not what was published, or cannot be read or written."
)
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those that `fedad dataset list` prints.")],
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Folder as downloaded and unpacked.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the catalogue, its lists and tables.")],
    data_set: Annotated[
        str, typer.Option("--id", help="Data-set id for training, as jobs name it in federation.data_set.")
    ] = "images",
    partial: Annotated[bool, typer.Option("--partial", help="Accept a subset of the published images.")] = False,
    as_json: Json = False,
) -> None:
    """Verify a download's names, columns and counts, split it by patient, and write a catalogue for it.

    The images stay where they are, except patches in HDF5, which are written
    out as PNG.
    """
    from fedad_components.config import ConfigError, check_name
    from fedad_components.datasets import SPECS, PrepareError
    from fedad_components.datasets import prepare as prepare_data_set
    from fedad_components.imaging.catalogue import CatalogueError

    if name not in SPECS:
        _fail(f"NAME = {name!r}: expected one of {', '.join(SPECS)}")
    try:
        check_name(data_set, "--id")
        with _bar(name) as progress:
            prepared = prepare_data_set(SPECS[name], source, out, data_set=data_set, partial=partial, progress=progress)
    except (CatalogueError, ConfigError, PrepareError) as error:
        _fail(error)
    except OSError as error:
        _fail(f"{error.filename or out}: {error.strerror}")
    if prepared.partial:
        complain(
            f"{prepared.images:,} of the {prepared.spec.images} published images: no figure from it can be compared "
            f"with one from the whole data set",
            "PARTIAL",
        )
    if as_json:
        print(json.dumps(prepared.to_json(), indent=2))
    else:
        _print_prepared(prepared)


@app.command(
    epilog="Examples:\n\nfedad dataset cost --step-ms 212.5 --json\n\nfedad dataset cost --site a=12000 --site b=8000 "
    "--sites-per-round 2\n\nExit codes: 0 estimated; 1 a value cannot be used."
)
def cost(
    step_ms: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Milliseconds of a step with its views at the batch and image size, as benchmarks/step_cost.py "
            "measures them on your GPU. Without: an assumption, not a measurement.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Configuration in JSON; without: the defaults.")
    ] = None,
    sites_per_round: Annotated[
        int | None, typer.Option(min=1, help="Sites drawn in a round. Without --config: the paper's 4.")
    ] = None,
    site: Annotated[
        list[str] | None, typer.Option(metavar="NAME=IMAGES", help="A site and its images, instead of the paper's six.")
    ] = None,
    as_json: Json = False,
) -> None:
    """GPU hours and bytes on the wire of the paper's experiment, or of another configuration and other sites."""
    from fedad_components.config import ConfigError, FedADConfig
    from fedad_components.datasets.cost import PAPER_SITES_PER_ROUND, estimate, paper_sites

    try:
        images = dict(map(_site, site)) if site else paper_sites()
        if site and len(images) != len(site):
            raise ValueError("--site: expected each name once")
        config = FedADConfig.load(config_file) if config_file else FedADConfig()
        if sites_per_round is None and config_file is None and not site:
            sites_per_round = PAPER_SITES_PER_ROUND
        if sites_per_round is not None:
            federation = config.to_json()["federation"] | {"sites_per_round": sites_per_round}
            federation["min_sites"] = min(federation["min_sites"], sites_per_round)
            config = FedADConfig.parse(config.to_json() | {"federation": federation})
        figures = estimate(images, config, step_ms)
    except (ConfigError, ValueError) as error:
        _fail(error)
    if as_json:
        print(json.dumps(figures.to_json(), indent=2))
    else:
        _print_cost(figures)


def _site(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if not name or not count.isdecimal():
        raise ValueError(f"--site {text!r}: expected NAME=IMAGES, such as hospital-a=12000")
    return name, int(count)


def _print_prepared(prepared: Prepared) -> None:
    table = Table("data-set id", *(Column(name, justify="right") for name in ("images", "patients", "labelled")))
    for name, entry in prepared.entries.items():
        shown = [f"{count:,}" if count is not None else "-" for count in entry.values()]
        table.add_row(name, *shown)
    _console.print(table)
    _say(f"Licence: {prepared.spec.licence}")
    if prepared.spec.note:
        _say(prepared.spec.note)
    first = next(iter(prepared.entries))
    _say(f"Next: fedad data check {first} --catalogue {prepared.catalogue}")


def _print_cost(figures: Cost) -> None:
    table = Table("site", Column("images", justify="right"))
    for name, count in figures.images.items():
        table.add_row(name, f"{count:,}")
    _console.print(table)
    _say(
        f"{figures.rounds} rounds of {figures.sites_per_round} of {len(figures.images)} sites, {figures.epochs} epochs "
        f"each, batches of {figures.batch_size} at {figures.image_size} px: {figures.steps:,.0f} steps expected"
    )
    _say(
        f"{figures.step_ms:g} ms a step ({figures.step_ms_is}): {figures.gpu_hours:,.1f} GPU hours, all sites together"
    )
    _say(f"{figures.federation_hours:,.1f} hours of training if every site has such a GPU")
    _say(f"{figures.wire_gb:,.2f} GB on the wire, both ways, {figures.weight_bytes / 1e6:,.2f} MB a message")
    if figures.step_ms_is == "assumed":
        complain("the time of a step is not measured: give yours with --step-ms (benchmarks/step_cost.py)", "ASSUMED")


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"preparing {name}", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _say(text: str) -> None:
    _console.print(text, highlight=False, markup=False, soft_wrap=True)


def _fail(message: Any) -> NoReturn:
    complain(message)
    raise typer.Exit(1)
