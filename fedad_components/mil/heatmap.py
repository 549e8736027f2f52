"""Where on a slide the model looks: attention as percentile ranks, laid over the slide; the most attended patches.

Pictures are PNG without any metadata, and name a slide by its pseudonym only. Needs numpy, scipy and matplotlib.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image
from scipy import stats

from fedad_components.mil.counts import Floats
from fedad_components.plotting import INK, SOFT, STYLE
from fedad_components.slides.reader import Pixels

ALPHA = 0.4
"""How much of a pixel under a patch is the percentile's colour."""
COLOURS = matplotlib.colormaps["viridis"]
"""Perceptually uniform, and read alike by colour-blind readers and in grey."""
COLUMNS = ("slide", "x", "y", "attention", "percentile")
"""Of scores.csv."""
DPI = 100
TEXT_WIDTH = 480
"""Pixels that the lines above a picture need."""
_BARS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
"""Lengths in µm that a scale bar may have."""


class Scored(NamedTuple):
    """A slide's patches with what the model makes of them."""

    slide: str
    """Pseudonym."""
    coordinates: npt.NDArray[np.int64]
    """``(P, 2)``: x and y of each patch's top left corner, in pixels of level 0."""
    footprint: float
    """Side of a patch in pixels of level 0."""
    mpp: float
    """µm/px of level 0."""
    attention: Floats
    """``(P,)``; the sum is 1."""
    prediction: str
    """In words."""

    @property
    def percentiles(self) -> Floats:
        """:func:`percentile_ranks` of the attention."""
        return percentile_ranks(self.attention)


def percentile_ranks(values: npt.ArrayLike) -> Floats:
    """The share in percent of a slide's patches ``(P,)`` with at most this value; equal ones share their mean rank."""
    values = np.asarray(values, dtype=np.float64)
    return 100 * stats.rankdata(values) / len(values)


def mean_by_pixel(
    values: Floats, coordinates: npt.NDArray[np.int64], footprint: float, scale: float, size: tuple[int, int]
) -> Floats:
    """Mean over the patches that cover each pixel of a small picture of the slide, ``(h, w)``; NaN where none does.

    Args:
        values: of the patches, ``(P,)``.
        coordinates: ``(P, 2)``: top left corners, in pixels of level 0.
        footprint: side of a patch in pixels of level 0.
        scale: pixels of the picture for one of level 0.
        size: width and height of the picture.
    """
    corners = np.stack([coordinates, coordinates + footprint]) * scale
    (left, top), (right, bottom) = np.rint(corners).astype(np.int64).transpose(0, 2, 1)
    right, bottom = np.maximum(right, left + 1), np.maximum(bottom, top + 1)
    width, height = size
    left, right = np.clip(left, 0, width), np.clip(right, 0, width)
    top, bottom = np.clip(top, 0, height), np.clip(bottom, 0, height)

    def added(weights: Floats) -> Floats:
        """Sum over rectangles: four corners each, then two running sums, whatever their size."""
        corners = np.zeros((height + 1, width + 1))
        for y, x, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
            np.add.at(corners, (y, x), sign * weights)
        return corners.cumsum(axis=0).cumsum(axis=1)[:height, :width]

    number = np.rint(added(np.ones(len(values))))
    return np.where(number > 0, added(values) / np.maximum(number, 1), np.nan)


def overlay(picture: Pixels, percentiles: Floats, alpha: float = ALPHA) -> Pixels:
    """A picture ``(h, w, 3)`` with the colours of percentiles ``(h, w)`` over it; as it is where they are NaN."""
    colours = 255 * COLOURS(np.clip(np.nan_to_num(percentiles) / 100, 0, 1))[:, :, :3]
    mixed = (1 - alpha) * picture + alpha * colours
    return np.rint(np.where(np.isnan(percentiles)[:, :, None], picture, mixed)).astype(np.uint8)


def heatmap_png(picture: Pixels, scale: float, scored: Scored) -> bytes:
    """The overlay, pixel for pixel, with a colour bar and a scale bar.

    Args:
        picture: the whole slide, small: uint8 ``(h, w, 3)``.
        scale: pixels of the picture for one of level 0.
    """
    height, width = picture.shape[:2]
    values = mean_by_pixel(scored.percentiles, scored.coordinates, scored.footprint, scale, (width, height))
    unit = max(1.0, max(width, height) / 1000)
    margin, head, foot, side = (round(unit * pixels) for pixels in (16, 54, 46, 110))
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(max(width + 2 * margin + side, TEXT_WIDTH), height + head + foot, unit)
        canvas.picture(overlay(picture, values), margin, head)
        canvas.title(f"Attention of slide {scored.slide}", f"{len(scored.attention):,} patches; {scored.prediction}")
        length = _bar_length(width * scored.mpp / scale)
        canvas.box(margin, head + height + 10 * unit, length / scored.mpp * scale, 4 * unit)
        text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
        canvas.text(margin, head + height + 20 * unit, text)
        axes = canvas.axes(width + 2 * margin, head, 18 * unit, min(height, 420 * unit))
        bar = canvas.figure.colorbar(ScalarMappable(cmap=COLOURS), cax=axes, format=PercentFormatter(1, symbol=""))
        bar.set_label("percentile of attention on this slide", fontsize=9 * unit)
        axes.tick_params(labelsize=9 * unit)
        axes.imshow(  # as it looks over white, since that is how it lies on the slide
            np.full((1, 1, 3), 255, np.uint8), extent=(0, 1, 0, 1), alpha=1 - ALPHA, aspect="auto", zorder=3
        )
        for edge in (bar.outline, *axes.spines.values()):
            edge.set_visible(False)
        return canvas.png()


def top_rows(attention: Floats, count: int) -> npt.NDArray[np.intp]:
    """Rows of the ``count`` most attended patches, or of all there are, the first first; of equal ones the earlier."""
    return np.argsort(-attention, kind="stable")[:count]


def patches_png(patches: Sequence[Pixels], rows: npt.NDArray[np.intp], scored: Scored, columns: int = 6) -> bytes:
    """A sheet of patches, uint8 ``(S, S, 3)`` of one S, with rank and percentile below each.

    Args:
        rows: of each patch in ``scored``, in the order of rank.
    """
    side, (margin, gap, head, caption) = len(patches[0]), (16, 12, 52, 26)
    columns = min(columns, len(patches))
    lines = -(-len(patches) // columns)
    width = max(2 * margin + columns * (side + gap) - gap, TEXT_WIDTH)
    height = head + lines * (side + caption + gap) - gap + margin
    micron, percentiles = scored.footprint * scored.mpp, scored.percentiles
    with matplotlib.rc_context(STYLE):
        canvas = _Canvas(width, height)
        canvas.title(
            f"Most attended patches of slide {scored.slide}",
            f"rank and percentile of {len(scored.attention):,}; each is {micron:.0f} µm wide",
        )
        for place, (patch, row) in enumerate(zip(patches, rows, strict=True)):
            line, column = divmod(place, columns)
            left, top = margin + column * (side + gap), head + line * (side + caption + gap)
            canvas.picture(patch, left, top)
            canvas.text(left, top + side + 5, f"{place + 1}", weight="bold")
            canvas.text(left + side, top + side + 5, f"{percentiles[row]:.1f} %", ha="right", color=SOFT)
        return canvas.png()


def score_lines(scored: Scored) -> Iterator[str]:
    """The lines of scores.csv for a slide, with :data:`COLUMNS`; line ends included."""
    for (x, y), attention, percentile in zip(
        scored.coordinates.tolist(), scored.attention.tolist(), scored.percentiles.tolist(), strict=True
    ):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow((scored.slide, x, y, f"{attention:.9g}", f"{percentile:.4f}"))
        yield line.getvalue()


class _Canvas:
    """A white figure measured in pixels from the top left; pictures are not resampled. ``unit`` enlarges its text."""

    def __init__(self, width: int, height: int, unit: float = 1.0) -> None:
        self.width, self.height, self.unit = width, height, unit
        # Half a pixel more: matplotlib rounds down, and a product of inches and dots may fall below a whole number.
        self.figure = Figure(figsize=((width + 0.5) / DPI, (height + 0.5) / DPI), dpi=DPI, facecolor="white")
        self._agg = FigureCanvasAgg(self.figure)

    def picture(self, pixels: Pixels, left: int, top: int) -> None:
        """Pixels ``(h, w, 3)`` with their top left corner there."""
        self.figure.figimage(pixels, left, self.height - top - len(pixels), origin="upper")

    def title(self, title: str, below: str) -> None:
        """Two lines at the top."""
        self.text(16 * self.unit, 10 * self.unit, title, size=11, weight="bold")
        self.text(16 * self.unit, 31 * self.unit, below)

    def text(self, left: float, top: float, text: str, size: float = 9, color: str = INK, **style: Any) -> None:
        """One line of text."""
        x, y = left / self.width, 1 - top / self.height
        self.figure.text(x, y, text, fontsize=size * self.unit, color=color, va="top", parse_math=False, **style)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes in that rectangle."""
        bottom = 1 - (top + height) / self.height
        return self.figure.add_axes((left / self.width, bottom, width / self.width, height / self.height))

    def box(self, left: float, top: float, width: float, height: float) -> None:
        """A filled rectangle."""
        axes = self.axes(left, top, width, height)
        axes.set(facecolor=INK, xticks=(), yticks=())
        axes.spines[:].set_visible(False)

    def png(self) -> bytes:
        """Pixels and nothing else: matplotlib's own writer names itself in the file."""
        self._agg.draw()
        content = io.BytesIO()
        Image.fromarray(np.asarray(self._agg.buffer_rgba())[:, :, :3]).save(content, "PNG")
        return content.getvalue()


def _bar_length(micron: float) -> float:
    """A round length in µm, at most a quarter of the picture's width."""
    return max((length for length in _BARS if length <= micron / 4), default=_BARS[0])
