"""``results.md`` and ``results.html`` of a study. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedad_components.benchmark.histofl.outcome import Outcome
from fedad_components.benchmark.histofl.study import FEDERATED, Study
from fedad_components.benchmark.results import Facts
from fedad_components.benchmark.statistics import holm, paired
from fedad_components.files import write_atomic
from fedad_components.mil.bins import SurvivalError
from fedad_components.mil.evaluate import Run
from fedad_components.mil.evaluate_classes import Classified
from fedad_components.mil.evaluate_survival import Survived
from fedad_components.mil.figures import p_value
from fedad_components.mil.report import Report, write_report
from fedad_components.mil.survival_metrics import cumulative_dynamic_auc
from fedad_components.over_seeds import Estimate

NOTHING = "–"


def write_pages(study: Study, facts: Facts, outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Write both files into the folder, atomically."""
    paths = [folder / "results.md", folder / "results.html"]
    write_atomic(paths[0], markdown(study, facts, outcomes).encode("utf-8"))
    write_report(report(study, facts, outcomes), paths[1])
    return paths


def markdown(study: Study, facts: Facts, outcomes: Sequence[Outcome]) -> str:
    """All sites' test patients by row; others' figures; tests against the federated row; each site; what it cost."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # Markdown, no HTML
    text = files("fedad_components").joinpath("benchmark/assets/histofl.md.j2").read_text(encoding="utf-8")
    trained = _by_title(outcome for outcome in outcomes if not outcome.impossible)
    scores = {title: [_scores(study, outcome) for outcome in group] for title, group in trained.items()}
    names = list(dict.fromkeys(name for group in scores.values() for of_run in group for name in of_run))
    sites = list(dict.fromkeys(run.site for group in trained.values() for o in group for run in o.runs()))
    return environment.from_string(text).render(
        study=study,
        facts=facts,
        names=names,
        rows=[_row(title, group, scores[title], names) for title, group in trained.items()],
        tests=list(_tests(scores, trained, names[0])) if names else [],
        baseline=FEDERATED.title,
        sites=sites,
        by_site=[(title, [_at(site, group) for site in sites]) for title, group in trained.items()],
        impossible=_impossible(outcomes),
    )


def report(study: Study, facts: Facts, outcomes: Sequence[Outcome]) -> Report:
    """The page with curves: ROC and confusion, or Kaplan-Meier curves by risk group."""
    runs = [run for outcome in outcomes for run in outcome.runs()]
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    return Report(
        title=study.title,
        facts={"begun": facts.date, "command": facts.command, "versions": versions}
        | {f"to compare: {row}": f"{value} ({source})" for row, value, source in study.references},
        notes=[*study.notes, *_impossible(outcomes)],
        classes=study.settings["target"].get("classes", ()),
        classified=[run for run in runs if isinstance(run, Classified)],
        survived=[run for run in runs if isinstance(run, Survived)],
        unit="days",
    )


def _by_title(outcomes: Iterator[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.title, []).append(outcome)
    return groups


def _scores(study: Study, outcome: Outcome) -> dict[str, float | None]:
    """Of all sites' patients; of survival AUC(t) and the log-rank p of the risk groups, too."""
    whole = outcome.whole
    found = whole.scores()
    if isinstance(whole, Survived):
        test = whole.groups().log_rank
        return found | {"mean AUC(t)": _dynamic(whole, study.times), "log-rank p": test.p if test else None}
    return found


def _dynamic(run: Survived, times: Sequence[float]) -> float | None:
    """Mean cumulative/dynamic AUC; None where a time has no death before or no patient beyond it."""
    try:
        return cumulative_dynamic_auc(run.times, run.events, run.risks, times).mean
    except SurvivalError:
        return None


def _row(
    title: str, outcomes: Sequence[Outcome], scores: Sequence[dict[str, float | None]], names: Sequence[str]
) -> dict[str, Any]:
    """A row of the main table, as text."""
    last = Estimate.of_defined([outcome.last for outcome in outcomes])
    return {
        "title": title,
        "seeds": len(outcomes),
        "cells": [_cell(name, [of_run[name] for of_run in scores]) for name in names],
        "last": str(last) if last else NOTHING,
        "rounds": f"{fmean(outcome.rounds for outcome in outcomes):.1f}",
        "steps": f"{fmean(outcome.steps for outcome in outcomes):,.0f}",
        "seconds": f"{fmean(outcome.seconds for outcome in outcomes):.1f}",
    }


def _cell(name: str, values: Sequence[float | None]) -> str:
    """``0.914 ± 0.031``; of p the median and how many seeds are below .05."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    if name.endswith(" p"):
        return f"{p_value(median(known))} ({sum(p < 0.05 for p in known)} of {len(known)})"
    missing = f" ({len(known)})" if len(known) < len(values) else ""
    return f"{Estimate.of(known)}{missing}"


def _at(site: str, outcomes: Sequence[Outcome]) -> str:
    """The first score at one site."""
    runs: list[Run] = [run for outcome in outcomes for run in outcome.runs() if run.site == site]
    values = [next(iter(run.scores().values())) for run in runs]
    return _cell("", values)


def _tests(
    scores: dict[str, list[dict[str, float | None]]], trained: dict[str, list[Outcome]], name: str
) -> Iterator[dict[str, str]]:
    """Each row against the federated one, by seed."""
    of_seed = {
        title: {
            outcome.seed: value
            for outcome, of_run in zip(trained[title], group, strict=True)
            if (value := of_run[name]) is not None
        }
        for title, group in scores.items()
    }
    if FEDERATED.title not in of_seed:
        return
    reference = of_seed.pop(FEDERATED.title)
    tests = [paired(title, values, reference) for title, values in of_seed.items()]
    corrected = holm({test.method: test.t_p for test in tests if test.t_p is not None})
    for test in tests:
        if test.difference is None or test.low is None or test.high is None or test.t_p is None:
            continue
        yield {
            "title": test.method,
            "pairs": f"{test.n}",
            "difference": f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]",
            "p": p_value(test.t_p),
            "holm": p_value(corrected[test.method]),
        }


def _impossible(outcomes: Sequence[Outcome]) -> list[str]:
    """Rows that nobody could train, each with its seeds and the reason."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for outcome in outcomes:
        if outcome.impossible:
            seeds.setdefault((outcome.title, outcome.impossible), []).append(outcome.seed)
    return [
        f"{title}, seed{'s' if len(of_row) > 1 else ''} {', '.join(map(str, of_row))}: not trained: {reason}."
        for (title, reason), of_row in seeds.items()
    ]
