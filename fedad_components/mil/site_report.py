"""The page of several sites' evaluations: ``fedad slides report``. No FLARE."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from fedad_components.mil.attention import MOST_SHOWN
from fedad_components.mil.evaluate import EvaluationError
from fedad_components.mil.evaluate_classes import ClassCounts
from fedad_components.mil.evaluate_survival import SurvivalCounts
from fedad_components.mil.evaluation_file import SiteEvaluation, check_together, read_evaluation
from fedad_components.mil.report import Report, SlideView
from fedad_components.slides.bags import NAME

HEATMAP, PATCHES, SCORES = ".heatmap.png", ".patches.png", "scores.csv"


def report_of(
    files: Sequence[str | Path], *, title: str, unit: str = "months", heatmaps: str | Path | None = None
) -> Report:
    """The report of what sites told.

    Args:
        files: of sites and seeds, one each.
        unit: of survival times.
        heatmaps: folder that ``fedad slides heatmap`` wrote; the first slides are shown.

    Raises:
        EvaluationError: if a file is no evaluation, or they do not go together.
    """
    found = {str(file): read_evaluation(file) for file in files}
    check_together(found)
    runs = [evaluation.run() for evaluation in found.values()]
    target = next(iter(found.values())).target
    return Report(
        title,
        facts=_facts(list(found.values())),
        notes=[note for run in runs for note in _notes(run)],
        classes=target.classes,
        classified=[run for run in runs if isinstance(run, ClassCounts)],
        survived=[run for run in runs if isinstance(run, SurvivalCounts)],
        unit=unit,
        slides=_slides(Path(heatmaps)) if heatmaps is not None else (),
    )


def _facts(found: Sequence[SiteEvaluation]) -> dict[str, str]:
    least = sorted({evaluation.min_cell for evaluation in found})
    models = sorted({evaluation.model_sha256[:12] for evaluation in found})
    return {
        "target": found[0].target.kind,
        "model, SHA-256": ", ".join(f"{model}…" for model in models),
        "fewest patients of a kind that counts tell of": ", ".join(map(str, least)),
        "who counted": "each site its own test patients, which its training has not seen",
    }


def _notes(run: ClassCounts | SurvivalCounts) -> list[str]:
    if run.patients:
        return []
    what = "its curves" if isinstance(run, SurvivalCounts) else "its patients"
    return [f"{run.site}, seed {run.seed}, told nothing of {what}: too few of a kind."]


def _slides(folder: Path) -> list[SlideView]:
    """The pictures of the first slides; how many patches each has, its scores tell."""
    try:
        lines = (folder / SCORES).read_text(encoding="ascii").splitlines()[1:]
        slides = list(dict.fromkeys(line.split(",", 1)[0] for line in lines))[:MOST_SHOWN]
        if not all(re.fullmatch(NAME, slide) for slide in slides):
            raise ValueError
        return [
            SlideView(
                slide,
                "",
                sum(line.startswith(f"{slide},") for line in lines),
                _picture(folder / f"{slide}{HEATMAP}"),
                _picture(folder / f"{slide}{PATCHES}"),
            )
            for slide in slides
        ]
    except EvaluationError:
        raise
    except (OSError, ValueError):
        raise EvaluationError(f"{folder}: expected a folder that fedad slides heatmap wrote") from None


def _picture(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        Image.open(io.BytesIO(content)).load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # by a damaged PNG, any of these
        raise EvaluationError(f"{path}: cannot be read as a picture: draw it again by fedad slides heatmap") from None
    return content
