"""`fedad egress`: what a job would let out of a site, before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.egress_page import EgressPage
    from fedad_components.flare.site import SitePolicy
    from fedad_components.job_reader import Refusal

app = typer.Typer(no_args_is_help=True, help="See what a job would let out of a site.")

_console = Console()

REFUSED = 3
_GUARDS = {"class allow list", "code inside a job", "egress", "ingress", "channels"}
"""Findings of a kit's preflight on which the page's statements rest."""


@app.callback()
def _group() -> None:
    """Keep ``show`` a subcommand while it is the only one."""


@app.command(
    epilog="Example:  fedad egress show jobs/fedad_job --kit /opt/fedad/hospital-a\n\n"
    "Exit codes: 0 the site would run the job; 3 it would refuse it; 1 JOB or KIT cannot be read."
)
def show(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Folder of the job, as it was exported or submitted.")],
    kit: Annotated[
        Path | None,
        typer.Option(help="The site's startup kit: its policy and catalogue. Without: the default policy."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every tensor.")] = False,
) -> None:
    """The security officer's page: every tensor, every word, every channel, and what the site's policy says."""
    from fedad_components.flare.provision import KitError
    from fedad_components.flare.site import SiteError
    from fedad_components.imaging.catalogue import CatalogueError

    try:
        page = page_of(job, kit)
    except (CatalogueError, KitError, SiteError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(page.to_json(), indent=2))
    else:
        print_page(page, kit)
    if page.refusals:
        raise typer.Exit(REFUSED)


def page_of(job: Path, kit: Path | None) -> EgressPage:
    """What a job would let out of the site of a kit, or of one with the default policy.

    Raises:
        CatalogueError, KitError, SiteError, OSError: if job, kit, policy or catalogue cannot be read.
    """
    from fedad_components.egress_page import make_page
    from fedad_components.flare.allow_list import CLASS_ALLOW_LIST, class_path
    from fedad_components.flare.executor import FedADExecutor
    from fedad_components.flare.provision import PRIVACY_SCOPE
    from fedad_components.flare.site import SitePaths, SitePolicy
    from fedad_components.imaging.catalogue import Catalogue

    policy = SitePolicy.load(SitePaths.of_kit(kit).policy) if kit else None
    data_sets = Catalogue.load(SitePaths.of_kit(kit).catalogue).data_sets if kit else None
    page = make_page(
        job,
        CLASS_ALLOW_LIST,
        executor=class_path(FedADExecutor),
        scope=PRIVACY_SCOPE,
        policy=policy,
        data_sets=data_sets,
    )
    return _with_guards(kit, policy, page)


def _with_guards(kit: Path | None, policy: SitePolicy | None, page: EgressPage) -> EgressPage:
    """The page, refused where the kit lacks what the page counts on."""
    if kit is None or policy is None:
        return page
    from dataclasses import replace

    from fedad_components.flare.preflight import check
    from fedad_components.job_reader import Refusal

    weak = [
        Refusal(item.what, item.detail) for item in check(kit, network=False) if item.what in _GUARDS and not item.ok
    ]
    return replace(page, refusals=(*page.refusals, *weak, *_of_the_ledger(kit, policy, page)))


def _of_the_ledger(kit: Path, policy: SitePolicy, page: EgressPage) -> list[Refusal]:
    """What the data set's earlier rounds forbid: an epsilon beside rounds without one, and the other way round."""
    from fedad_components.flare.site import SitePaths
    from fedad_components.job_reader import Refusal
    from fedad_components.privacy.ledger import PROTECTED_MODE, Ledger, LedgerError

    if page.config is None:
        return []
    paths, data_set = SitePaths.of_kit(kit), page.config.federation.data_set
    rules = policy.rules(data_set)
    try:
        rows = Ledger(paths.ledger, paths.ledger_head).entries(data_set)
    except LedgerError as error:
        return [Refusal("ledger", str(error))]
    protected = page.config.privacy.mode == PROTECTED_MODE
    others = sum((row.entry.mode == PROTECTED_MODE) != protected for row in rows)
    if not others or (rules.max_epsilon is None and rules.max_epsilon_record is None):
        return []
    kind = "without" if protected else "with"
    return [
        Refusal(
            "ledger",
            f"data set {data_set!r} has been charged for {others} rounds {kind} differential privacy, and has a "
            f"budget: it cannot have both kinds. Register images that were never trained on under another id, or give "
            f"up the budget (max_epsilon: null)",
        )
    ]


def print_page(page: EgressPage, kit: Path | None) -> None:
    """The page as a person reads it."""
    from fedad_components.egress_page import PATHS, by_group
    from fedad_components.job_reader import printable
    from fedad_components.privacy.policy import Rule
    from fedad_components.wire import Reason

    def say(text: str) -> None:
        _console.print(text, highlight=False, markup=False, soft_wrap=True)

    config = page.config
    if config:
        say(
            f"job {printable(page.job)}: experiment {config.federation.experiment}, "
            f"data set {config.federation.data_set}, {config.federation.rounds} rounds, "
            f"configuration {config.digest()[:12]}…"
        )
        for name, sites in page.deployed.items():
            say(f"{printable(name)} goes to {printable(', '.join(sites))}")
        say("")
        table = Table("layers", "tensors", Column("bytes", justify="right"), title="Leaves with each round")
        for group, tensors in by_group(page.tensors).items():
            table.add_row(group, str(len(tensors)), f"{sum(tensor.bytes for tensor in tensors):,}")
        table.add_section()
        table.add_row("sum", str(len(page.tensors)), f"{page.bytes_per_round:,}")
        _console.print(table)
        total = page.bytes_per_round * config.federation.rounds
        say(f"{config.federation.wire_dtype}, over all rounds at most {total:,} bytes. Every tensor: --json\n")
        words = Table("field", Column("says", overflow="fold"), title="Beside them")
        for name, meaning in (page.meta or {}).items():
            words.add_row(name, meaning)
        words.add_section()
        words.add_row("or an error:", f"FLARE's code, and one of: {', '.join(reason.value for reason in Reason)}")
        words.add_row("", f"with a rule of the policy: {', '.join(rule.value for rule in Rule)}")
        _console.print(words)
        if page.counts:
            say("Counts of patients:")
            for count in page.counts:
                say(f"  {count}")
            say("")
        ways = Table("path", Column("what FedAD does", overflow="fold"), title="Every way out of the site's processes")
        for way in PATHS:
            ways.add_row(way.name, way.fedad)
        _console.print(ways)
        say("Stays: " + "; ".join(page.stays))
        say(f"\nPrivacy mode {config.privacy.mode}. {page.statement}")
        if page.claim:
            say(f"Planned: {page.claim}")
    for note in page.notes:
        say(f"Note: {printable(note)}")
    site = f"{kit}" if kit else "a site with the default policy (no --kit)"
    if page.refusals:
        say(f"\nREFUSED by {site}:")
        for refusal in page.refusals:
            say(f"  {refusal.by}: {printable(refusal.why)}")
    else:
        say(f"\nWould run at {site}.")
