"""A diagnosis as a plot: how well a probe tells site and class from h, z_s and z_d. Imports matplotlib; no FLARE."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedad_components.evaluation.diagnose import DiagnoseError, Diagnosis, Predictability
from fedad_components.plotting import COLOURS, FAINT, INK, STYLE

OF = {"h": FAINT, "z_s": COLOURS[0], "z_d": COLOURS[1]}


def write_figure(diagnosis: Diagnosis, path: Path) -> None:
    """Write ``.svg`` or ``.png``, as the name says: bars over the heads' range, chance and confounder as lines.

    Raises:
        DiagnoseError: if there is neither site nor class to tell.
        ValueError: for another ending.
    """
    shown = {"Site": diagnosis.site, "Class": diagnosis.label}
    panels = {title: result for title, result in shown.items() if result}
    if not panels:
        raise DiagnoseError("one site without labels: there is neither a site nor a class to tell, and nothing to plot")
    with rc_context(STYLE):
        figure = Figure(figsize=(3.8 * len(panels), 3.6), layout="constrained")
        for axes, title in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _bars(axes, title, panels[title])
        figure.savefig(path)


def _bars(axes: Axes, title: str, result: Predictability) -> None:
    for position, (name, colour) in enumerate(OF.items()):
        score = getattr(result, name)
        if score is None:
            axes.text(position, 0.02, "dead", ha="center", fontsize=8)
            continue
        below, above = score.mean - score.low, score.high - score.mean
        axes.bar(position, score.mean, 0.6, color=colour, yerr=[[below], [above]], capsize=3)
        axes.annotate(f"{score.mean:.2f}", (position, score.high), (0, 3), textcoords="offset points", ha="center")
    axes.axhline(result.chance, color=INK, linestyle="--", label=f"chance, {result.chance:.2f}")
    if result.confounder is not None:
        other = "class" if result.what == "site" else "site"
        label = f"from the {other} alone, {result.confounder:.2f}"
        axes.axhline(result.confounder, color=INK, linestyle=":", label=label)
    axes.set_xticks(range(len(OF)), list(OF))
    axes.set_ylim(0, 1.35)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel("balanced accuracy, out of fold")
    axes.set_title(f"{title} ({len(result.classes)}, {result.images} images)")
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left")
