"""The model card: Hugging Face's sections (Mitchell et al. 2019), from what the job's records say and nothing else.

What only people know stays a blank that says so.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from html import escape
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from fedad_components import __version__
from fedad_components.evaluation.results import Evaluation, Result
from fedad_components.export.result import EXTRACTOR, ExportError, JobResult
from fedad_components.fedsd.model import feature_count, has_small_stem

BLANK = "*To be filled in: {}.*"
PROTOCOLS = ("source", "target", "few-shot", "knn", "fine-tune")


def model_card(result: JobResult, name: str, licence: str | None = None, weights: str = EXTRACTOR) -> str:
    """The card as Markdown with Hugging Face's YAML front matter.

    Args:
        result: of the job.
        name: title of the card.
        licence: of the weights, as Hugging Face spells it, such as ``apache-2.0``; a blank without it.
        weights: name of the weights' file beside the card.

    Raises:
        ExportError: for a licence that is no such identifier.
    """
    if licence is not None and not re.fullmatch(r"[A-Za-z0-9.+_-]+", licence):
        raise ExportError(f"licence {licence!r}: expected an identifier, such as apache-2.0")
    config, rounds = result.config, result.rounds
    last = [losses.contrastive for losses in rounds[-1].losses.values() if losses.contrastive is not None]
    as_of = {site: record.round for record in rounds for site in record.claims}
    refused = Counter(site for record in rounds for site in record.refused)
    environment = Environment(
        undefined=StrictUndefined,
        finalize=_one_line,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = files("fedad_components.export").joinpath("model_card.md.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        result=result,
        config=config,
        evaluation=result.evaluation,
        name=name,
        licence=licence,
        weights=weights,
        version=__version__,
        features=feature_count(config.model),
        stem="3×3" if has_small_stem(config.model) else "7×7",
        digest=config.digest(),
        sites=result.sites,
        taken_part=Counter(site for record in rounds for site in record.participants),
        claims={site: f"{claim}; {as_of[site]}" for site, claim in result.claims.items()},
        initial=_initial(result),
        refused=", ".join(f"{site} {count}" for site, count in sorted(refused.items())) or "none",
        # FedEMA's is BYOL's loss, which has no such value.
        loss=sum(last) / len(last) if last and config.method != "fedema" else None,
        chance=math.log(2 * config.training.batch_size - 1),
        sent=f"{sum(sum(record.bytes.values()) for record in rounds) / 1e6:.1f} MB",
        seconds=sum(record.seconds for record in rounds),
        sources=_sources(result.evaluation),
        not_measured=_not_measured(result.evaluation),
        figure=_figure,
        blank=BLANK.format,
    )


def _one_line(value: object) -> object:
    """Names come from sites and files: none of them makes HTML or a heading of the card."""
    return escape(" ".join(value.splitlines()), quote=False) if isinstance(value, str) else value


def _initial(result: JobResult) -> str:
    weights = result.config.model.initial_weights
    return f"file with SHA-256 `{weights.sha256}`" if weights else f"random, seed {result.config.seed}"


def _sources(evaluation: Evaluation | None) -> str:
    found = evaluation.sources.items() if evaluation else ()
    return ", ".join(f"`{name}` ({count})" for name, count in found) or "the tested data set alone"


def _not_measured(evaluation: Evaluation | None) -> str:
    """Protocols without a result, and results that the extractor cannot have."""
    if evaluation is None:
        return ""
    measured = {result.name.partition("/")[0] for result in evaluation.results}
    missing = [f"`{name}`" for name in PROTOCOLS if name not in measured]
    missing += [f"`{name}` ({reason})" for name, reason in evaluation.absent.items()]
    return "; ".join([*missing, "any other hospital"])


def _figure(result: Result, metric: str) -> str:
    """``0.534 (0.49–0.58)``, ``0.534 ± 0.031``, or a dash."""
    value = getattr(result.scores, metric)
    if value is None:
        return "–"
    if result.draws and (deviation := result.draws.sd[metric]) is not None:
        return f"{value:.3f} ± {deviation:.3f}"
    interval = result.detail.intervals.of[metric] if result.detail else None
    return f"{value:.3f} ({interval.low:.2f}–{interval.high:.2f})" if interval else f"{value:.3f}"
