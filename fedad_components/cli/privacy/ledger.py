"""`fedad privacy ledger`: what a site's data sets have spent, and whether its ledger can be trusted."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.flare.site import SitePaths
    from fedad_components.privacy.ledger import Ledger, Row
    from fedad_components.privacy.policy import PrivacyRules

app = typer.Typer(no_args_is_help=True, help="Show and verify a site's privacy ledger; nothing here changes it.")

Kit = Annotated[Path, typer.Option(help="The site's startup kit, with startup/ and local/.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_console = Console()


@app.command(epilog="Example:  fedad privacy ledger show --kit /opt/fedad/hospital-1 --data-set images")
def show(
    kit: Kit = Path("."),
    data_set: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    as_json: AsJson = False,
) -> None:
    """Every data set's guarantee so far, what is left of its budget, and the charges by job."""
    from fedad_components.flare.site import SiteError, SitePolicy
    from fedad_components.privacy.ledger import LedgerError

    paths, ledger = _open(kit)
    try:
        everything = ledger.entries()
        rows = [row for row in everything if data_set in (None, row.entry.data_set)]
        if everything and not rows:
            known = ", ".join(sorted({row.entry.data_set for row in everything}))
            raise LedgerError(f"{ledger.path}: nothing was charged on data set {data_set!r}: expected one of {known}")
        policy = SitePolicy.load(paths.policy)
        names = sorted({row.entry.data_set for row in rows})
        totals = {name: _total(ledger, name, policy.rules(name)) for name in names}
    except (LedgerError, SiteError) as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps({"data_sets": totals, "rows": [_as_json(row) for row in rows]}, indent=2))
        return
    if not rows:
        _console.print(f"{ledger.path}: nothing was charged yet", highlight=False, soft_wrap=True)
        return
    for name, total in totals.items():
        _console.print(f"[bold]{name}[/]: {total['text']}", highlight=False, soft_wrap=True)
    table = Table()
    for column in (
        "data set",
        "experiment",
        "job",
        "rounds",
        "mode",
        "unit",
        "sigma",
        "q",
        "steps",
        "from",
        "to (UTC)",
    ):
        table.add_column(column)
    for group in _by_job(rows):
        table.add_row(*group)
    _console.print(table)


@app.command(epilog="Example:  fedad privacy ledger verify --kit /opt/fedad/hospital-1 --head 3fd2…")
def verify(
    kit: Kit = Path("."),
    head: Annotated[
        str | None,
        typer.Option(help="ledger_heads of this site in the server's rounds.jsonl: a ledger set back lacks it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every row, the chain and the head; exit 1 with the row and cause if the ledger cannot be trusted."""
    from fedad_components.privacy.ledger import LedgerError

    _, ledger = _open(kit)
    try:
        rows = ledger.entries()
        if head is not None and not ledger.contains(head):
            raise LedgerError(f"{ledger.path}: does not hold {head}: rolled back since that result, or another site's")
        exposed = ledger.open_to_others()
    except LedgerError as error:
        if as_json:
            print(json.dumps({"valid": False, "problem": str(error)}, indent=2))
        complain(error)
        raise typer.Exit(1) from None
    if exposed:
        complain(
            f"{ledger.path}: others may read or write it, and it takes no charge until you chmod 600 it", "warning"
        )
    last = rows[-1].hash if rows else None
    if as_json:
        print(json.dumps({"valid": True, "rows": len(rows), "head": last}, indent=2))
    else:
        _console.print(
            f"{ledger.path}: {len(rows)} rows, chain and head agree\nhead {last}", highlight=False, soft_wrap=True
        )


def _open(kit: Path) -> tuple[SitePaths, Ledger]:
    from fedad_components.flare.site import SitePaths
    from fedad_components.privacy.ledger import Ledger

    paths = SitePaths.of_kit(kit)
    if not paths.root.is_dir():
        complain(f"{paths.root}: missing: expected --kit to be a site's startup kit")
        raise typer.Exit(1)
    return paths, Ledger(paths.ledger, paths.ledger_head)


def _total(ledger: Ledger, data_set: str, rules: PrivacyRules) -> dict[str, Any]:
    """A data set's sum, as data and as a sentence in which no epsilon stands alone."""
    from fedad_components.privacy.ledger import budget_text

    claim = ledger.claim(data_set)
    budgets = {"max_epsilon": rules.max_epsilon, "max_epsilon_record": rules.max_epsilon_record}
    if claim is None:
        text = "no guarantee: rounds ran without differential privacy, and no epsilon holds for this data set"
        return {"claim": None, **budgets, "text": text}
    spent = {"max_epsilon": claim.epsilon_unit, "max_epsilon_record": claim.epsilon_record}
    left = [
        f"{name}: {(spent[name] or 0.0) / budget:.0%} spent of {budget_text(name, budget, claim)}"
        for name, budget in budgets.items()
        if budget is not None
    ]
    content = claim.model_dump(mode="json") | _meaning(claim.unit)
    return {"claim": content, **budgets, "text": f"{claim}; {', '.join(left) or 'no budget in policy.yaml'}"}


def _as_json(row: Row) -> dict[str, Any]:
    """A row; its epsilons are those of the whole data set after it."""
    content = asdict(row)
    return content | (_meaning(row.entry.unit) if row.entry.unit and row.epsilon_unit is not None else {})


def _meaning(unit: str) -> dict[str, str]:
    """What stands beside both epsilons, as in `fedad privacy plan --json`."""
    from fedad_components.privacy.claim import ACCOUNTANTS, adjacencies

    return {
        **{f"adjacency_{name}": adjacency for name, adjacency in adjacencies(unit).items()},
        **{f"accountant_{name}": accountant for name, accountant in ACCOUNTANTS.items()},
    }


def _by_job(rows: list[Row]) -> list[list[str]]:
    """One line a job and data set."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.entry.data_set, row.entry.experiment, row.entry.job_id), []).append(row)
    lines = []
    for (data_set, experiment, job_id), group in groups.items():
        first, last = group[0].entry, group[-1].entry
        dash = "–"
        lines.append(
            [
                data_set,
                experiment,
                job_id[:8],
                f"{first.round}–{last.round} ({len(group)})",
                last.mode,
                f"{last.unit} of {last.units}" if last.unit else dash,
                f"{last.noise_multiplier:g}" if last.noise_multiplier else dash,
                f"{last.sample_rate:.4g}" if last.sample_rate else dash,
                str(sum(row.entry.steps or 0 for row in group) or dash),
                group[0].time[:16],
                group[-1].time[:16],
            ]
        )
    return lines
