"""``report.html`` of HistoFL: slides with their attention, classification and survival, as one file. No FLARE.

Text is escaped, pictures are inline, there is no script and no reference to another file or host.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jinja2 import Environment, StrictUndefined
from PIL import Image

from fedad_components.files import write_atomic
from fedad_components.mil import figures
from fedad_components.mil.evaluate import Run, over_sites, table
from fedad_components.mil.evaluate_classes import ClassRun
from fedad_components.mil.evaluate_survival import SurvivalRun, group_names
from fedad_components.plotting import data_uri

SHOWN = (1400, 1400)
"""Width and height in pixels of a slide's pictures in the page, at most; the files beside it have more."""

Item = TypeVar("Item", bound=Run)


class SlideView(NamedTuple):
    """A slide's pictures."""

    slide: str
    """Pseudonym."""
    prediction: str
    """In words; empty where the page does not tell it."""
    patches_seen: int
    """All of the slide's."""
    heatmap: bytes
    patches: bytes
    """PNG."""


@dataclass(frozen=True)
class Report:
    """What the page shows; what is empty is left out.

    Attributes:
        title: of the page.
        facts: name and value of what the reader must know of the data and the training.
        notes: remarks that come first.
        classes: names of the classes, in the runs' order.
        classified: test patients by method, site and seed.
        survived: likewise.
        unit: of the survival times, such as ``months``.
        slides: with their attention.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    classes: Sequence[str] = ()
    classified: Sequence[ClassRun] = ()
    survived: Sequence[SurvivalRun] = ()
    unit: str = "months"
    slides: Sequence[SlideView] = ()


def write_report(report: Report, path: str | Path) -> None:
    """Write the page, atomically, for its owner to read.

    Raises:
        EvaluationError: if runs do not go together.
    """
    write_atomic(path, render(report).encode("utf-8"))


def render(report: Report) -> str:
    """The page's HTML; the same bytes for the same report.

    Raises:
        EvaluationError: if runs do not go together.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(shown=_shown, p_value=figures.p_value)
    scored = {"Classification": table(report.classified), "Survival": table(report.survived)}
    all_rows = [row for rows in scored.values() for row in rows]
    template = files("fedad_components").joinpath("mil/assets/report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        report=report,
        tables=[
            {"title": title, "names": list(dict.fromkeys(name for row in rows for name in row.scores)), "rows": rows}
            for title, rows in scored.items()
            if rows
        ],
        several_seeds=any(row.seeds > 1 for row in all_rows),
        binned=any(row.binned for row in all_rows),
        classified=list(_classified(report)),
        survived=list(_survived(report)),
    )


def _by_method(runs: Sequence[Item]) -> Mapping[str, list[Item]]:
    """All sites' patients: the runs of each method, one a seed."""
    methods: dict[str, list[Item]] = defaultdict(list)
    for run in over_sites(runs):
        methods[run.method].append(run)
    return methods


def _classified(report: Report) -> Iterator[dict[str, Any]]:
    """ROC curves and the confusion matrix of each method."""
    for method, runs in _by_method(report.classified).items():
        of_class = list(zip(*(run.rocs() for run in runs), strict=True))
        total = sum((run.confusion for run in runs[1:]), start=runs[0].confusion)
        seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
        yield {
            "method": method,
            "seeds": len(runs),
            "binned": runs[0].binned,
            "roc": _plot(figures.rocs(of_class, report.classes, runs[0].binned)),
            "confusion": _plot(figures.confusion(total.counts, report.classes, f"test patients{seeds}")),
        }


def _survived(report: Report) -> Iterator[dict[str, Any]]:
    """The first seed's curves of each method, and every seed's log-rank test."""
    for method, runs in _by_method(report.survived).items():
        groups = [run.groups() for run in runs]
        if not any(groups[0].curves):
            continue  # no site may tell them: the table says so
        names = group_names(len(groups[0].curves))
        yield {
            "method": method,
            "seed": runs[0].seed,
            "rule": runs[0].rule,
            "binned": runs[0].binned,
            "curves": _plot(figures.survival(groups[0], report.unit)),
            "names": names,
            "tests": [
                {
                    "seed": run.seed,
                    "numbers": [int(curve.at_risk[0]) if curve is not None else 0 for curve in found.curves],
                    "test": found.log_rank,
                }
                for run, found in zip(runs, groups, strict=True)
            ],
        }


def _plot(svg: str) -> str:
    return data_uri(svg.encode("utf-8"))


def _shown(png: bytes) -> str:
    """A slide's picture for the page: smaller, and as JPEG, or twenty slides would be a hundred megabytes."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.thumbnail(SHOWN, Image.Resampling.LANCZOS)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=88, subsampling=0)
    return data_uri(content.getvalue(), "jpeg")
