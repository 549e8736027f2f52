"""`fedad benchmark`: methods side by side, FedAD's on an unseen laboratory's images and HistoFL's on public bags."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.benchmark.histofl.run import Run as StudyRun
    from fedad_components.benchmark.results import Results
    from fedad_components.benchmark.run import Run

METRIC = "balanced_accuracy"
Result = TypeVar("Result")


class AnyRun(Protocol):
    """What is executed in a process of its own."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def rounds(self) -> int:
        """How many it has at most."""

    @property
    def records(self) -> Path:
        """Its rounds.jsonl."""


Job = TypeVar("Job", bound=AnyRun)

app = typer.Typer(no_args_is_help=True, help="Methods side by side, on public data.")

MOST_SEEDS = 1000
"""More are a slip of the hand."""
EPILOG = (
    "Examples:\n\nfedad benchmark wbc --data wbc --methods fedad,moon --out bench\n\nfedad benchmark wbc --data wbc "
    "--methods all --seeds 0,1,2 --preset full --workers 2 --out bench\n\nfedad benchmark wbc --data wbc --exact "
    "--methods fedad,fedad@loss.gamma=0+views.hue=0.1 --out search\n\n"
    "The same command again does what is missing; a run that was interrupted begins anew. On a machine that others use "
    "too, let --workers be its cores: threads of one run that wait for each other lose most there.\n\n"
    "Exit codes: 0 done; 1 the images or the results cannot be used, or a run failed; 130 interrupted."
)


@app.command(epilog=EPILOG)
def wbc(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The benchmark's folder, with benchmark.csv and images/.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, results.json and tables are written.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Names with commas, or 'all'; `fedad benchmark methods` lists them. NAME@SECTION.KEY=VALUE+... is a "
            "row that deviates in those settings."
        ),
    ] = "fedad",
    seeds: Annotated[str, typer.Option(help="Numbers with commas, or a range such as 0-4.")] = "0",
    target: Annotated[str, typer.Option(help="The unseen laboratory.")] = "chulalongkorn",
    preset: Annotated[Literal["quick", "full"], typer.Option(help="How much is trained.")] = "quick",
    exact: Annotated[
        bool, typer.Option("--exact", help="Only the rows that --methods names, without those that are always run.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; they share the CPU's cores.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    by_round: Annotated[
        bool,
        typer.Option(
            "--by-round", help="Probe each laboratory after every round by k-NN (Figure 12); runs are slower."
        ),
    ] = False,
) -> None:
    """White blood cells from five laboratories: four train, one is unseen.

    The rows without which no table is honest are always run: random initialisation, FedAvg-SSL, the private head alone
    and the pooled supervised reference; and every method with and without stain jitter (unless --exact).
    """
    from fedad_components.benchmark.results import ResultsError
    from fedad_components.benchmark.run import Run
    from fedad_components.benchmark.variants import VARIANTS, find_variant, honest
    from fedad_components.demo.data import DemoDataError

    console = Console()
    try:
        chosen = [*VARIANTS] if methods == "all" else _listed(methods)
        names = [find_variant(name).name for name in chosen] if exact else honest(chosen)
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    numbers = _numbers(seeds)
    runs = [Run(name, seed, target, preset, data, out, device, by_round) for seed in numbers for name in names]
    try:
        failed = _run_all(runs, out, preset, workers, console)
    except (DemoDataError, ResultsError, OSError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if failed:
        complain(f"{failed} of {len(runs)} runs failed; the same command tries them again")
        raise typer.Exit(1)


@app.command(
    epilog="Examples:\n\nfedad benchmark histofl --data data --study musk --seeds 0-4 --out musk\n\nfedad benchmark "
    "histofl --data data --study kirc --methods central,federated,E-8 --seeds 0-4 --workers 2 --out kirc\n\n"
    "The same command again goes on where it stopped. Exit codes: 0 done; 1 the data or the results cannot be used, "
    "or a run failed; 130 interrupted."
)
def histofl(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder with mil/ and survival/.")],
    study: Annotated[
        Literal["musk", "kirc", "brca"],
        typer.Option(
            help="musk: MUSK1, classification; kirc: kidney cancer, real outcomes and synthetic features; brca: "
            "Fed-TCGA-BRCA, covariates as bags of one instance."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, results.json and pages are written.")],
    seeds: Annotated[str, typer.Option(help="Numbers with commas, or a range such as 0-4.")] = "0",
    methods: Annotated[str, typer.Option(help="Rows with commas, or 'all'.")] = "all",
    epochs: Annotated[int, typer.Option(min=0, help="Most local epochs; 0: the study's.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, of one core each.")] = 1,
) -> None:
    """HistoFL beside central and single-site training, on public bags and survival data."""
    from fedad_components.benchmark.histofl.run import Run
    from fedad_components.benchmark.histofl.studies import STUDIES

    console, numbers, found = Console(), _numbers(seeds), STUDIES[study]
    try:
        names = [found.variant(name).name for name in _listed(methods)] if methods != "all" else None
        found.load(data)  # before a process is started
        runs = [
            Run(study, name, seed, data, out, epochs or found.epochs)
            for seed in numbers
            for name in names or [variant.name for variant in found.variants]
        ]
        failed = _run_study(runs, workers, console)
    except (ValueError, OSError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if failed:
        complain(f"{failed} of {len(runs)} runs failed; the same command tries them again")
        raise typer.Exit(1)


@app.command(epilog="Example:  fedad benchmark methods")
def methods() -> None:
    """The rows that a benchmark can have."""
    from rich.table import Table

    from fedad_components.benchmark.variants import ALWAYS, VARIANTS

    table = Table("name", "what it is", "always run", box=None)
    for variant in VARIANTS.values():
        table.add_row(variant.name, variant.title, "yes" if variant.name in ALWAYS else "")
    Console().print(table)


@app.command(epilog="Example:  fedad benchmark table bench --baseline fedavg_ssl+stain_jitter")
def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a benchmark.")],
    baseline: Annotated[
        str | None, typer.Option(help="The row against which the others are tested; default: FedAvg-SSL.")
    ] = None,
    metric: Annotated[str, typer.Option(help="The score that is shown by protocol, and tested.")] = METRIC,
) -> None:
    """Write the tables of a benchmark anew, and show one score of every method by protocol."""
    from rich.table import Table

    from fedad_components.benchmark.results import FILE_NAME, METRICS, Results, ResultsError
    from fedad_components.benchmark.statistics import StatisticsError
    from fedad_components.benchmark.tables import overviews, write_tables

    console = Console()
    try:
        results = Results.load(folder / FILE_NAME)
        written = write_tables(results, folder, baseline or _baseline(results), metric)
    except (ResultsError, StatisticsError, OSError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    for overview in overviews(results.rows, metric):
        shown = Table(box=None, title=escape(f"{overview['target']}, {METRICS.get(metric, metric)}"))
        shown.add_column("method", overflow="fold")
        for column in ("seeds", *overview["protocols"], "NT-Xent (chance)"):
            shown.add_column(escape(column), justify="right")
        for row in overview["rows"]:
            shown.add_row(
                escape(row["method"]), str(row["n"]), *(cell["text"] for cell in row["cells"]), row["nt_xent"]
            )
        console.print(shown)
    for path in written:
        console.print(f"[green]✓[/] {escape(str(path))}", highlight=False)


def _baseline(results: Results) -> str:
    """FedAvg-SSL, or the first row where it was not run."""
    from fedad_components.benchmark.variants import BASELINE

    methods = list(dict.fromkeys(row.method for row in results.rows))
    return BASELINE if BASELINE in methods or not methods else methods[0]


def _numbers(text: str) -> list[int]:
    """``0,1,2`` or ``0-2``."""
    try:
        parts = [[int(end) for end in part.split("-")] for part in _listed(text)]
        if any(len(ends) > 2 for ends in parts):
            raise ValueError
    except ValueError:
        complain(f"--seeds {text!r}: expected whole numbers with commas, such as 0,1,2, or a range, such as 0-4")
        raise typer.Exit(1) from None
    numbers = [number for ends in parts for number in islice(range(ends[0], ends[-1] + 1), MOST_SEEDS + 1)]
    if not numbers or len(numbers) > MOST_SEEDS:
        complain(f"--seeds {text!r}: expected 1 to {MOST_SEEDS:,} seeds, and the lower end of a range first")
        raise typer.Exit(1)
    return list(dict.fromkeys(numbers))


def _listed(text: str) -> list[str]:
    """Parts between commas; the command ends where there is none."""
    if not (parts := [part.strip() for part in text.split(",") if part.strip()]):
        complain(f"{text!r}: expected one name or number at least")
        raise typer.Exit(1)
    return parts


def _run_all(runs: Sequence[Run], out: Path, preset: str, workers: int, console: Console) -> int:
    """Run what results.json lacks; how many failed."""
    from fedad_components.benchmark.results import FILE_NAME, Results, Row, append_rows
    from fedad_components.benchmark.run import execute, open_results
    from fedad_components.benchmark.wbc import write_catalogue

    results = open_results(out, preset, _command())
    write_catalogue(runs[0].data_dir, out / "catalogue.yaml")
    there = {(row.method, row.seed, row.target) for row in results.rows}
    waiting = [run for run in runs if (run.variant, run.seed, run.target) not in there]
    console.print(f"{len(runs)} runs, {len(runs) - len(waiting)} of them done before", highlight=False)

    def done(rows: list[Row]) -> str:
        append_rows(out / FILE_NAME, rows)
        score = next((row for row in rows if row.protocol == "source"), rows[0])
        return f"balanced accuracy {score.metrics[METRIC]:.3f} ({score.protocol}), {score.seconds:.0f} s"

    failed = _work(waiting, execute, done, workers, workers, console)
    if (results := Results.load(out / FILE_NAME)).rows:
        _report(results, out, console)
    return failed


def _run_study(runs: Sequence[StudyRun], workers: int, console: Console) -> int:
    """Run what has no outcome, then write results and pages of everything in the folder; how many failed."""
    import os

    from fedad_components.benchmark.histofl.outcome import Outcome
    from fedad_components.benchmark.histofl.page import write_pages
    from fedad_components.benchmark.histofl.results import open_study, write_results
    from fedad_components.benchmark.histofl.run import execute, outcomes_in

    study, out = runs[0].study, runs[0].out
    facts = open_study(out, f"{study.name}, {runs[0].epochs} epochs", _command())
    waiting = [run for run in runs if not run.outcome.exists()]
    console.print(f"{len(runs)} runs, {len(runs) - len(waiting)} of them done before", highlight=False)

    def done(outcome: Outcome) -> str:
        if outcome.impossible:
            return f"nothing to train: {outcome.impossible}"
        name, value = next(iter(outcome.whole.scores().items()))
        return f"{name} {'not defined' if value is None else format(value, '.3f')}, {outcome.seconds:.0f} s"

    failed = _work(waiting, execute, done, workers, os.cpu_count() or 1, console)
    if outcomes := outcomes_in(out, study):
        write_results(facts, outcomes, out)
        for path in write_pages(study, facts, outcomes, out):
            console.print(f"[green]✓[/] {escape(str(path))}", highlight=False)
    return failed


def _work(
    waiting: Sequence[Job],
    execute: Callable[[Job], Result],
    done: Callable[[Result], str],
    workers: int,
    shares: int,
    console: Console,
) -> int:
    """Execute runs in processes of their own, with a bar of their rounds; how many failed.

    Args:
        done: called here with what a run gave; the line that is printed.
        shares: into how many the CPU's cores are parted, of which each process has one.
    """
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from multiprocessing import active_children, get_context

    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from fedad_components.benchmark.run import finished_rounds, use_cores
    from fedad_components.signals import exit_on_signals

    failed = 0
    columns = ("{task.description}", BarColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    with (
        exit_on_signals(),
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(workers, get_context("spawn"), use_cores, (shares,)) as pool,
    ):
        task = progress.add_task("rounds", total=sum(run.rounds for run in waiting))
        futures = {pool.submit(execute, run): run for run in waiting}
        pending, began = set(futures), time.time()
        try:
            while pending:
                finished, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in finished:
                    run = futures[future]
                    if error := future.exception():
                        failed += 1
                        message = f"[red]{run.label}: {type(error).__name__}[/]: {escape(str(error))}"
                        progress.print(message, markup=True)
                        continue
                    progress.print(f"{run.label}: {done(future.result())}", highlight=False, markup=False)
                rounds = sum(
                    run.rounds if future.done() else finished_rounds(run.records, since=began)
                    for future, run in futures.items()
                )
                progress.update(task, completed=rounds)
        except BaseException:  # Ctrl-C or a signal: else the pool would first work off everything that waits
            progress.print("interrupted: finished runs are kept, and the same command does the others")
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                worker.terminate()
            raise
    return failed


def _command() -> str:
    """What was typed."""
    return " ".join(["fedad", *sys.argv[1:]])


def _report(results: Results, out: Path, console: Console) -> None:
    """Tables and pictures of everything that is in the folder by now."""
    from fedad_components.benchmark.figures import draw_all
    from fedad_components.benchmark.logged import RunsError, read_rows, read_runs
    from fedad_components.benchmark.tables import write_tables

    for path in write_tables(results, out, _baseline(results)):
        console.print(f"[green]✓[/] {escape(str(path))}", highlight=False)
    try:
        drawn = draw_all(read_runs([out]), read_rows([out]), out / "figures", METRIC)
    except RunsError as error:  # nothing was trained, as for random initialisation
        console.print(f"no pictures: {error}", highlight=False, markup=False)
        return
    console.print(f"[green]✓[/] {len(drawn.files)} pictures in {escape(str(out / 'figures'))}", highlight=False)
