"""`fedad probe`: what an extractor is worth on images that no site trained on."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.evaluation.results import Evaluation, Result

EPILOG = (
    "Examples:\n\nfedad probe extractor.safetensors --catalogue catalogue.yaml --train hospital-a --train hospital-b "
    "--test hospital-c\n\nfedad probe extractor.safetensors --catalogue catalogue.yaml --test hospital-c "
    "--protocol target --json\n\n"
    "Exit codes: 0 evaluated; 1 the extractor, the catalogue or a data set cannot be used; 130 interrupted."
)


METRICS = {"f1": "macro F1", "balanced_accuracy": "balanced\naccuracy", "accuracy": "accuracy", "auc": "AUC"}
"""Scores of the table, and their heads; the others are in the JSON"""

INSIDE = {"f1": "macro F1", "balanced_accuracy": "balanced accuracy"}


class Choice(str, Enum):
    """Names of the protocols, without importing torch."""

    SOURCE = "source"
    TARGET = "target"
    FEW_SHOT = "few-shot"
    KNN = "knn"
    FINE_TUNE = "fine-tune"


def probe(
    extractor: Annotated[
        Path, typer.Argument(metavar="EXTRACTOR", help="extractor.safetensors of a job's result.", show_default=False)
    ],
    catalogue: Annotated[
        Path, typer.Option(metavar="FILE", help="Catalogue of the data sets, each with a table that names a label.")
    ],
    test: Annotated[str, typer.Option(metavar="ID", help="Data set that is tested; unseen in training.")],
    train: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Data set whose labels train a classifier; may be repeated.")
    ] = None,
    protocol: Annotated[
        list[Choice] | None,
        typer.Option(help="May be repeated. Default: all but fine-tune; without --train: target and few-shot."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of folds, draws, resamples and fine-tuning.")] = 0,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 ...")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with ROC and confusion.")] = False,
) -> None:
    """Evaluate a frozen extractor with labels of the training data sets on an unseen one.

    Prints macro F1, balanced accuracy, accuracy and AUC of each protocol
    with 95 % intervals; figures that used the test images as a whole are
    marked as transductive. Labels are read here only, never in training.

    Features are kept beside the catalogue, in cache/features, and found
    again by the content of weights and images.
    """
    import torch

    from fedad_components.evaluation.catalogued import labelled_images, open_extractor
    from fedad_components.evaluation.feature_cache import FeatureCache
    from fedad_components.evaluation.probe import ProbeError
    from fedad_components.evaluation.protocols import FROZEN, NEED_SOURCES, Protocol, evaluate
    from fedad_components.fedsd.state import StateError
    from fedad_components.imaging.account import DataRefused
    from fedad_components.imaging.cache import cache_side
    from fedad_components.imaging.catalogue import Catalogue, CatalogueError
    from fedad_components.imaging.ingest import IngestError

    train = train or []
    wanted = [Protocol(choice.value) for choice in protocol or ()] or [
        choice for choice in FROZEN if train or choice not in NEED_SOURCES
    ]
    cache_dir = catalogue.absolute().parent / "cache"
    unlabelled: dict[str, int] = {}
    try:
        module, image_size = open_extractor(extractor)
        module.to(torch.device(device))
        found = Catalogue.load(catalogue)
        entries = [found.data_set(name) for name in [*train, test]]
        with Console(stderr=True).status("") as status:
            data = []
            for entry in entries:
                status.update(f"images of {entry.id}")
                images, unlabelled[entry.id] = labelled_images(entry, cache_dir, cache_side(image_size))
                data.append(images)
            *sources, target = data
            evaluation = evaluate(
                module,
                sources,
                target,
                image_size,
                wanted,
                seed,
                FeatureCache(cache_dir / "features"),
                say=status.update,
            )
    except (CatalogueError, DataRefused, IngestError, ProbeError, StateError, RuntimeError) as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    left_out = [f"{name}: {count} images without a label left out" for name, count in unlabelled.items() if count]
    evaluation = evaluation.model_copy(update={"notes": [*evaluation.notes, *left_out]})
    if as_json:
        print(evaluation.model_dump_json(indent=2))
    else:
        _print(evaluation)


def _print(evaluation: Evaluation) -> None:
    console = Console(highlight=False, markup=False)
    trained = ", ".join(f"{name} ({count})" for name, count in evaluation.sources.items()) or "none"
    table = Table(
        Column("protocol", no_wrap=True),
        *(Column(name, justify="right", no_wrap=True) for name in (*METRICS.values(), "images\ntrain→test")),
        title=f"Tested on {evaluation.target} ({evaluation.n_target}); labels for training from: {trained}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for result in evaluation.results:
        name = result.name + (" *" if result.transductive else "")
        figures = (_figure(result, metric) for metric in METRICS)
        table.add_row(name, *figures, f"{result.n_train}→{result.n_test}")
    console.print(table)
    console.print(
        "Below a score: its 95 % bootstrap interval, or ± its standard deviation over draws.\n"
        "* transductive: used the unlabelled test images as a whole before the test.",
        soft_wrap=True,
    )
    for result in evaluation.results:
        if result.name == "source" and result.folds:
            inside = ", ".join(f"{name} {getattr(result.folds.mean, metric):.3f}" for metric, name in INSIDE.items())
            console.print(f"Cross-validation inside the training data sets: {inside}", soft_wrap=True)
    described = next((result for result in evaluation.results if result.detail), None)
    if described and (detail := described.detail):
        confusion = Table(
            "true \\ predicted",
            *(Column(name, justify="right") for name in detail.classes),
            title=f"Confusion, {described.name}",
            title_justify="left",
            box=SIMPLE_HEAD,
        )
        for name, row in zip(detail.classes, detail.confusion, strict=True):
            confusion.add_row(name, *map(str, row))
        console.print(confusion)
    for note in [*(f"{name}: {reason}" for name, reason in evaluation.absent.items()), *evaluation.notes]:
        console.print(f"Note: {note}", soft_wrap=True)


def _figure(result: Result, metric: str) -> str:
    """The score, and below it ``0.49–0.58`` or ``± 0.031``."""
    value = getattr(result.scores, metric)
    if value is None:
        return "–"
    spread = result.draws.sd[metric] if result.draws else None
    interval = result.detail.intervals.of[metric] if result.detail else None
    below = f"± {spread:.3f}" if spread is not None else ""
    if interval:
        below = f"{interval.low:.2f}–{interval.high:.2f}"
    return f"{value:.3f}\n{below}"
