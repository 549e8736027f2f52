"""Plots of HistoFL's report: survival curves with their numbers at risk, ROC curves, confusion matrices. No FLARE.

Each function returns SVG text whose bytes depend on its arguments alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedad_components import plotting
from fedad_components.mil.counts import Floats, Ints
from fedad_components.mil.evaluate_classes import Roc
from fedad_components.mil.evaluate_survival import GroupCurves, group_names
from fedad_components.mil.survival_metrics import KaplanMeier, LogRank
from fedad_components.over_seeds import Estimate
from fedad_components.plotting import COLOURS, FAINT, INK, SOFT, STYLE, look

_GRID = np.linspace(0, 1, 401)
"""False-positive rates at which curves of several seeds are averaged."""
_TICKS = {"months": (1, 1.2, 2.4, 3.6, 6, 10)}
"""Steps of the time axis, times a power of ten: of months, whole years."""
_LABEL = 24
"""Letters of a class' name in a plot."""
_PANELS = 4
"""Beside each other in a figure."""


def p_value(p: float) -> str:
    """Three decimals, or the power of ten of a small one."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def survival(groups: GroupCurves, unit: str) -> str:
    """Kaplan-Meier curves with log-rank p, and who is still at risk below the time axis.

    Args:
        unit: of the times, such as ``months``.
    """
    names = group_names(len(groups.curves))
    end = max(float(curve.times[curve.at_risk > 0].max()) for curve in groups.curves if curve is not None)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 3.5 + 0.19 * len(names)), layout="constrained")
        panel = figure.subplots()
        for group, (name, curve) in enumerate(zip(names, groups.curves, strict=True)):
            if curve is not None:
                _curve(panel, curve, group, f"{name} (n = {curve.at_risk[0]})", groups.binned)
        panel.set(xlim=(0, end), ylim=(0, 1.02), ylabel="survival", xlabel=f"time in {unit}")
        panel.xaxis.set_major_locator(MaxNLocator(7, steps=_TICKS.get(unit, (1, 2, 2.5, 5, 10))))
        panel.legend(loc="lower left", title=_test(groups.log_rank), alignment="left", title_fontsize=9)
        _at_risk(panel, groups, names, [tick for tick in panel.get_xticks() if 0 <= tick <= end])
        return plotting.svg(figure)


def rocs(of_class: Sequence[Sequence[Roc | None]], classes: Sequence[str], binned: bool) -> str:
    """A panel for each class against the rest: every seed's curve, and of several seeds their mean.

    Args:
        of_class: of each class, the curve of each seed; None where there is none.
        classes: their names.
        binned: they come from histograms.
    """
    columns = min(len(classes), _PANELS)
    rows = -(-len(classes) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.45 * max(columns, 2), 2.75 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for number, (panel, curves, name) in enumerate(zip(panels, of_class, classes, strict=False)):
            _roc(panel, [roc for roc in curves if roc is not None], number)
            panel.set_title(_short(name), parse_math=False)
            panel.set(xlabel="1 − specificity" + (", binned" if binned else ""))
        for panel in panels[len(classes) :]:
            panel.remove()
        panels[0].set_ylabel("sensitivity")
        return plotting.svg(figure)


def confusion(counts: Ints, classes: Sequence[str], title: str) -> str:
    """A confusion matrix ``(K, K)``: true classes in rows, numbers on shares of the row."""
    side = 2.6 + 0.3 * max(0, len(classes) - 3)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(side + 0.5, side + 0.2), layout="constrained")
        plotting.confusion(figure.subplots(), counts, [_short(name).replace("$", "\\$") for name in classes], title)
        return plotting.svg(figure)


def _curve(panel: Axes, curve: KaplanMeier, group: int, label: str, binned: bool) -> None:
    """Steps, and a tick where somebody was censored; of counts it is not known where."""
    seen = curve.at_risk > 0
    times, levels = np.append(0, curve.times[seen]), np.append(1, curve.survival[seen])
    colour = COLOURS[group % len(COLOURS)]
    panel.step(times, levels, where="post", label=label, color=colour, linestyle=look(group)["linestyle"])
    if not binned:
        left = curve.at_risk - np.append(curve.at_risk[1:], 0)
        censored = left > curve.events
        panel.plot(
            curve.times[censored],
            curve.survival[censored],
            "|",
            color=colour,
            markersize=5,
            markeredgewidth=0.9,
        )


def _at_risk(panel: Axes, groups: GroupCurves, names: Sequence[str], ticks: Sequence[float]) -> None:
    """A line of numbers for each group below the axis' label, its name in the group's colour."""

    def write(place: tuple[float, int], text: str, colour: str, named: bool) -> None:
        x, line = place
        panel.annotate(
            text,
            (x, 0),
            (-14 if named else 0, -40 - 13.5 * line),
            ("data", "axes fraction"),
            "offset points",
            ha="right" if named else "center",
            va="center",
            fontsize=8,
            color=colour,
            annotation_clip=False,
        )

    panel.set_xticks(ticks)
    write((0, 0), "at risk*" if groups.binned else "at risk", SOFT, named=True)
    for line, (name, numbers) in enumerate(zip(names, groups.at_risk(ticks), strict=True), start=1):
        write((0, line), name, COLOURS[(line - 1) % len(COLOURS)], named=True)
        for tick, number in zip(ticks, numbers.tolist(), strict=True):
            write((tick, line), f"{number}", INK, named=False)


def _test(test: LogRank | None) -> str:
    if test is None:
        return "no log-rank test: one group only has events"
    return f"log-rank p = {p_value(test.p)}  (χ² = {test.chi2:.2f}, {test.degrees} d.f.)"


def _roc(panel: Axes, curves: Sequence[Roc], number: int) -> None:
    panel.plot((0, 1), (0, 1), color=FAINT, linestyle="--", linewidth=1)
    panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    colour, several = COLOURS[number % len(COLOURS)], len(curves) > 1
    for roc in curves:
        panel.plot(
            roc.false_positive_rate,
            roc.true_positive_rate,
            color=colour,
            linewidth=0.8 if several else 1.8,
            alpha=0.45 if several else 1,
        )
    if several:
        panel.plot(_GRID, mean_sensitivity(curves), color=colour)
    area = Estimate.of_defined([roc.auc for roc in curves])
    text = f"AUC {area}" if area else "does not occur, or is alone"
    panel.text(0.98, 0.05, text, ha="right", fontsize=8.5, transform=panel.transAxes)


def _short(name: str) -> str:
    """A class' name as a label: a long one would leave no room for the plot."""
    return name if len(name) <= _LABEL else name[: _LABEL - 1] + "…"


def mean_sensitivity(curves: Sequence[Roc]) -> Floats:
    """Vertical average (Fawcett 2006, section 8): mean sensitivity at each of 401 false-positive rates."""
    # At a jump np.interp takes the last of equal abscissae: the upper end.
    return np.mean([np.interp(_GRID, roc.false_positive_rate, roc.true_positive_rate) for roc in curves], axis=0)
