"""How the commands of ``fedad slides`` end where what they were given cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from fedad_components.cli.messages import complain

NOTHING_USABLE, UNUSABLE, INTERRUPTED = 1, 2, 130


@contextmanager
def reported(out: Path, again: str) -> Iterator[None]:
    """Ends the command with a message where what it was given cannot be used, or somebody interrupts it."""
    try:
        from fedad_components.config import ConfigError
        from fedad_components.fedsd.state import StateError
        from fedad_components.fedsd.trainer import TrainingError
        from fedad_components.files import LockedError
        from fedad_components.imaging.catalogue import CatalogueError
        from fedad_components.mil.evaluate import EvaluationError
        from fedad_components.mil.splits import SplitError
        from fedad_components.records import RecordsError
        from fedad_components.slides.reader import SlidesError

        try:
            yield
        except (
            CatalogueError,
            ConfigError,
            EvaluationError,
            LockedError,
            RecordsError,
            SlidesError,
            SplitError,
            StateError,
            TrainingError,
        ) as error:
            fail(error)
        except OSError as error:
            problem = error.strerror or type(error).__name__
            fail(f"{out}: {problem}: expected a folder that this user may write, and space")
    except KeyboardInterrupt:
        complain(again, "interrupted")
        raise typer.Exit(INTERRUPTED) from None


def fail(message: object) -> NoReturn:
    """End the command with a message."""
    complain(message)
    raise typer.Exit(UNUSABLE)
