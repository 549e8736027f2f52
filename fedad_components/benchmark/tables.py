"""``results.md`` and ``results.html``: the rows as tables, and the tests beneath. Imports no FLARE."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedad_components.benchmark.results import METRICS, Results, Row
from fedad_components.benchmark.statistics import Family, Test, compare, paired
from fedad_components.benchmark.variants import JITTERED
from fedad_components.demo.report import duration, size
from fedad_components.files import write_atomic
from fedad_components.over_seeds import Estimate

NOTHING = "–"
FOOTNOTES = (
    "¹ NT-Xent of the last round, mean over sites and seeds; in brackets ln(2N − 1), its value where nothing has been "
    "learnt (N: the batch size). ⚠: it ended within 10 % of that in some seeds, so the row says little about the "
    "method. A dash: the method has no such loss.",
    "² Paired by seed; two-sided. Difference: method minus baseline with its 95 % t interval. Holm: corrected over the "
    "methods of one target and protocol, each test apart. d_z: mean over standard deviation of the differences; g_z: "
    "the same with Hedges' exact correction for few pairs. The seeds vary the training, not the patients.",
    "³ Mean over seeds. Steps: optimisation steps over all sites. Time: wall clock, on the machine of the run. Sent: "
    "bytes of the tensors from all sites in all rounds, without transport overhead.",
    "Transductive: the unlabelled test images as a whole were used before the test, for their mean and deviation "
    "(by site) or for BatchNorm's statistics (AdaBN); such a figure cannot be had for a single new patient.",
)


def write_tables(results: Results, folder: str | Path, baseline: str, metric: str = "balanced_accuracy") -> list[Path]:
    """Write both files into the folder, atomically.

    Raises:
        StatisticsError: for a metric that no row has, or a baseline that no row is of.
    """
    paths = [Path(folder) / "results.md", Path(folder) / "results.html"]
    for path, text in zip(paths, (markdown(results, baseline, metric), html(results, baseline, metric)), strict=True):
        write_atomic(path, text.encode("utf-8"))
    return paths


def markdown(results: Results, baseline: str, metric: str = "balanced_accuracy") -> str:
    """One score by every protocol; means of every score, tests of that one against the baseline; costs and footnotes.

    Raises:
        StatisticsError: for a metric that no row has, or a baseline that no row is of.
    """
    return _render("results.md.j2", results, baseline, metric)


def html(results: Results, baseline: str, metric: str = "balanced_accuracy") -> str:
    """The same as one page that refers to nothing outside; text is escaped.

    Raises:
        StatisticsError: for a metric that no row has, or a baseline that no row is of.
    """
    return _render("results.html.j2", results, baseline, metric)


def _render(template: str, results: Results, baseline: str, metric: str) -> str:
    page = template.endswith(".html.j2")
    environment = Environment(
        autoescape=page,
        finalize=None if page else _one_cell,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = files("fedad_components").joinpath(f"benchmark/assets/{template}").read_text(encoding="utf-8")
    families = {(family.target, family.protocol): family for family in compare(results.rows, baseline, metric)}
    return environment.from_string(text).render(
        facts=results.facts,
        overviews=overviews(results.rows, metric),
        sections=list(_sections(results.rows, families)),
        costs=list(_costs(results.rows)),
        baseline=baseline,
        metric=METRICS[metric],
        footnotes=FOOTNOTES,
    )


def overviews(rows: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    """One for each target: a row for each method, and one score of it by every protocol, as text."""
    found = []
    for (target,), members in _grouped(rows, "target").items():
        transductive = {row.protocol: row.transductive for row in members}
        of_method = _grouped(members, "method")
        cells = {
            method: [[row.metrics[metric] for row in group if row.protocol == name and metric in row.metrics]
                     for name in transductive]
            for (method,), group in of_method.items()
        }  # fmt: skip
        found.append(
            {
                "target": target,
                "protocols": [name + (" (transductive)" if late else "") for name, late in transductive.items()],
                "rows": [
                    {
                        "method": method,
                        "n": len({row.seed for row in group}),
                        "cells": _marked(cells[method], list(cells.values())),
                        "nt_xent": _nt_xent(list({row.seed: row for row in group}.values())),
                    }
                    for (method,), group in of_method.items()
                ],
                "jitter": [*_jitter_effects(members, list(transductive), metric)],
            }
        )
    return found


def _jitter_effects(rows: Sequence[Row], protocols: Sequence[str], metric: str) -> Iterator[dict[str, Any]]:
    """What stain jitter adds to each method with two seeds or more with and without it, paired, by every protocol."""
    scores = {
        key: {row.seed: row.metrics[metric] for row in group if metric in row.metrics}
        for key, group in _grouped(rows, "method", "protocol").items()
    }
    for (method,) in _grouped(rows, "method"):
        pairs = [(scores.get((method + JITTERED, name), {}), scores.get((method, name), {})) for name in protocols]
        if (n := max(len(jittered.keys() & plain.keys()) for jittered, plain in pairs)) > 1:
            yield {
                "method": method,
                "n": n,
                "cells": [_difference(paired(method, *pair)) for pair in pairs],
            }


def _marked(scores: Sequence[Sequence[float]], all_scores: Sequence[Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """A method's cells, each with whether it is the best of its column; ``all_scores`` has those of every method.

    One seed is no evidence: where some method has several, none that has one is the best.
    """
    marked = []
    for values, column in zip(scores, zip(*all_scores, strict=True), strict=True):
        least = 2 if any(len(others) > 1 for others in column) else 1
        top = max((fmean(others) for others in column if len(others) >= least), default=math.nan)
        marked.append({"text": _mean(values), "best": len(values) >= least and math.isclose(fmean(values), top)})
    return marked


def _one_cell(value: object) -> object:
    """A label with a bar or a new line would end its cell of a Markdown table, and HTML in it would be HTML."""
    if not isinstance(value, str):
        return value
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(value.splitlines())).replace("|", "\\|")  # "< .001" stays


def _sections(rows: Sequence[Row], families: dict[tuple[str, str], Family]) -> Iterator[dict[str, Any]]:
    """One for each target and protocol, with the rows of its two tables as text."""
    for (target, protocol), members in _grouped(rows, "target", "protocol").items():
        metrics = [name for name in METRICS if any(name in row.metrics for row in members)]
        of_method = _grouped(members, "method")
        scores = {
            method: [[row.metrics[name] for row in group if name in row.metrics] for name in metrics]
            for (method,), group in of_method.items()
        }
        yield {
            "target": target,
            "protocol": protocol,
            "transductive": any(row.transductive for row in members),
            "metrics": [METRICS[name] for name in metrics],
            "rows": [
                {
                    "method": method,
                    "n": len(group),
                    "cells": _marked(scores[method], list(scores.values())),
                    "nt_xent": _nt_xent(group),
                }
                for (method,), group in of_method.items()
            ],
            "tests": [_test(test) for test in families[target, protocol].tests]
            if (target, protocol) in families
            else [],
        }


def _costs(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """A row for each method and target; all protocols of a seed share one training."""
    for (method, target), members in _grouped(rows, "method", "target").items():
        trainings = list({row.seed: row for row in members}.values())
        yield {
            "method": method,
            "target": target,
            "n": len(trainings),
            "steps": f"{fmean(row.steps for row in trainings):,.0f}",
            "images": f"{fmean(row.images for row in trainings):,.0f}",
            "seconds": duration(fmean(row.seconds for row in trainings)),
            "bytes": size(round(fmean(row.bytes for row in trainings))),
        }


def _grouped(rows: Sequence[Row], *fields: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the values of those fields, in the order in which they come."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, field) for field in fields), []).append(row)
    return groups


def _mean(values: Sequence[float]) -> str:
    """``0.540 ± 0.031``; without the deviation for one value."""
    return str(Estimate.of_defined(values) or NOTHING)


def _nt_xent(rows: Sequence[Row]) -> str:
    """``3.21 (4.84)``, with a warning and the number of seeds in which nothing was learnt."""
    trained = [row for row in rows if row.nt_xent is not None]
    if not trained:
        return NOTHING
    loss = fmean(row.nt_xent or 0.0 for row in trained)
    chance = fmean(row.nt_xent_chance or 0.0 for row in trained)
    failed = sum(row.untrained for row in trained)
    return f"{loss:.2f} ({chance:.2f})" + (f" ⚠ {failed} of {len(trained)}" if failed else "")


def _test(test: Test) -> dict[str, Any]:
    """The figures of a test as text."""
    p = {name: _p(getattr(test, name)) for name in ("t_p", "t_p_holm", "wilcoxon_p", "wilcoxon_p_holm")}
    effect = {name: NOTHING if (value := getattr(test, name)) is None else f"{value:+.2f}" for name in ("d_z", "g_z")}
    return {
        "method": test.method,
        "n": test.n,
        "difference": _difference(test),
        **p,
        **effect,
        "remark": "; ".join(test.notes),
    }


def _difference(test: Test) -> str:
    """``+0.048 [-0.185, +0.281]``."""
    if test.difference is None:
        return NOTHING
    interval = "" if test.low is None or test.high is None else f" [{test.low:+.3f}, {test.high:+.3f}]"
    return f"{test.difference:+.3f}{interval}"


def _p(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "< .001" if value < 0.001 else f"{value:.3f}"
