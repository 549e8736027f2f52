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
    "Examples:  fedad demo --out demo-out  |  fedad demo --out private-out --privacy dp_sgd  |  "
    "FEDAD_DATA=/data fedad demo --out wbc-out --data wbc --rounds 10 --image-size 96"
)
DATA_VARIABLE = "FEDAD_DATA"

_console = Console()


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
    data: Annotated[
        Data, typer.Option(help="embedded: images that come with the package; wbc: $FEDAD_DATA/wbc, five laboratories.")
    ] = Data.EMBEDDED,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of the experiment.")] = 4,
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

    Writes summary.json, report.html and extractor.safetensors, and stops
    everything, also on Ctrl-C. Needs no network. The default takes a few
    minutes on 2 cores.
    """
    from fedad_components.demo.run import DemoError, DemoOptions, run_demo

    root = os.environ.get(DATA_VARIABLE)
    if data is Data.WBC and not root:
        raise typer.BadParameter(f"set {DATA_VARIABLE} to the folder that holds wbc/", param_hint="--data wbc")
    try:
        options = DemoOptions(
            out, data.value, rounds, image_size, seed, Path(root) / "wbc" if root else None, privacy.value
        )
        summary = run_demo(options, _console)
    except DemoError as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _console.print("interrupted: every process of the demo is stopped")
        raise typer.Exit(130) from None
    if summary.status != "FINISHED:COMPLETED":
        raise typer.Exit(1)
