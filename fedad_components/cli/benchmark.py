"""`fedad benchmark`: methods side by side on images of a laboratory that none of them has seen."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.benchmark.results import Results
    from fedad_components.benchmark.run import Run

METRIC = "balanced_accuracy"

app = typer.Typer(no_args_is_help=True, help="Methods side by side on images of an unseen laboratory.")

EPILOG = (
    "Examples:  fedad benchmark wbc --data wbc --methods fedad,moon --out bench  |  fedad benchmark wbc --data wbc "
    "--methods all --seeds 0,1,2 --preset full --workers 2 --out bench  |  fedad benchmark wbc --data wbc --exact "
    "--methods fedad,fedad@loss.gamma=0+views.hue=0.1 --out search\n\n"
    "The same command again goes on where it stopped. Exit codes: 0 done; 1 the images or the results cannot be used, "
    "or a run failed; 130 interrupted."
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
    seeds: Annotated[str, typer.Option(help="Numbers with commas.")] = "0",
    target: Annotated[str, typer.Option(help="The unseen laboratory.")] = "chulalongkorn",
    preset: Annotated[Literal["quick", "full"], typer.Option(help="How much is trained.")] = "quick",
    exact: Annotated[
        bool, typer.Option("--exact", help="Only what --methods names, for controlled experiments; no table is honest.")
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
    try:
        numbers = [int(seed) for seed in _listed(seeds)]
    except ValueError:
        complain(f"--seeds {seeds!r}: expected whole numbers with commas, such as 0,1,2")
        raise typer.Exit(1) from None
    runs = [Run(name, seed, target, preset, data, out, device, by_round) for seed in numbers for name in names]
    try:
        failed = _run_all(runs, out, preset, workers, console)
    except (DemoDataError, ResultsError, OSError) as error:
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
        shown = Table(box=None, title=f"{overview['target']}, {METRICS.get(metric, metric)}")
        shown.add_column("method", overflow="fold")
        for column in ("seeds", *overview["protocols"], "NT-Xent (chance)"):
            shown.add_column(column, justify="right")
        for row in overview["rows"]:
            shown.add_row(row["method"], str(row["n"]), *(cell["text"] for cell in row["cells"]), row["nt_xent"])
        console.print(shown)
    for path in written:
        console.print(f"[green]✓[/] {path}", highlight=False)


def _baseline(results: Results) -> str:
    """FedAvg-SSL, or the first row where it was not run."""
    from fedad_components.benchmark.variants import BASELINE

    methods = list(dict.fromkeys(row.method for row in results.rows))
    return BASELINE if BASELINE in methods or not methods else methods[0]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _run_all(runs: Sequence[Run], out: Path, preset: str, workers: int, console: Console) -> int:
    """Run what results.json lacks; how many failed."""
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from multiprocessing import get_context

    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from fedad_components.benchmark.results import FILE_NAME, Results, append_row
    from fedad_components.benchmark.run import execute, open_results, use_cores
    from fedad_components.benchmark.variants import PRESETS

    results = open_results(out, preset, " ".join(["fedad", *sys.argv[1:]]))
    there = {(row.method, row.seed, row.target) for row in results.rows}
    waiting = [run for run in runs if (run.variant, run.seed, run.target) not in there]
    console.print(f"{len(runs)} runs, {len(runs) - len(waiting)} of them done before", highlight=False)
    rounds = PRESETS[preset].rounds
    failed = 0
    columns = ("{task.description}", BarColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(workers, get_context("spawn"), use_cores, (workers,)) as pool,
    ):
        task = progress.add_task("rounds", total=rounds * len(waiting))
        futures = {pool.submit(execute, run): run for run in waiting}
        pending, began = set(futures), time.time()
        while pending:
            done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                run = futures[future]
                if error := future.exception():
                    failed += 1
                    progress.print(
                        f"[red]{run.variant}, seed {run.seed}: {type(error).__name__}[/]: {error}", markup=True
                    )
                    continue
                rows = future.result()
                for row in rows:
                    append_row(out / FILE_NAME, row)
                score = next((row for row in rows if row.protocol == "source"), rows[0])
                progress.print(
                    f"{run.variant}, seed {run.seed}: balanced accuracy {score.metrics['balanced_accuracy']:.3f} "
                    f"({score.protocol}), {score.seconds:.0f} s",
                    highlight=False,
                )
            ended = [run for future, run in futures.items() if future.done()]
            running = sum(run.finished_rounds(since=began) for run in waiting if run not in ended)
            progress.update(task, completed=rounds * len(ended) + running)
    if (results := Results.load(out / FILE_NAME)).rows:
        _report(results, out, console)
    return failed


def _report(results: Results, out: Path, console: Console) -> None:
    """Tables and pictures of everything that is in the folder by now."""
    from fedad_components.benchmark.figures import draw_all
    from fedad_components.benchmark.logged import read_rows, read_runs
    from fedad_components.benchmark.tables import write_tables

    for path in write_tables(results, out, _baseline(results)):
        console.print(f"[green]✓[/] {path}", highlight=False)
    drawn = draw_all(read_runs([out]), read_rows([out]), out / "figures", METRIC)
    console.print(f"[green]✓[/] {len(drawn.files)} pictures in {out / 'figures'}", highlight=False)
