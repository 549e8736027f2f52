"""`fedad demo`: the whole product on one machine."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedad_components.cli.messages import complain

EPILOG = (
    "Examples:\n\nfedad demo --out demo-out\n\nfedad demo --out private-out --privacy dp_sgd\n\n"
    "FEDAD_DATA=/data fedad demo --out wbc-out --data wbc --rounds 10 --image-size 96\n\n"
    "fedad demo --out slides-out --job histofl"
)
DATA_VARIABLE = "FEDAD_DATA"

_console = Console()


class Job(str, Enum):
    """Jobs that the demo can show."""

    FEDAD = "fedad"
    HISTOFL = "histofl"


class Privacy(str, Enum):
    """Privacy modes that the demo can show."""

    NONE = "none"
    DP_SGD = "dp_sgd"


class Data(str, Enum):
    """Images that the demo can run on."""

    EMBEDDED = "embedded"
    WBC = "wbc"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for kits, logs, result and report; new or empty.")],
    job: Annotated[
        Job,
        typer.Option(help="histofl: slides with planted nuclei at three hospitals, to heatmaps; needs the extra wsi."),
    ] = Job.FEDAD,
    data: Annotated[
        Data, typer.Option(help="embedded: images that come with the package; wbc: $FEDAD_DATA/wbc, five laboratories.")
    ] = Data.EMBEDDED,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Rounds of the experiment; default: 4, of histofl at most 12."),
    ] = None,
    image_size: Annotated[int, typer.Option(min=32, max=512, help="Side of a view in pixels.")] = 96,
    privacy: Annotated[
        Privacy,
        typer.Option(help="dp_sgd: differential privacy at each hospital; the last one's policy refuses the job."),
    ] = Privacy.NONE,
    seed: Annotated[int, typer.Option(min=0, help="Seed of images, weights, views and sampling.")] = 0,
) -> None:
    """Run a federation here: a server, four hospitals and an operator, as real FLARE processes over mutual TLS.

    Provisions the kits, registers each hospital's images, submits the job
    with the operator's kit, shows its progress, downloads the result and
    probes the extractor on a hospital that took no part in training.
    --job histofl: prepares slides at three hospitals, whose labels are made
    up, trains on them, evaluates test patients and draws heatmaps.

    Writes summary.json, report.html and the model, and stops everything,
    also on Ctrl-C. Needs no network. Either job takes a few minutes on 2
    idle cores, most of them to start PyTorch.
    """
    from fedad_components.demo.steps import DemoError

    root = os.environ.get(DATA_VARIABLE)
    if data is Data.WBC and not root:
        raise typer.BadParameter(f"set {DATA_VARIABLE} to the folder that holds wbc/", param_hint="--data wbc")
    try:
        if job is Job.HISTOFL:
            from fedad_components.demo.histofl import SlidesOptions, run_slides_demo

            if data is not Data.EMBEDDED or privacy is not Privacy.NONE:
                raise DemoError("--job histofl: expected neither --data nor --privacy, which are the FedAD demo's")
            status = run_slides_demo(SlidesOptions(out, rounds or 12, seed), _console).status
        else:
            from fedad_components.demo.run import DemoOptions, run_demo

            place = Path(root) / "wbc" if root else None
            options = DemoOptions(out, data.value, rounds or 4, image_size, seed, place, privacy.value)
            status = run_demo(options, _console).status
    except DemoError as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _console.print("interrupted: every process of the demo is stopped")
        raise typer.Exit(130) from None
    if status != "FINISHED:COMPLETED":
        raise typer.Exit(1)
