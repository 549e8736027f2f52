"""The report: what logs say, and whether they hold, as one page for screen and paper that needs nothing else."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, StrictUndefined

from fedad_components.audit.event import Outcome, rfc3339
from fedad_components.audit.facts import Certificate, Left
from fedad_components.audit.findings import Verification
from fedad_components.audit.history import History, read_certificate, read_history
from fedad_components.audit.keys import load_root
from fedad_components.audit.reading import BadLine
from fedad_components.audit.verify import verify

SOON = timedelta(days=60)
"""A certificate that ends within it is named."""
MOST_ROWS = 5000
"""Of a table; how many more there are stands below it."""

_HASH = re.compile("[0-9a-f]{64}")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    """What the page is made of.

    Attributes:
        at: when it was made, UTC: what "expires soon" counts from.
        root: the consortium's root certificate, if it was given.
        bad: lines that are no events: they are in the verification's findings, and in no table.
    """

    verification: Verification
    history: History
    at: datetime
    root: Certificate | None
    bad: Sequence[BadLine]


def make_report(paths: Sequence[str | Path], root_ca: str | Path | None, at: datetime) -> Report:
    """Verify the logs, and read what they say.

    Args:
        paths: log files, folders of a log, or folders that hold several.
        root_ca: the consortium's root certificate; without it each certificate is believed.
        at: now, with its zone.

    Raises:
        VerifyError: if a path holds no log or cannot be read, or the root is no certificate.
    """
    verification = verify(paths, root_ca)
    bad: list[BadLine] = []
    history = read_history(paths, bad)
    return Report(verification, history, at, read_certificate(load_root(root_ca)) if root_ca else None, bad)


def render(report: Report) -> str:
    """The page: text escaped, no script, no reference to another file or host."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=visible
    )
    environment.filters.update(
        moment=_short_time, number=_number, brief=_brief, by_outcome=_by_outcome, shown=_shown, hidden=_hidden
    )
    history, soon = report.history, report.at + SOON
    in_use = [*history.in_use, *([report.root] if report.root else [])]
    template = files("fedad_components.audit").joinpath("assets/report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        verification=report.verification,
        history=history,
        at=rfc3339(report.at),
        now=report.at,
        root=report.root,
        bad=report.bad,
        in_use=in_use,
        ending=[one for one in in_use if one.ends <= soon],
        soon_days=SOON.days,
        left=_by_job(history.left),
        totals=_totals(history.left),
        refusals=sorted(history.refusals.values(), key=lambda row: (row.of.outcome is Outcome.FAILED, row.first)),
        accesses=sorted(history.accesses.values(), key=lambda row: row.first),
        changes=sorted(history.changes, key=lambda row: row.time),
        approvals=sorted(history.approvals, key=lambda row: row.time),
        jobs=sorted(history.jobs.values(), key=lambda job: job.first),
        people=sorted(history.people.items(), key=lambda item: item[0].name),
    )


def visible(value: Any) -> Any:
    """Text without what changes the look of other text: control characters, changes of direction, exotic spaces.

    Each is written as Python would escape it. HTML's own characters are escaped elsewhere.
    """
    if type(value) is not str or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in value)


def _by_job(rows: Iterable[Left]) -> Mapping[str, list[Left]]:
    jobs: dict[str, list[Left]] = defaultdict(list)
    for row in rows:
        jobs[row.job_id].append(row)
    return jobs


def _totals(rows: Iterable[Left]) -> dict[str, tuple[int, int]]:
    """Of each site: results, and bytes of their tensors."""
    results: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for row in rows:
        results[row.site] += 1
        sent[row.site] += row.payload.bytes if row.payload else 0
    return {site: (results[site], sent[site]) for site in sorted(results)}


def _short_time(time: str | datetime) -> str:
    """To the second, UTC."""
    text = time if isinstance(time, str) else rfc3339(time)
    return text.replace("T", " ")[: len("2030-01-31 08:00:00")]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _brief(text: str) -> str:
    """The beginning of a hash, which is enough to tell two apart; other text as it is."""
    return f"{text[:16]}…" if _HASH.fullmatch(text) else text


def _by_outcome(counts: Mapping[Outcome, int]) -> list[int]:
    return [counts.get(outcome, 0) for outcome in (Outcome.SUCCESS, Outcome.REFUSED, Outcome.FAILED)]


def _shown(rows: Iterable[Item]) -> list[Item]:
    return list(islice(rows, MOST_ROWS))


def _hidden(rows: Sequence[Item]) -> int:
    return max(0, len(rows) - MOST_ROWS)
