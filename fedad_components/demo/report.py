"""``report.html``: a demo's summary as one file that needs nothing else. Imports no FLARE."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fedad_components.demo import figures
from fedad_components.demo.summary import Summary
from fedad_components.files import write_atomic
from fedad_components.plotting import data_uri


def write_report(summary: Summary, path: str | Path) -> None:
    """Write the report: text escaped, plots inline, no script and no reference to another file or host."""
    write_atomic(path, render(summary).encode("utf-8"))


def render(summary: Summary) -> str:
    """The report's HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(size=size, duration=duration, score=score)
    plots = {}
    if summary.rounds:
        plots = {
            "schedule": figures.schedule(summary),
            "participation": figures.participation(summary),
        }
    if any(summary.losses):  # some privacy modes keep them at the site
        plots["losses"] = figures.losses(summary)
    if summary.probe:
        plots["probe"] = figures.probe(summary.probe)
    template = files("fedad_components").joinpath("demo/assets/report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        summary=summary,
        completed=summary.status == "FINISHED:COMPLETED",
        plots={name: data_uri(svg.encode("utf-8")) for name, svg in plots.items()},
        accuracy_error=_standard_error(summary),
        config=json.dumps(summary.config, indent=2),
    )


def size(count: int) -> str:
    """Bytes for people, in decimal units: ``size(44_728_832) == "44.7 MB"``."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds for people: ``duration(191.2) == "3 min 11 s"``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def score(value: float | None) -> str:
    """Three decimals, or a dash for a score that is not defined."""
    return "–" if value is None else f"{value:.3f}"


def _standard_error(summary: Summary) -> float | None:
    """Standard error of the accuracy if the test images were independent: sqrt(p (1 - p) / n)."""
    if summary.probe is None:
        return None
    return math.sqrt(summary.probe.accuracy * (1 - summary.probe.accuracy) / summary.probe.n_test)
