"""`fedad privacy plan`: the guarantee of an experiment before it runs, from public numbers alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedad_components.cli.messages import complain
from fedad_components.config import FederationConfig, ImagePrivacyConfig, TrainingConfig

if TYPE_CHECKING:
    from fedad_components.privacy.plan import Plan

EPILOG = (
    "Examples:\n\nfedad privacy plan --units 625 --units-per-step 32 --rounds 40 --epochs 3 --noise-multiplier 2\n\n"
    "fedad privacy plan --units 625 --units-per-step 32 --target-epsilon 8 --figure plan.svg"
)

_PRIVACY, _TRAINING, _FEDERATION = ImagePrivacyConfig(), TrainingConfig(), FederationConfig()


class Unit(str, Enum):
    """What is protected."""

    BUNDLE = "bundle"
    PATIENT = "patient"


def plan(
    units: Annotated[
        int, typer.Option(help="Declared number of privacy units of the data set: `units` in catalogue.yaml.")
    ],
    units_per_step: Annotated[int, typer.Option(help="Expected units in a step.")] = _PRIVACY.units_per_step,
    noise_multiplier: Annotated[float | None, typer.Option(help="sigma; or give --target-epsilon.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of the experiment.")] = _FEDERATION.rounds,
    epochs: Annotated[int, typer.Option(help="Local epochs in a round.")] = _TRAINING.epochs,
    delta: Annotated[float, typer.Option(help="delta at which epsilon is stated.")] = _PRIVACY.delta,
    unit_size: Annotated[int, typer.Option(help="Most images of a unit in a step.")] = _PRIVACY.unit_size,
    unit: Annotated[
        Unit, typer.Option(help="patient: all images of one; bundle: of those that a hash groups.")
    ] = Unit.BUNDLE,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Find the sigma that this epsilon, for adding or removing one unit, needs.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also plot both epsilons over the rounds: .svg or .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan one site's guarantee: epsilon over the rounds, for its own number of units."""
    from fedad_components.privacy.accountant import AccountantError
    from fedad_components.privacy.plan import PlanError, make_plan

    try:
        if figure:
            _check_figure(figure)
        planned = make_plan(
            units=units,
            units_per_step=units_per_step,
            rounds=rounds,
            epochs=epochs,
            delta=delta,
            unit_size=unit_size,
            unit=unit.value,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
        )
        if figure:
            from fedad_components.privacy.plan_figure import write_figure

            write_figure(planned, figure)
    except (PlanError, AccountantError, OSError, ValueError) as error:
        goal = "" if target_epsilon is None else f"{_goal(target_epsilon, unit.value, delta)}: "
        complain(f"{goal if isinstance(error, AccountantError) else ''}{error}")
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(_content(planned), indent=2))
    else:
        _show(planned)
        if figure:
            Console().print(f"figure: {figure}", highlight=False, soft_wrap=True)
    for warning in planned.warnings:
        complain(warning, "warning")


def _check_figure(figure: Path) -> None:
    """Before the plan is computed: matplotlib would write ``/folder.png`` for a folder."""
    if figure.suffix.lower() not in (".svg", ".png") or figure.is_dir():
        raise ValueError(f"--figure {figure}: expected the name of a file that ends in .svg or .png")


def _goal(epsilon: float, unit: str, delta: float) -> str:
    from fedad_components.privacy.claim import ACCOUNTANTS, adjacencies

    return f"target epsilon = {epsilon:g} for {adjacencies(unit)['unit']} (delta = {delta:g}, {ACCOUNTANTS['unit']})"


def _content(planned: Plan) -> dict[str, object]:
    from fedad_components.privacy.claim import ACCOUNTANTS, adjacencies

    content = asdict(planned)
    content["curve"] = [
        {"rounds": rounds, "epsilon_unit": unit, "epsilon_record": record} for rounds, unit, record in planned.curve
    ]
    for name, adjacency in adjacencies(planned.unit).items():
        content[f"adjacency_{name}"] = adjacency
        content[f"accountant_{name}"] = ACCOUNTANTS[name]
    return content


def _show(planned: Plan) -> None:
    from fedad_components.privacy.claim import ACCOUNTANTS, adjacencies

    console, adjacency = Console(), adjacencies(planned.unit)
    console.print(
        f"{planned.units} units ({planned.unit}) of at most {planned.unit_size} images a step, "
        f"{planned.units_per_step} expected in a step: q = {planned.sample_rate:.4g}\n"
        f"{planned.rounds} rounds x {planned.epochs} epochs = {planned.steps} steps, "
        f"sigma = {planned.noise_multiplier:.4g}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(title=f"epsilon at delta = {planned.delta:g}", title_justify="left")
    table.add_column("after rounds", justify="right")
    for name in ("unit", "record"):
        table.add_column(f"{adjacency[name]}\n{ACCOUNTANTS[name]}", justify="right")
    for rounds, unit, record in planned.curve:
        table.add_row(str(rounds), f"{unit:.2f}", f"{record:.2f}")
    console.print(table)
