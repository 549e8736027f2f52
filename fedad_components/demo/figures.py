"""The report's plots, each as SVG text. Imports no FLARE."""

from __future__ import annotations

import math

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedad_components.demo.summary import Summary
from fedad_components.evaluation.probe import ProbeResult
from fedad_components.plotting import COLOURS, LOSSES, STYLE, confusion, level, line, number, round_axis, svg


def losses(summary: Summary) -> str:
    """The four losses of each site's last local epoch over the rounds."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 5.4), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True)
        for panel, (name, title) in zip(panels.flat, LOSSES.items(), strict=True):
            for index, site in enumerate(summary.sites):
                values = [
                    number(getattr(of_round[site], name)) if site in of_round else math.nan
                    for of_round in summary.losses
                ]
                line(panel, values, index, site)
            panel.set_title(title)
            panel.set_ylabel("loss (no unit)")
        chance = panels.flat[1]
        level(chance, summary.contrastive_at_chance, "nothing learnt, ln(2N − 1)")
        chance.set_ylim(0, 1.1 * max(chance.get_ylim()[1], summary.contrastive_at_chance))
        for panel in panels[1]:
            round_axis(panel, summary.rounds)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
        return svg(figure)


def schedule(summary: Summary) -> str:
    """The instability Delta and the alignment weight lambda_t over the rounds."""
    atsa = summary.config["atsa"]
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        instability, weight = figure.subplots(1, 2)
        line(instability, summary.instability, 1, "Δ")
        instability.set(title="Instability Δ of the global model (Eq. 5)", ylabel="relative change (no unit)")
        top = max(summary.instability)
        if atsa["instability_scale"] == "absolute":
            level(instability, atsa["stability_threshold"], "stable below")
            top = max(top, atsa["stability_threshold"])
        instability.set_ylim(0, 1.15 * top or 1.0)
        line(weight, summary.lambda_t, 0, "λ")
        weight.set(title="Alignment weight λ used in the round (Eq. 6)", ylabel="weight (no unit)")
        if atsa["schedule"] == "atsa":
            level(weight, atsa["lambda_min"], "λ min")
            level(weight, atsa["lambda_max"], "λ max")
        weight.set_ylim(0, 1.15 * max(*summary.lambda_t, atsa["lambda_max"]))
        for panel in (instability, weight):
            round_axis(panel, summary.rounds)
        return svg(figure)


def participation(summary: Summary) -> str:
    """Which site's update is in the aggregate of which round."""
    with rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(9, 0.75 + 0.3 * len(summary.sites)), layout="constrained")
        panel = figure.subplots()
        gap = min(0.08, 0.004 * summary.rounds + 0.03)
        for row, site in enumerate(summary.sites):
            for t in range(summary.rounds):
                accepted, refused = site in summary.participants[t], site in summary.refused[t]
                cell = Rectangle(
                    (t - 0.5 + gap, row - 0.5 + 0.1),
                    1 - 2 * gap,
                    0.8,
                    facecolor=COLOURS[0] if accepted else "#ffffff" if refused else "#edf1f4",
                    edgecolor=COLOURS[1] if refused else "none",
                    hatch="////" if refused else None,
                )
                panel.add_patch(cell)
        panel.set_xlim(-0.5, max(summary.rounds, 1) - 0.5)
        panel.set_ylim(len(summary.sites) - 0.5, -0.5)
        panel.set_yticks(range(len(summary.sites)), summary.sites)
        panel.spines[["left", "bottom"]].set_visible(False)
        panel.set_xlabel("round")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(
            handles=[
                Rectangle((0, 0), 1, 1, facecolor=COLOURS[0], label="in the aggregate"),
                Rectangle((0, 0), 1, 1, facecolor="#fff", edgecolor=COLOURS[1], hatch="////", label="asked, not in it"),
                Rectangle((0, 0), 1, 1, facecolor="#edf1f4", label="not asked"),
            ],
            loc="outside upper right",
            ncols=3,
            handlelength=1.2,
        )
        return svg(figure)


def probe(result: ProbeResult) -> str:
    """The scores beside those of their references, and the confusion matrix of the test split."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9, max(3.3, 1.7 + 0.42 * len(result.classes))), layout="constrained")
        scores, matrix = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _score_bars(scores, result)
        confusion(matrix, result.confusion, result.classes, "Confusion matrix, test images")
        return svg(figure)


def _score_bars(panel: Axes, result: ProbeResult) -> None:
    names = {"f1": "macro F1", "balanced_accuracy": "balanced\naccuracy", "accuracy": "accuracy", "auc": "AUC"}
    rows = {"this extractor": result, **result.references}
    width = 0.8 / len(rows)
    for index, (row, metrics) in enumerate(rows.items()):
        values = [number(getattr(metrics, name)) for name in names]
        places = np.arange(len(names)) - 0.4 + width * (index + 0.5)
        colour = COLOURS[0] if index == 0 else ("#b4c0cb", "#7f8e9c", "#56626e")[(index - 1) % 3]
        panel.bar(places, values, 0.92 * width, color=colour, label=row)
        for x, value in zip(places, values, strict=True):
            if math.isfinite(value):
                panel.annotate(
                    f"{value:.2f}", (x, value), (0, 2), textcoords="offset points", ha="center", fontsize=7.5
                )
    panel.set_xticks(range(len(names)), list(names.values()))
    panel.set(title="Scores on the unseen site's test images", ylabel="score, 0 to 1", ylim=(0, 1.08))
    panel.grid(axis="x", visible=False)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=min(len(rows), 3), fontsize=8.5)
