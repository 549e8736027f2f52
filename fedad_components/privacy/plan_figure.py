"""A plan as a plot: both epsilons over the rounds."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from fedad_components.privacy.claim import ACCOUNTANTS, adjacencies
from fedad_components.privacy.plan import Plan

COLOURS = {"unit": "#0072B2", "record": "#D55E00"}


def write_figure(plan: Plan, path: Path) -> None:
    """Write ``.svg`` or ``.png``, as the name says.

    Raises:
        ValueError: for another ending.
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    panel = figure.subplots()
    rounds = [point[0] for point in plan.curve]
    for column, (name, adjacency) in enumerate(adjacencies(plan.unit).items(), start=1):
        values = [point[column] for point in plan.curve]
        panel.plot(rounds, values, color=COLOURS[name], label=f"{adjacency} ({ACCOUNTANTS[name]})")
        panel.annotate(f"{values[-1]:.2f}", (rounds[-1], values[-1]), (4, 0), textcoords="offset points", va="center")
    panel.set_title(
        f"{plan.units} units ({plan.unit}), q = {plan.sample_rate:.3g}, σ = {plan.noise_multiplier:.3g}, "
        f"δ = {plan.delta:g}",
        loc="left",
        fontsize=10,
    )
    panel.set_xlabel("rounds")
    panel.set_ylabel(f"ε at δ = {plan.delta:g}")
    panel.set_ylim(bottom=0)
    panel.margins(x=0.08)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e4e9ee")
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(path)
