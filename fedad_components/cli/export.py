"""`fedad export`: a finished job's result for others, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.export.result import JobResult

app = typer.Typer(no_args_is_help=True, help="Hand a trained extractor on: a model card, a MONAI bundle.")

Folder = Annotated[
    Path,
    typer.Argument(metavar="RESULT", help="The folder workspace/fedad of a downloaded job.", show_default=False),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The experiment's configuration, if RESULT has none.")
]
EvaluationFile = Annotated[
    Path | None, typer.Option("--evaluation", metavar="FILE", help="What `fedad probe --json` printed.")
]
Name = Annotated[str | None, typer.Option(help="Title; default: the experiment's name.")]
Licence = Annotated[str | None, typer.Option(help="Licence of the weights as Hugging Face spells it: cc-by-4.0 ...")]

_CODES = "\n\nExit codes: 0 written; 1 the result cannot be used, or the target exists."


@app.command(
    epilog="Example:  fedad export card result/workspace/fedad --evaluation evaluation.json --out MODEL_CARD.md"
    + _CODES
)
def card(
    result: Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The card, Markdown.")] = Path("MODEL_CARD.md"),
    config: ConfigFile = None,
    evaluation: EvaluationFile = None,
    name: Name = None,
    licence: Licence = None,
    force: Annotated[bool, typer.Option(help="Replace a file that exists.")] = False,
) -> None:
    """Write a model card from the records of the job. What only people know is left blank, and says so."""
    from fedad_components.export.model_card import model_card
    from fedad_components.export.result import ExportError
    from fedad_components.files import write_atomic

    found = _read(result, config, evaluation)
    if out.exists() and not force:
        complain(f"{out} exists: use --force, or another --out")
        raise typer.Exit(1)
    try:
        write_atomic(out, model_card(found, name or found.config.federation.experiment, licence).encode("utf-8"))
    except ExportError as error:
        complain(error)
        raise typer.Exit(1) from None
    except OSError as error:
        complain(f"{out}: cannot be written ({error.strerror}): expected a file in a folder that exists")
        raise typer.Exit(1) from None
    _tell(f"{out}\nFill in its blanks before you publish it; it names the sites: {', '.join(found.sites)}")


@app.command(
    epilog="Example:  fedad export bundle result/workspace/fedad --evaluation evaluation.json --out chest_encoder"
    + _CODES
)
def bundle(
    result: Folder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The bundle's folder, new or empty.")],
    config: ConfigFile = None,
    evaluation: EvaluationFile = None,
    name: Name = None,
    licence: Licence = None,
) -> None:
    """Write a MONAI bundle: weights, network and preprocessing that MONAI reads, with the model card."""
    from fedad_components.export.monai_bundle import write_bundle
    from fedad_components.export.result import ExportError
    from fedad_components.fedsd.state import StateError

    found = _read(result, config, evaluation)
    try:
        write_bundle(found, out, name or found.config.federation.experiment, licence)
    except (ExportError, StateError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    _tell(
        f"{out}\nIn it:  python -m monai.bundle run --config_file configs/inference.json --meta_file "
        f"configs/metadata.json --dataset_dir IMAGES\nFill in the blanks of docs/README.md before you publish it"
    )


def _read(folder: Path, config: Path | None, evaluation: Path | None) -> JobResult:
    from fedad_components.config import ConfigError
    from fedad_components.export.result import ExportError, JobResult
    from fedad_components.records import RecordsError

    try:
        return JobResult.read(folder, config, evaluation)
    except (ConfigError, ExportError, RecordsError) as error:
        complain(error)
        raise typer.Exit(1) from None


def _tell(text: str) -> None:
    Console().print(text, highlight=False, markup=False, soft_wrap=True)
