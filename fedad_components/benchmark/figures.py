"""The paper's Figures 6 to 15 from logged runs, each as SVG and PNG with its data as CSV. Imports no FLARE.

A figure is a function from :class:`Material` to its data and a picture; it raises :class:`Missing` where the runs do
not hold what it shows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedad_components.benchmark.logged import Group, LoggedRun, grouped
from fedad_components.benchmark.results import METRICS, Row
from fedad_components.evaluation.results import Result
from fedad_components.files import make_private_dir, write_atomic
from fedad_components.over_seeds import Estimate
from fedad_components.plotting import (
    COLOURS,
    FAINT,
    LOSSES,
    STYLE,
    confusion,
    label_ends,
    level,
    line,
    look,
    number,
    round_axis,
    svg,
    text_height,
    wrapped,
)
from fedad_components.records import RoundRecord

GRID = np.linspace(0.0, 1.0, 101)
"""False positive rates at which ROC curves are averaged."""
PNG_DPI = 160

Table = list[dict[str, Any]]
Picture = tuple[Table, Figure]


class Missing(ValueError):
    """The runs lack what a figure shows; the message says what."""


@dataclass(frozen=True)
class Material:
    """What there is to draw: groups of runs, the rows of all results, and the score of interest."""

    groups: list[Group]
    rows: list[Row]
    metric: str = "f1"

    @property
    def fedad(self) -> list[Group]:
        """Groups whose losses and schedule are the paper's; training with labels has neither.

        Raises:
            Missing: if there is none.
        """
        found = [
            group
            for group in self.groups
            if group.config.method == "fedad" and any(run.rounds and not run.supervised for run in group.runs)
        ]
        if not found:
            raise Missing("no finished round of method fedad")
        return found


@dataclass(frozen=True)
class Drawn:
    """What was written: figure -> its files; and figure -> why it was not drawn."""

    files: dict[str, list[Path]]
    missing: dict[str, str]


def draw_all(runs: Sequence[LoggedRun], rows: Sequence[Row], out: Path, metric: str = "f1") -> Drawn:
    """Draw every figure whose data are there.

    Args:
        runs: as :func:`~fedad_components.benchmark.logged.read_runs` gives them.
        rows: of the benchmark's results; may be empty.
        out: folder for ``<figure>.svg``, ``.png`` and ``.csv``; made where it is missing.
        metric: score of the sweep and the bars, a name of ``METRICS``.
    """
    make_private_dir(out)
    material = Material(grouped(runs), list(rows), metric)
    files: dict[str, list[Path]] = {}
    missing: dict[str, str] = {}
    for name, draw in FIGURES.items():
        try:
            with rc_context(STYLE):
                table, figure = draw(material)
                files[name] = _write(out / name, table, figure)
        except Missing as reason:
            missing[name] = str(reason)
    return Drawn(files, missing)


def _write(stem: Path, table: Table, figure: Figure) -> list[Path]:
    text, pixels = io.StringIO(), io.BytesIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    figure.savefig(pixels, format="png", dpi=PNG_DPI, metadata={"Software": None})
    contents = {".svg": svg(figure).encode("utf-8"), ".png": pixels.getvalue(), ".csv": text.getvalue().encode("utf-8")}
    paths = [stem.with_name(stem.name + ending) for ending in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content)
    return paths


def gamma_sweep(material: Material) -> Picture:
    """Figure 6: the score over the weight gamma of Eq. 4, other settings the same."""
    table: Table = []
    for group in material.groups:
        if group.config.method == "fedad":
            for run in group.runs:
                for (target, protocol), score in run.scores(material.metric).items():
                    table.append(
                        {
                            "others": _without_gamma(run),
                            "target": target,
                            "protocol": protocol,
                            "gamma": run.config.loss.gamma,
                            "seed": run.config.seed,
                            material.metric: score,
                        }
                    )
    sweeps = {
        key: members
        for key, members in _by(table, "others", "target", "protocol").items()
        if len({row["gamma"] for row in members}) > 1
    }
    if not sweeps:
        raise Missing("no runs of fedad with scores that differ in loss.gamma only: two values are the least")
    shown = [row for members in sweeps.values() for row in members]
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    panel = figure.subplots()
    ends = {}
    for index, ((_, target, protocol), members) in enumerate(sweeps.items()):
        points = _by(members, "gamma")
        gammas = sorted(key[0] for key in points)
        found = [Estimate.of([row[material.metric] for row in points[(gamma,)]]) for gamma in gammas]
        _error_line(panel, gammas, found, index)
        ends[f"{target}, {protocol}"] = (index, gammas[-1], found[-1].mean)
    panel.set(
        title=f"{METRICS[material.metric]} over γ (mean ± SD over seeds)",
        xlabel="γ, weight of the orthogonality loss (no unit)",
        ylabel=f"{METRICS[material.metric]}, 0 to 1",
    )
    named_lines(figure, panel, ends)
    return [{name: value for name, value in row.items() if name != "others"} for row in shown], figure


def convergence(material: Material) -> Picture:
    """Figure 7: NT-Xent of every method over the rounds, on a logarithmic scale."""
    groups = [group for group in material.groups if group.config.method != "fedema"]  # its loss is BYOL's
    table = _series(groups, {"nt_xent": lambda record: _mean_loss(record, "contrastive")})
    if not any(math.isfinite(row["nt_xent"]) and row["nt_xent"] > 0 for row in table):
        raise Missing("no run has a contrastive loss in its rounds (some privacy modes keep losses at the site)")
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    panel = figure.subplots()
    panel.set_yscale("log")
    for axis_ticks in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        axis_ticks("{x:g}")  # 2, not 2 x 10^0
    panel.set(
        title="Convergence (mean over sites; band: least to most over seeds)", ylabel="NT-Xent (no unit, log scale)"
    )
    for chance in sorted({math.log(2 * group.config.training.batch_size - 1) for group in groups}):
        level(panel, chance, f"nothing learnt, ln(2N − 1) = {chance:.2f}")
    _group_lines(figure, panel, table, "nt_xent")
    return table, figure


def loss_components(material: Material) -> Picture:
    """Figure 8: the losses of Eqs. 1 to 4 over the rounds, mean over sites."""
    table = _series(material.fedad, {name: lambda record, name=name: _mean_loss(record, name) for name in LOSSES})  # type: ignore[misc]
    if all(math.isnan(row["total"]) for row in table):
        raise Missing("the rounds hold no losses (some privacy modes keep them at the site)")
    figure = Figure(figsize=(11, 6), layout="constrained")
    for panel, (name, title) in zip(figure.subplots(2, 2).flat, LOSSES.items(), strict=True):
        panel.set(title=title, ylabel="loss (no unit)")
        _group_lines(figure, panel, table, name)
    return table, figure


def instability(material: Material) -> Picture:
    """Figure 9: Delta of Eq. 5 over the rounds."""
    table = _series(material.groups, {"instability": lambda record: record.instability})
    return table, _one_panel(
        table, "instability", "Instability Δ of the global model (Eq. 5)", "relative change (no unit)"
    )


def phases(material: Material) -> Picture:
    """Figure 10: the phase that ATSA reports after each round, a strip for each run."""
    runs = [(group.label, run) for group in material.fedad for run in group.runs]
    table: Table = [
        {"run": label, "seed": run.config.seed, "round": record.round, "phase": record.phase}
        for label, run in runs
        for record in run.rounds
    ]
    names = [f"{label}, seed {run.config.seed}" for label, run in runs]
    height = 0.14 + max(map(text_height, names)) / 72
    figure = Figure(figsize=(8.4, 1.1 + height * len(runs)), layout="constrained")
    panel = figure.subplots()
    colours = {"exploration": COLOURS[4], "enforcement": COLOURS[0]}
    for place, (_, run) in enumerate(runs):
        for record in run.rounds:
            panel.add_patch(Rectangle((record.round - 0.46, place - 0.4), 0.92, 0.8, facecolor=colours[record.phase]))
    panel.set_yticks(range(len(runs)), [*map(wrapped, names)], fontsize=8)
    panel.set(xlim=(-0.5, max(row["round"] for row in table) + 0.5), ylim=(len(runs) - 0.5, -0.5), xlabel="round")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.grid(visible=False)
    panel.spines[["left", "bottom"]].set_visible(False)
    thresholds = sorted({group.config.atsa.stability_threshold for group in material.fedad})
    threshold = " or ".join(f"{value:g}" for value in thresholds)
    texts = {"exploration": f"exploration, Δ > {threshold}", "enforcement": f"enforcement, Δ ≤ {threshold}"}
    figure.legend(
        handles=[Rectangle((0, 0), 1, 1, facecolor=colours[name], label=text) for name, text in texts.items()],
        loc="outside upper right",
        ncols=2,
        handlelength=1.2,
    )
    return table, figure


def alignment_weight(material: Material) -> Picture:
    """Figure 11: lambda_t of Eq. 6 over the rounds."""
    table = _series(material.fedad, {"lambda_t": lambda record: record.lambda_t})
    return table, _one_panel(table, "lambda_t", "Alignment weight λ used in the round (Eq. 6)", "weight (no unit)")


def site_losses(material: Material) -> Picture:
    """Beside Figure 12: each site's contrastive loss over the rounds, which needs no labels."""
    table: Table = [
        {
            "run": group.label,
            "seed": run.config.seed,
            "round": record.round,
            "site": site,
            "contrastive": losses.contrastive,
        }
        for group in material.groups
        for run in group.runs
        for record in run.rounds
        for site, losses in record.losses.items()
        if math.isfinite(number(losses.contrastive))  # supervised rows have none
    ]
    if not table:
        raise Missing("the rounds hold no losses (some privacy modes keep them at the site)")
    return table, _site_lines(table, "contrastive", "contrastive loss (no unit)")


def site_accuracy(material: Material) -> Picture:
    """Figure 12: each laboratory's score over the rounds, by cross-validated k-NN inside it; the unseen one marked."""
    metric = material.metric
    table: Table = [
        {
            "run": group.label,
            "seed": run.config.seed,
            "round": point.round,
            "site": f"{point.laboratory} (unseen)" if point.unseen else point.laboratory,
            metric: getattr(point.scores, metric),
        }
        for group in material.groups
        for run in group.runs
        for point in run.by_round
    ]
    if not table:
        raise Missing(
            "no run has a by_round.jsonl, as `fedad benchmark wbc --by-round` writes it; 12_site_losses shows the "
            "sites' losses instead"
        )
    return table, _site_lines(table, metric, f"{METRICS[metric]}, k-NN, 0 to 1")


def _site_lines(table: Table, column: str, unit: str) -> Figure:
    """A panel for each run and a line for each site over the rounds, mean over seeds."""
    groups, sites = _by(table, "run"), sorted({row["site"] for row in table})
    rounds = 1 + max(row["round"] for row in table)
    figure, panels = _panels(len(groups), 3.9, 2.7)
    for panel, ((label,), members) in zip(panels, groups.items(), strict=True):
        of_site, ends = _by(members, "site"), {}
        for (site,), points in of_site.items():
            values = [_nanmean([number(row[column]) for row in points if row["round"] == t]) for t in range(rounds)]
            line(panel, values, sites.index(site), site)
            if (last := _last(values)) is not None:
                ends[site] = (sites.index(site), *last)
        panel.set(title=wrapped(label), ylabel=unit)
        round_axis(panel, rounds)
        named_lines(figure, panel, ends)
    return figure


def method_bars(material: Material) -> Picture:
    """Figure 13: each method's score, mean and standard deviation over seeds, with the seeds themselves."""
    metric, rows = material.metric, [row for row in material.rows if material.metric in row.metrics]
    if not rows:
        raise Missing(f"no results.json with {metric}")
    table: Table = [
        {
            "target": row.target,
            "protocol": row.protocol,
            "transductive": row.transductive,
            "method": row.method,
            "seed": row.seed,
            metric: row.metrics[metric],
        }
        for row in rows
    ]
    methods = list(dict.fromkeys(row.method for row in rows))
    families = _by(table, "target", "protocol")
    row_height = max(0.27, 0.05 + max(map(text_height, methods)) / 72)
    figure, panels = _panels(len(families), 4.6, 0.9 + row_height * len(methods))
    for panel, ((target, protocol), members) in zip(panels, families.items(), strict=True):
        for (method,), points in _by(members, "method").items():
            place, values = methods.index(method), [row[metric] for row in points]
            found = Estimate.of(values)
            panel.barh(place, found.mean, 0.72, color=COLOURS[5], xerr=found.sd, error_kw={"capsize": 2.5, "lw": 1.2})
            panel.plot(values, [place] * len(values), "o", color=COLOURS[0], markersize=3, alpha=0.8)
            right = max(found.mean + (found.sd or 0.0), *values)
            panel.annotate(
                f"{found.mean:.2f} (n = {found.seeds})",
                (right, place),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        first = panel.get_subplotspec().is_first_col()
        panel.set_yticks(range(len(methods)), [*map(wrapped, methods)] if first else [""] * len(methods), fontsize=8)
        panel.set(ylim=(len(methods) - 0.5, -0.5), xlim=(0, 1.15), xlabel=f"{METRICS[metric]}, 0 to 1")
        panel.set_xticks(np.linspace(0, 1, 6))
        panel.set_title(f"{target}, {protocol}" + (" (transductive)" if members[0]["transductive"] else ""))
        panel.grid(axis="y", visible=False)
    return table, figure


def confusions(material: Material) -> Picture:
    """Figure 14: images of the target by true and predicted class, summed over seeds."""
    shown = _evaluated(material)
    table: Table = []
    figure, panels = _panels(len(shown), 4.4, 3.9)
    for panel, (group, target, results) in zip(panels, shown, strict=True):
        details = [result.detail for result in results if result.detail]
        classes = details[0].classes
        if any(detail.classes != classes for detail in details):
            raise Missing(f"{group.label}: the seeds were evaluated on different classes")
        counts = np.sum([detail.confusion for detail in details], axis=0)
        confusion(
            panel, counts, classes, f"{wrapped(group.label)}\n{target}, {results[0].name}, {_seeds(len(details))}"
        )
        table += [
            {
                "run": group.label,
                "target": target,
                "protocol": results[0].name,
                "true": classes[i],
                "predicted": classes[j],
                "images": int(count),
            }
            for (i, j), count in np.ndenumerate(counts)
        ]
    return table, figure


def roc(material: Material) -> Picture:
    """Figure 15: ROC, one class against the rest, averaged over classes and seeds at equal false positive rate."""
    of_target: dict[str, list[tuple[Group, list[Result], str]]] = {}
    for group, target, results in sorted(_evaluated(material), key=lambda shown: shown[1]):
        of_target.setdefault(target, []).append((group, results, _with_area(group.label, results)))
    longest = max(sum(text_height(text) for *_, text in curves) for curves in of_target.values())
    table: Table = []
    figure, panels = _panels(len(of_target), 6.0, max(4.2, 0.8 + 1.2 * longest / 72))
    for panel, (target, curves) in zip(panels, of_target.items(), strict=True):
        panel.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1.2)
        panel.annotate("chance", (0.5, 0.46), color=FAINT, fontsize=8)
        for index, (group, results, text) in enumerate(curves):
            curve = _mean_roc(results)
            panel.plot(GRID, curve, **look(index), markevery=12, markersize=4, label=wrapped(text))
            table += [
                {"run": group.label, "target": target, "false_positive_rate": x, "true_positive_rate": y}
                for x, y in zip(GRID.round(2).tolist(), curve.tolist(), strict=True)
            ]
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        panel.set(
            title=f"{target}, {curves[0][1][0].name}",
            xlabel="false positive rate",
            ylabel="true positive rate, mean over classes and seeds",
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
        )
    return table, figure


FIGURES: dict[str, Callable[[Material], Picture]] = {
    "06_gamma_sweep": gamma_sweep,
    "07_convergence": convergence,
    "08_loss_components": loss_components,
    "09_instability": instability,
    "10_phases": phases,
    "11_alignment_weight": alignment_weight,
    "12_site_accuracy": site_accuracy,
    "12_site_losses": site_losses,
    "13_method_bars": method_bars,
    "14_confusion": confusions,
    "15_roc": roc,
}
"""Name of the file, with the number of the paper's figure -> who draws it."""


def _series(groups: Sequence[Group], columns: dict[str, Callable[[RoundRecord], float]]) -> Table:
    """One row for each run and round.

    Raises:
        Missing: if no round is finished.
    """
    table: Table = [
        {
            "run": group.label,
            "seed": run.config.seed,
            "round": record.round,
            **{name: value(record) for name, value in columns.items()},
        }
        for group in groups
        for run in group.runs
        for record in run.rounds
    ]
    if not table:
        raise Missing("no finished round")
    return table


def _one_panel(table: Table, column: str, title: str, unit: str) -> Figure:
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    panel = figure.subplots()
    panel.set(title=f"{title}; mean, band: least to most over seeds", ylabel=unit)
    _group_lines(figure, panel, table, column)
    panel.set_ylim(bottom=0)
    return figure


def _group_lines(figure: Figure, panel: Any, table: Table, column: str) -> None:
    """A line for each group over the rounds: the mean over seeds in a band from the least to the most."""
    rounds, ends = 1 + max(row["round"] for row in table), {}
    for index, ((label,), members) in enumerate(_by(table, "run").items()):
        of_round = [[row[column] for row in members if row["round"] == t] for t in range(rounds)]
        values = [_nanmean(found) for found in of_round]
        line(panel, values, index, label)
        if len({row["seed"] for row in members}) > 1:
            low, high = ([pick(found, default=math.nan) for found in of_round] for pick in (min, max))
            panel.fill_between(range(rounds), low, high, color=look(index)["color"], alpha=0.14, linewidth=0)
        if (last := _last(values)) is not None:
            ends[label] = (index, *last)
    round_axis(panel, rounds)
    named_lines(figure, panel, ends)


def named_lines(figure: Figure, panel: Any, ends: dict[str, tuple[int, float, float]]) -> None:
    """Names at the lines' ends, placed once the panel has its size; it is made higher where they do not fit."""
    figure.draw_without_rendering()
    has = panel.get_window_extent().height * 72 / figure.dpi
    if (needed := sum(map(text_height, ends))) > has:
        figure.set_figheight(figure.get_figheight() * needed / has)
        figure.draw_without_rendering()
    label_ends(panel, ends)


def _error_line(panel: Any, x: Sequence[float], found: Sequence[Estimate], index: int) -> None:
    deviations = [number(item.sd) for item in found]
    panel.errorbar(x, [item.mean for item in found], deviations, **look(index), capsize=3)


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    """A figure with that many panels, at most three in a row; sizes in inches."""
    columns = min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def _evaluated(material: Material) -> list[tuple[Group, str, list[Result]]]:
    """Groups with an evaluation: target, and of each seed the first result that has a confusion matrix.

    Raises:
        Missing: if there is none.
    """
    shown = []
    for group in material.groups:
        evaluations = [run.evaluation for run in group.runs if run.evaluation]
        first = next((result.name for e in evaluations for result in e.results if result.detail), None)
        if first is not None:
            results = [result for e in evaluations for result in e.results if result.name == first and result.detail]
            shown.append((group, evaluations[0].target, results))
    if not shown:
        raise Missing("no run's folder has an evaluation.json, as `fedad probe --json` prints it, with this")
    return shown


def _with_area(label: str, results: Sequence[Result]) -> str:
    """The label with the mean AUC, where one is defined."""
    areas = [result.scores.auc for result in results if result.scores.auc is not None]
    return label + (f": AUC {np.mean(areas):.2f}" if areas else "")


def _mean_roc(results: Sequence[Result]) -> npt.NDArray[np.float64]:
    """True positive rates at ``GRID``, mean over classes and results; from (0, 0) to (1, 1)."""
    curves = [
        np.interp(GRID, curve.false_positive_rate, curve.true_positive_rate)
        for result in results
        if result.detail
        for curve in result.detail.roc.values()
    ]
    mean = np.mean(curves, axis=0)
    mean[0] = 0.0
    return mean


def _mean_loss(record: RoundRecord, name: str) -> float:
    return _nanmean([number(getattr(losses, name)) for losses in record.losses.values()])


def _nanmean(values: Sequence[float]) -> float:
    """Mean of what is there, NaN for nothing."""
    there = [value for value in values if not math.isnan(value)]
    return float(np.mean(there)) if there else math.nan


def _last(values: Sequence[float]) -> tuple[float, float] | None:
    """Round and value of the last point that is there."""
    return next(((t, values[t]) for t in reversed(range(len(values))) if not math.isnan(values[t])), None)


def _by(table: Table, *columns: str) -> dict[tuple[Any, ...], Table]:
    """Rows by the values of those columns, in the order in which they come."""
    found: dict[tuple[Any, ...], Table] = {}
    for row in table:
        found.setdefault(tuple(row[name] for name in columns), []).append(row)
    return found


def _without_gamma(run: LoggedRun) -> str:
    data = run.config.to_json()
    del data["loss"]["gamma"], data["seed"], data["federation"]["experiment"]
    return repr(data)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"sum of {count} seeds"
