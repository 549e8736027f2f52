"""``fedad data``: look at a site's images or bags before training does. Prints counts and never a file's name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedad_components.cli.messages import complain
from fedad_components.config import ModelConfig
from fedad_components.imaging.account import MEANING, Account, DataRefused
from fedad_components.imaging.cache import cache_folder, cache_side
from fedad_components.imaging.catalogue import Catalogue, CatalogueError, DataSet
from fedad_components.imaging.ingest import IngestError, ingest

if TYPE_CHECKING:
    from fedad_components.mil.site_account import BagAccount

app = typer.Typer(help="Check and ingest a site's images.", no_args_is_help=True)

REFUSED, UNUSABLE = 1, 2

_EXIT_CODES = (
    "Exit codes: 0 the site may train on it; 1 refused: too many files rejected, or none usable; 2 the catalogue, the "
    "folder or the cache cannot be used."
)
_DEFAULT_SIDE = cache_side(ModelConfig().image_size)

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Data-set id in the catalogue; jobs name it as federation.data_set.")
]
CatalogueFile = Annotated[
    Path | None, typer.Option("--catalogue", metavar="FILE", help="The site's catalogue; its cache is put beside it.")
]
Kit = Annotated[
    Path | None,
    typer.Option("--kit", metavar="KITDIR", help="The site's kit, instead of --catalogue: KITDIR/local/fedad is used."),
]
Side = Annotated[
    int, typer.Option(min=8, max=4096, help="Stored side in pixels: 8/7 of the job's image_size (256 for 224).")
]
Workers = Annotated[int | None, typer.Option(min=1, max=256, help="Decoding processes; default: one for each CPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command(
    epilog="Examples:\n\nfedad data check images --kit /opt/fedad/hospital-a\n\n"
    f"fedad data check images --catalogue catalogue.yaml --json\n\n"
    f"fedad data check slides --kit /opt/fedad/hospital-a --config config.json\n\n{_EXIT_CODES}"
)
def check(
    data_set: Id,
    catalogue: CatalogueFile = None,
    kit: Kit = None,
    side: Side = _DEFAULT_SIDE,
    workers: Workers = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="kind bags: a HistoFL job's settings as JSON: could the site take part?"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Account for every file of a data set: used, or rejected with its reason.

    Decodes what is not cached yet; training then uses that cache. Of a data
    set of kind bags, reads every slide's features and counts patients by
    class or event.

    Prints counts only. File names are in a list for the site's own staff;
    its path is printed.
    """
    entry, cache_dir = _data_set(data_set, catalogue, kit)
    if entry.kind == "bags":
        _check_bags(entry, config, as_json)
        return
    if config is not None:
        _fail(f"--config: data set {entry.id!r} holds images: expected one of kind bags")
    outcome = _run(entry, cache_dir, side, workers, again=False)
    _print(outcome, as_json)


@app.command(
    name="ingest",
    epilog=f"Example: fedad data ingest images --kit /opt/fedad/hospital-a --workers 8\n\n{_EXIT_CODES}",
)
def ingest_command(
    data_set: Id,
    catalogue: CatalogueFile = None,
    kit: Kit = None,
    side: Side = _DEFAULT_SIDE,
    workers: Workers = None,
    again: Annotated[bool, typer.Option("--again", help="Decode every file again, also unchanged ones.")] = False,
    as_json: Json = False,
) -> None:
    """Decode a data set into the site's cache, so that training starts at once.

    A killed ingest continues where it stopped. Only new and changed files are
    decoded. Training does the same when it finds no cache.
    """
    entry, cache_dir = _data_set(data_set, catalogue, kit)
    outcome = _run(entry, cache_dir, side, workers, again)
    _print(outcome, as_json)


def _data_set(name: str, catalogue: Path | None, kit: Path | None) -> tuple[DataSet, Path]:
    if (catalogue is None) == (kit is None):
        _fail("expected one of --catalogue FILE and --kit KITDIR")
    if kit is not None:
        catalogue = kit / "local" / "fedad" / "catalogue.yaml"
        sys.path.append(str((kit / "local" / "custom").absolute()))  # as FLARE does for the site's own reader
    assert catalogue is not None
    try:
        return Catalogue.load(catalogue).data_set(name), catalogue.absolute().parent / "cache"
    except CatalogueError as error:
        _fail(str(error))


def _run(entry: DataSet, cache_dir: Path, side: int, workers: int | None, again: bool) -> dict[str, Any]:
    refused, patients, without = "", 0, 0
    try:
        with _bar(entry.id) as progress:
            images = ingest(entry, cache_dir, side, workers=workers, progress=progress, again=again)
        account = images.account
        patients, without = len(set(images.patients) - {None}), images.patients.count(None)
    except DataRefused as error:
        account, refused = error.account, str(error)
    except (CatalogueError, IngestError) as error:
        _fail(str(error))
    details = cache_folder(cache_dir, entry, side) / "files.csv"
    return {
        "data_set": entry.id,
        "side": side,
        "accepted": not refused,
        "max_rejected": entry.max_rejected,
        **account.to_json(),
        "patients": patients,
        "frames_without_patient": without if entry.table and entry.table.patient else None,
        "details": str(details),
        "refused": refused,
        "account": account,
    }


def _print(outcome: dict[str, Any], as_json: bool) -> None:
    account: Account = outcome.pop("account")
    if as_json:
        print(json.dumps(outcome, indent=2))
    else:
        table = Table(title=f"Data set {outcome['data_set']}", title_justify="left")
        table.add_column("outcome")
        table.add_column("files", justify="right")
        table.add_column("meaning")
        table.add_row("used", str(account.used), f"{account.frames} frames, {account.blank_frames} blank ones left out")
        for reason, count in account.rejected.items():
            table.add_row(str(reason), str(count), MEANING[reason])
        table.add_section()
        table.add_row(
            "all",
            str(account.files),
            f"{account.rejected_share:.1%} rejected, at most "
            f"{outcome['max_rejected']:.1%} allowed; {account.ignored} hidden files ignored",
        )
        console = Console()
        console.print(table)
        if outcome["frames_without_patient"] is not None:
            console.print(f"{outcome['patients']} patients; {outcome['frames_without_patient']} frames without one")
        console.print(
            f"Each file and its reason, for the site's own staff: {outcome['details']}", soft_wrap=True, markup=False
        )
    if outcome["refused"]:
        complain(outcome["refused"], "refused")
        raise typer.Exit(REFUSED)


def _check_bags(entry: DataSet, config_file: Path | None, as_json: bool) -> None:
    from fedad_components.config import ConfigError, read_settings
    from fedad_components.mil.config import HistoFLConfig
    from fedad_components.mil.site_account import account_of

    try:
        config = HistoFLConfig.parse(read_settings(config_file)) if config_file else None
        with _bar(entry.id, "reading") as progress:
            account = account_of(entry, config, progress)
    except (CatalogueError, ConfigError) as error:
        _fail(str(error))
    if as_json:
        accepted = {"data_set": entry.id, "accepted": not account.refused}
        print(json.dumps(accepted | account.to_json(), indent=2))
    else:
        _print_bags(entry.id, account)
    for reason in account.refused:
        complain(reason, "refused")
    if account.refused:
        raise typer.Exit(REFUSED)


def _print_bags(name: str, account: BagAccount) -> None:
    from fedad_components.mil.site_account import MEANING as OF_SLIDES
    from fedad_components.mil.site_account import MOST_LABELS

    def row(what: str, count: int, meaning: str = "") -> None:
        table.add_row(Text(what), f"{count:,}", Text(meaning))

    table = Table("", Column("number", justify="right"), "meaning", title=f"Data set {name}", title_justify="left")
    row("slides", account.slides, f"{account.patches:,} patches")
    for problem, count in account.bad.items():
        row(f"  {problem}", count, OF_SLIDES[problem])
    row("patients", account.patients, f"{account.without_patient} slides without one, each counted as a patient")
    if len(account.labels) <= MOST_LABELS:
        for label, count in account.labels.items():
            row(f"  class {label}", count)
    else:
        row("  labels", len(account.labels), "different ones: too many for classes")
    if account.events or account.censored:
        row("  with an event", account.events)
        row("  censored", account.censored)
    if account.conflicts:
        row("  contradictory", account.conflicts, "slides of one patient with different outcomes")
    console = Console(highlight=False, markup=False)
    console.print(table)
    lengths = " and ".join(map(str, account.lengths)) or "none"
    console.print(f"features of a patch: {lengths}")
    if account.encoder is not None:
        console.print(
            f"encoder {account.encoder['name']}, for a job's settings:\n"
            f"  model.encoder_sha256={account.encoder['weights_sha256']}",
            soft_wrap=True,
        )
    for note in account.notes:
        complain(note, "note")


@contextmanager
def _bar(name: str, doing: str = "decoding") -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{doing} {name}", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _fail(message: str) -> NoReturn:
    complain(message)
    raise typer.Exit(UNUSABLE)
