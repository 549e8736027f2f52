"""The report's plots, each as SVG text. Colours are Okabe and Ito's, told apart by colour-blind readers; each site also
has its own marker. Imports no FLARE."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedad_components.demo.summary import Summary
from fedad_components.evaluation.probe import ProbeResult

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT = "#1f2933", "#8a97a5"
BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f8fb", COLOURS[0]])
LOSSES = {
    "total": "total (Eq. 1)",
    "contrastive": "contrastive, NT-Xent (Eq. 2)",
    "alignment": "alignment (Eq. 3)",
    "orthogonality": "orthogonality (Eq. 4)",
}

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e9ee",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "svg.hashsalt": "fedad",  # the same summary gives the same bytes
}


def losses(summary: Summary) -> str:
    """The four losses of each site's last local epoch over the rounds."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9, 5.4), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True)
        for panel, (name, title) in zip(panels.flat, LOSSES.items(), strict=True):
            for index, site in enumerate(summary.sites):
                values = [
                    _number(getattr(of_round[site], name)) if site in of_round else math.nan
                    for of_round in summary.losses
                ]
                _line(panel, values, index, site)
            panel.set_title(title)
            panel.set_ylabel("loss (no unit)")
        chance = panels.flat[1]
        _level(chance, summary.contrastive_at_chance, "nothing learnt, ln(2N − 1)")
        chance.set_ylim(0, 1.1 * max(chance.get_ylim()[1], summary.contrastive_at_chance))
        for panel in panels[1]:
            _round_axis(panel, summary.rounds)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
        return _svg(figure)


def schedule(summary: Summary) -> str:
    """The instability Delta and the alignment weight lambda_t over the rounds."""
    atsa = summary.config["atsa"]
    with rc_context(_STYLE):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        instability, weight = figure.subplots(1, 2)
        _line(instability, summary.instability, 1, "Δ")
        instability.set(title="Instability Δ of the global model (Eq. 5)", ylabel="relative change (no unit)")
        top = max(summary.instability)
        if atsa["instability_scale"] == "absolute":
            _level(instability, atsa["stability_threshold"], "stable below")
            top = max(top, atsa["stability_threshold"])
        instability.set_ylim(0, 1.15 * top or 1.0)
        _line(weight, summary.lambda_t, 0, "λ")
        weight.set(title="Alignment weight λ used in the round (Eq. 6)", ylabel="weight (no unit)")
        if atsa["schedule"] == "atsa":
            _level(weight, atsa["lambda_min"], "λ min")
            _level(weight, atsa["lambda_max"], "λ max")
        weight.set_ylim(0, 1.15 * max(*summary.lambda_t, atsa["lambda_max"]))
        for panel in (instability, weight):
            _round_axis(panel, summary.rounds)
        return _svg(figure)


def participation(summary: Summary) -> str:
    """Which site's update is in the aggregate of which round."""
    with rc_context({**_STYLE, "axes.grid": False}):
        figure = Figure(figsize=(9, 0.75 + 0.3 * len(summary.sites)), layout="constrained")
        panel = figure.subplots()
        gap = min(0.08, 0.004 * summary.rounds + 0.03)
        for row, site in enumerate(summary.sites):
            for number in range(summary.rounds):
                accepted, refused = site in summary.participants[number], site in summary.refused[number]
                cell = Rectangle(
                    (number - 0.5 + gap, row - 0.5 + 0.1),
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
        return _svg(figure)


def probe(result: ProbeResult) -> str:
    """The scores beside those of their references, and the confusion matrix of the test split."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9, max(3.3, 1.7 + 0.42 * len(result.classes))), layout="constrained")
        scores, matrix = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _score_bars(scores, result)
        _confusion(matrix, result)
        return _svg(figure)


def _score_bars(panel: Axes, result: ProbeResult) -> None:
    names = {"f1": "macro F1", "balanced_accuracy": "balanced\naccuracy", "accuracy": "accuracy", "auc": "AUC"}
    rows = {"this extractor": result, **result.references}
    width = 0.8 / len(rows)
    for index, (row, metrics) in enumerate(rows.items()):
        values = [_number(getattr(metrics, name)) for name in names]
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


def _confusion(panel: Axes, result: ProbeResult) -> None:
    counts = np.asarray(result.confusion)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    panel.imshow(share, cmap=BLUES, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        ink = "white" if share[row, column] > 0.55 else INK
        panel.text(column, row, f"{count}", ha="center", va="center", color=ink, fontsize=10)
    names = [name.replace("_", " ") for name in result.classes]
    turned = 0 if len(names) < 3 else 30
    panel.set_xticks(range(len(names)), names, rotation=turned, ha="right" if turned else "center")
    panel.set_yticks(range(len(names)), names)
    panel.set(title="Confusion matrix, test images", xlabel="predicted", ylabel="true")
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)


def _line(panel: Axes, values: Sequence[float], index: int, label: str) -> None:
    """One line over the rounds. A round without a value leaves a gap: then each point keeps its marker, else points
    between two gaps would be lost; without gaps, many rounds get few markers."""
    gaps = any(math.isnan(value) for value in values)
    panel.plot(
        range(len(values)),
        values,
        color=COLOURS[index % len(COLOURS)],
        marker=MARKERS[index % len(MARKERS)],
        markevery=1 if gaps else max(1, len(values) // 12),
        markersize=3 if gaps and len(values) > 20 else 5,
        label=label,
    )


def _level(panel: Axes, value: float, text: str) -> None:
    panel.axhline(value, color=FAINT, linestyle="--", linewidth=1.2)
    panel.annotate(
        text, (1, value), (0, 2), ("axes fraction", "data"), "offset points", ha="right", fontsize=8, color="#5b6875"
    )


def _round_axis(panel: Axes, rounds: int) -> None:
    panel.set_xlabel("round")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.set_xlim(-0.3, max(rounds - 1, 1) + 0.3)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
