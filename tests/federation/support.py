"""What the federation tests share: a small job, real images for its sites, and what a job left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from skimage import data

from fedad_components import checkpoint
from fedad_components.config import FedADConfig
from fedad_components.demo.federation import SERVER, Federation
from fedad_components.demo.tiles import write_png
from fedad_components.flare.recipe import FedADRecipe, export_job
from fedad_components.imaging.catalogue import VERSION
from fedad_components.records import FILE_NAME, RoundRecord, read_records

SIDE = 48


def small_config(experiment: str, rounds: int, **sections: dict[str, Any]) -> FedADConfig:
    """A configuration whose round takes seconds: 32 px, one epoch, a dozen images a site."""
    settings: dict[str, dict[str, Any]] = {
        "model": {"image_size": 32},
        "training": {"epochs": 1, "batch_size": 6},
        "federation": {
            "experiment": experiment,
            "rounds": rounds,
            "min_sites": 2,
            "round_timeout": 240,
            "wait_after_quorum": 60,
        },
    }
    for name, values in sections.items():
        settings[name] = {**settings.get(name, {}), **values}
    return FedADConfig.parse(settings)


def job_of(config: FedADConfig, folder: Path) -> Path:
    """The job's folder, as an operator exports it."""
    return export_job(FedADRecipe(config), folder)


def photographs(folder: Path, number: int, count: int) -> None:
    """Tiles of a real photograph, another one for each number: a fundus, or immunohistochemistry."""
    picture = [data.retina()[300:1100, 300:1100], data.immunohistochemistry()][number % 2]
    corners = np.random.default_rng(number).integers(0, np.array(picture.shape[:2]) - SIDE, (count, 2))
    write_png(folder, [picture[row : row + SIDE, column : column + SIDE] for row, column in corners])


def give_images(federation: Federation, folder: Path) -> None:
    """Photographs to every site, and a catalogue that names them; sites differ in size, so that weights matter."""
    for number, site in enumerate(federation.sites):
        photographs(folder / site, number, count=12 + number)
        entry = {"folder": str(folder / site)}
        federation.site_paths(site).catalogue.write_text(
            yaml.safe_dump({"version": VERSION, "data_sets": {"images": entry}})
        )


def records_of(federation: Federation, experiment: str) -> list[RoundRecord]:
    """The rounds that the server has finished, over all jobs of an experiment."""
    path = federation.site_paths(SERVER).experiment(experiment) / FILE_NAME
    return read_records(path) if path.exists() else []


def checkpoint_of(federation: Federation, experiment: str) -> Path:
    """The server's checkpoint of an experiment."""
    return federation.site_paths(SERVER).experiment(experiment) / checkpoint.FILE_NAME


def heed_interrupts() -> None:
    """In a new process: where tests run in the background of a script, SIGINT is ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(condition: Callable[[], Any], timeout: float, what: str) -> Any:
    """Poll until the condition is true; its value. An AssertionError names what did not happen in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {timeout:g} s: {what}")
