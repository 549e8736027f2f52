"""What the plots share: style, lines over the rounds, labels at their ends, a confusion matrix. Imports no FLARE.

Colours are Okabe and Ito's, told apart by colour-blind readers; each line also has its own marker, and from the seventh
on its own dashes.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
INK, FAINT, SOFT = "#1f2933", "#8a97a5", "#5b6875"
BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f8fb", COLOURS[0]])

LOSSES = {
    "total": "total (Eq. 1)",
    "contrastive": "contrastive, NT-Xent (Eq. 2)",
    "alignment": "alignment (Eq. 3)",
    "orthogonality": "orthogonality (Eq. 4)",
}

STYLE: dict[Any, Any] = {
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
    "text.parse_math": False,  # a folder's name may hold a dollar sign
    "svg.hashsalt": "fedad",  # the same data give the same bytes
}


def line(panel: Axes, values: Sequence[float], index: int, label: str, x: Sequence[float] | None = None) -> None:
    """One line over ``x``, by default the rounds. A value that is NaN leaves a gap: then each point keeps its marker,
    else points between two gaps would be lost; without gaps, many rounds get few markers."""
    gaps = any(math.isnan(value) for value in values)
    panel.plot(
        range(len(values)) if x is None else x,
        values,
        **look(index),
        markevery=1 if gaps else max(1, len(values) // 12),
        markersize=3 if gaps and len(values) > 20 else 5,
        label=label,
    )


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line of that number."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def level(panel: Axes, value: float, text: str) -> None:
    """A dashed horizontal line with its meaning at the right end."""
    panel.axhline(value, color=FAINT, linestyle="--", linewidth=1.2)
    panel.annotate(
        text, (1, value), (0, 2), ("axes fraction", "data"), "offset points", ha="right", fontsize=8, color=SOFT
    )


def label_ends(panel: Axes, ends: Mapping[str, tuple[int, float, float]], size: float = 8) -> None:
    """Name each line at its right end, in its own colour; names that would overlap are moved apart and led back.

    Args:
        panel: with its final scales and limits; it needs room at its right, which the layout gives to texts.
        ends: label -> number of the line, and x and y of its last point.
        size: of the letters, in points.
    """
    if not ends:
        return
    to_points = 72 / panel.figure.dpi
    ordered = sorted(ends.items(), key=lambda item: panel.transData.transform(item[1][1:])[1])
    height = panel.get_window_extent().height * to_points
    true = [panel.transData.transform(end[1:])[1] * to_points for _, end in ordered]
    bottom = panel.get_window_extent().y0 * to_points
    places = spread([y - bottom for y in true], [text_height(label, size) for label, _ in ordered], height)
    for (label, (index, x, y)), place in zip(ordered, places, strict=True):
        panel.annotate(
            wrapped(label),
            (x, y),
            (1.03, place / height),
            textcoords="axes fraction",
            va="center",
            fontsize=size,
            color=look(index)["color"],
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "color": look(index)["color"],
                "linewidth": 0.6,
                "alpha": 0.6,
            },
        )


def wrapped(label: str, width: int = 36) -> str:
    """The label in lines of about that many letters, broken after +, @, / or a space: names of rows can be long."""
    lines = [""]
    for part in re.split(r"(?<=[+@/ ])", label):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(text.rstrip() for text in lines)


def text_height(label: str, size: float = 8) -> float:
    """Height in points of the label as :func:`wrapped` breaks it, with some room around it."""
    return 1.3 * size * (1 + wrapped(label).count("\n"))


def spread(wanted: Sequence[float], heights: Sequence[float], height: float) -> list[float]:
    """Ascending centres of things so high, near the wanted ones; apart, and inside 0 to ``height`` if they fit."""
    places: list[float] = []
    floor = 0.0
    for place, own in zip(wanted, heights, strict=True):
        places.append(max(place, floor + own / 2))
        floor = places[-1] + own / 2
    ceiling = height
    for index in reversed(range(len(places))):
        places[index] = min(places[index], ceiling - heights[index] / 2)
        ceiling = places[index] - heights[index] / 2
    return places


def round_axis(panel: Axes, rounds: int) -> None:
    """Whole rounds at the bottom."""
    panel.set_xlabel("round")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.set_xlim(-0.3, max(rounds - 1, 1) + 0.3)


def confusion(panel: Axes, counts: npt.ArrayLike, classes: Sequence[str], title: str) -> None:
    """A confusion matrix ``(K, K)``, true classes in rows: numbers of images on shares of the true class."""
    counts = np.asarray(counts)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    panel.imshow(share, cmap=BLUES, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        ink = "white" if share[row, column] > 0.55 else INK
        panel.text(column, row, f"{count}", ha="center", va="center", color=ink, fontsize=10)
    names = [name.replace("_", " ") for name in classes]
    turned = 0 if len(names) < 3 else 30
    panel.set_xticks(range(len(names)), names, rotation=turned, ha="right" if turned else "center")
    panel.set_yticks(range(len(names)), names)
    panel.set(title=title, xlabel="predicted", ylabel="true")
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)


def number(value: float | None) -> float:
    """NaN, which leaves a gap, for a value that is not there."""
    return math.nan if value is None else value


def svg(figure: Figure) -> str:
    """The figure as SVG text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def data_uri(image: bytes, kind: str = "svg+xml") -> str:
    """An image inside a page, of its own, so that identifiers of two plots cannot meet in one document."""
    return f"data:image/{kind};base64," + base64.b64encode(image).decode("ascii")
