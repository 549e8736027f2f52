"""``fedad slides evaluate``: a trained model on the site's own test patients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.messages import complain
from fedad_components.cli.slides.ending import reported

if TYPE_CHECKING:
    from fedad_components.mil.evaluate import Run
    from fedad_components.mil.evaluation_file import SiteEvaluation

EPILOG = (
    "Examples:  fedad slides evaluate result/fedad --features features --site hospital-a --out hospital-a.json  |  "
    "fedad slides evaluate result/fedad --features features --site hospital-a --out hospital-a.json --cut -2.5 "
    "--patients private.csv\n\n"
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
    min_cell: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Fewest patients behind a count in FILE; default: the job's, or more."),
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
            cuts=cut or (),
            method=method,
        )
        write_atomic(out, found.told.model_dump_json(exclude_none=True).encode("utf-8"))
        if patients is not None:
            found.write_patients(patients)
    _print(found.run, found.told)
    Console(highlight=False, markup=False).print(f"Counts to hand over: {out}", soft_wrap=True)
    if found.uncovered is not None:
        complain(f"the counts are exact: the epsilon of {found.uncovered} does not cover their leaving", "note")
    if patients is not None:
        complain(f"{patients}: a line for each patient: it must not leave the site", "private")


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
