"""`fedad privacy audit`: attack the mechanism that is installed here, and compare with what is claimed for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedad_components.cli.config import ConfigFile, Settings, read_config
from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.privacy.audit import AuditReport, Listener

EPILOG = (
    "Examples:\n\nfedad privacy audit\n\n"
    "fedad privacy audit --config experiment.json --surface mechanism --canaries 2000 --json"
)
NO_PROOF = "A pass is no proof: it says that this attack, with this many canaries, found nothing."

_console = Console()


class Surface(str, Enum):
    """Where the attacker looks."""

    MECHANISM = "mechanism"
    UPDATE = "update"
    BOTH = "both"


def audit(
    config: ConfigFile = None,
    settings: Settings = None,
    canaries: Annotated[int, typer.Option(min=100, max=100_000, help="Canaries; each is in or out by a coin.")] = 2000,
    noise_multiplier: Annotated[
        float, typer.Option(help="Sigma of the run. The claim has to be one that canaries could contradict.")
    ] = 4.0,
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Noised steps of the run.")] = 4,
    sample_rate: Annotated[
        float, typer.Option(help="Rate q at which the run draws a unit, within (0, 1]; 1: all units in each step.")
    ] = 1.0,
    surface: Annotated[
        Surface,
        typer.Option(help="mechanism: the noised sums of gradients; update: the weights that leave the site; both."),
    ] = Surface.BOTH,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Audit DP training as installed: a lower bound on epsilon, from an attack on a real run, beside the claim.

    Trains with gradient canaries: extra units whose gradient lies on one
    coordinate and is as long as clipping allows, in or out by secret coins.
    From what the run shows, an attacker guesses the coins; the right guesses
    prove a lower bound on epsilon (Steinke et al., NeurIPS 2023). A second,
    short run checks that units are drawn independently.

    Takes the privacy and training settings of the configuration, on small
    images of noise: it audits the code, not your data. Exits with 1 when the
    bound exceeds the claim or the draws are not independent. Minutes on
    2 cores with every weight trained; seconds with
    --set privacy.trainable=affine_and_head.
    """
    parsed = read_config(config, settings, "fedad")
    from fedad_components.privacy.audit import AuditError, AuditPlan, run_audit

    surfaces = ("mechanism", "update") if surface is Surface.BOTH else (surface.value,)
    try:
        plan = AuditPlan(parsed, canaries, noise_multiplier, steps, sample_rate, surfaces)
        if plan.claim.epsilon_unit > plan.ceiling:
            complain(
                f"claimed is {plan.claim}, and {plan.canaries} canaries can show no more than {plan.ceiling:.2f}: a "
                f"pass will say next to nothing. Use a larger --noise-multiplier, fewer --steps or more --canaries",
                "warning",
            )
        with _bar() as listener:
            report = run_audit(plan, listener)
    except AuditError as error:
        complain(error)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(report.to_json() | {"note": NO_PROOF}, indent=2))
    else:
        _show(report)
    if report.violations:
        raise typer.Exit(1)


def _show(report: AuditReport) -> None:
    from fedad_components.privacy.audit import ATTACK

    plan = report.plan
    table = Table(title=f"Audit of dp_sgd: adding or removing one {plan.claim.unit}, delta = {plan.claim.delta:g}")
    for column in ("seen by the attacker", "epsilon at least (95 %)", "guesses", "right"):
        table.add_column(column, justify="left" if column.startswith("seen") else "right")
    for name, reading in report.readings.items():
        table.add_row(name, f"{reading.epsilon:.2f}", str(reading.guesses), str(reading.correct))
    _console.print(table)
    sampling = report.sampling
    for line in (
        f"claimed: {plan.claim}",
        f"noise multiplier {plan.claim.noise_multiplier:g}, sample rate {plan.claim.sample_rate:g}, "
        f"{plan.claim.steps} steps",
        f"attack: {ATTACK}; {plan.canaries} canaries can show at most {plan.ceiling:.2f}",
        f"draws: {'independent' if sampling.independent else 'NOT independent'} over {sampling.steps} steps of "
        f"{sampling.units} units at rate {sampling.sample_rate:.3g}; p = {sampling.rate_p_value:.2g} (share drawn), "
        f"{sampling.step_p_value:.2g} (sizes of steps), {sampling.unit_p_value:.2g} (draws of a unit)",
        f"{report.seconds:.0f} seconds",
    ):
        _console.print(line, highlight=False, soft_wrap=True)
    for violation in report.violations:
        complain(violation, "violation")
    _console.print(f"[bold]{report.verdict}[/]  {NO_PROOF if not report.violations else ''}", highlight=False)


@contextmanager
def _bar() -> Iterator[Listener]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("canaries trained on", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
