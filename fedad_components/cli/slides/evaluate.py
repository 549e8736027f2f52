"""``fedad slides evaluate``: a trained model on the site's own test patients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.messages import complain
from fedad_components.cli.slides.ending import fail, reported

if TYPE_CHECKING:
    from fedad_components.mil.evaluate import Run
    from fedad_components.mil.evaluation_file import SiteEvaluation

EPILOG = (
    "Examples:\n\nfedad slides evaluate result/fedad --features features --site hospital-a --kit /opt/fedad/hospital-a "
    "--out hospital-a.json\n\n"
    "fedad slides evaluate result/fedad --features features --site hospital-a --kit /opt/fedad/hospital-a "
    "--out hospital-a.json --cut -2.5 --patients private.csv\n\n"
    "Exit codes: 0 evaluated; 2 results, features and site do not fit together; 130 interrupted."
)


def evaluate(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="Folder of the job's results: model.safetensors, config.json, rounds.jsonl.",
            show_default=False,
        ),
    ],
    features: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that fedad slides prepare wrote, as it was in training.")
    ],
    site: Annotated[str, typer.Option(metavar="NAME", help="The site's name in the federation: the split follows it.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="JSON of counts that may be handed over.")],
    kit: Annotated[
        Path | None,
        typer.Option(metavar="KITDIR", help="The site's kit: its policy's privacy.min_cell_count is the least."),
    ] = None,
    min_cell: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Fewest patients behind a count in FILE, as many as the job's and the policy's, or more; default: "
            "those; without --kit the default policy's.",
        ),
    ] = None,
    cut: Annotated[
        list[float] | None,
        typer.Option(
            metavar="RISK",
            help="Survival: agreed risk between two groups, may be repeated; default: the site's median in training.",
        ),
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Also write each test patient's figures, which must not leave the site."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="How the model came about; a row of the report.")
    ] = "federated",
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1 ...")] = "auto",
) -> None:
    """Score a trained model on the site's own test patients.

    Prints the site's exact figures, for its own eyes. FILE holds counts
    only; fedad slides report adds up those of several sites.
    """
    with reported(out, "run the same command again"):
        from fedad_components.fedsd.trainer import choose_device
        from fedad_components.files import write_atomic
        from fedad_components.mil.site_evaluation import evaluate_site

        found = evaluate_site(
            results,
            features,
            site,
            device=choose_device(device),
            min_cell=min_cell,
            floor=_floor(kit, features, min_cell),
            cuts=cut or (),
            method=method,
        )
        earlier = _subtractable(out, found.told)
        write_atomic(out, found.told.model_dump_json(exclude_none=True).encode("utf-8"))
        if patients is not None:
            found.write_patients(patients)
    _print(found.run, found.told)
    console = Console(highlight=False, markup=False)
    console.print(f"k = {found.told.min_cell}: fewest patients of a kind of which counts are told", soft_wrap=True)
    console.print(f"Counts to hand over: {out}", soft_wrap=True)
    for note in found.notes:
        complain(note, "note")
    if earlier:
        complain(
            f"{out} held counts of the same patients by {earlier}: two such files can be subtracted from one another, "
            f"which tells of fewer patients than k: hand over one of them only",
            "warning",
        )
    if patients is not None:
        complain(f"{patients}: a line for each patient: it must not leave the site", "private")


def _floor(kit: Path | None, features: Path, min_cell: int | None) -> int:
    """The site's least count: its policy's, or the default one unless somebody asks for another in person.

    Of the data set whose folder it is, and of none the strictest: the job's own word for it comes from elsewhere.
    """
    from fedad_components.privacy.policy import PrivacyRules

    if kit is None:
        return PrivacyRules().min_cell_count if min_cell is None else 1
    from fedad_components.flare.site import SiteError, SitePaths, SitePolicy
    from fedad_components.imaging.catalogue import Catalogue

    paths = SitePaths.of_kit(kit)
    if not paths.root.is_dir():
        fail(f"{paths.root}: missing: expected --kit to be the site's startup kit, hardened")
    try:
        policy = SitePolicy.load(paths.policy)
    except SiteError as error:
        fail(error)
    data_sets = Catalogue.load(paths.catalogue).data_sets if paths.catalogue.exists() else {}
    of_folder = [name for name, entry in data_sets.items() if entry.folder.resolve() == features.resolve()]
    rules = [policy.rules(name) for name in of_folder] or [policy.privacy, *map(policy.rules, policy.data_sets)]
    return max(rule.min_cell_count for rule in rules)


def _subtractable(out: Path, told: SiteEvaluation) -> str:
    """By what an earlier file there counted the same patients under the same model; empty if there is none."""
    from fedad_components.mil.evaluate import EvaluationError
    from fedad_components.mil.evaluation_file import read_evaluation

    try:
        before = read_evaluation(out)
    except EvaluationError:
        return ""
    if (before.model_sha256, before.site, before.seed) != (told.model_sha256, told.site, told.seed):
        return ""
    differing = {"another cut": before.cuts != told.cuts, "another least count": before.min_cell != told.min_cell}
    return " and ".join(name for name, differs in differing.items() if differs)


def _print(run: Run, told: SiteEvaluation) -> None:
    """Exact figures, and beside them those that follow from what is told."""
    counts = told.run()
    table = Table("", Column("here", justify="right"), Column("from the counts", justify="right"))
    table.title, table.title_justify = f"Test patients of {run.site}, seed {run.seed}", "left"
    table.add_row("patients", str(run.patients), str(counts.patients))
    from_counts = dict(zip(run.scores(), counts.scores().values(), strict=True))
    for name, value in run.scores().items():
        table.add_row(name, _shown(value), _shown(from_counts[name]))
    Console(highlight=False, markup=False).print(table)
    if counts.patients < run.patients:
        complain(
            f"of {run.patients - counts.patients} patients nothing is told (survival: no curve): of their kind there "
            f"are fewer than {told.min_cell}",
            "note",
        )


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
