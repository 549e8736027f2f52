"""``summary.json``: what a demo did, as typed data that the report and scripts read. Imports no FLARE."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.atsa import ATSA
from fedad_components.benchmark.results import LEARNT_BELOW
from fedad_components.config import SILENT_MODES, ExperimentConfig, FedADConfig
from fedad_components.demo.data import DemoData
from fedad_components.evaluation.probe import ProbeResult
from fedad_components.files import write_atomic
from fedad_components.privacy.claim import PrivacyClaim, statement
from fedad_components.records import Losses, RoundRecord

UNTRAINED = "untrained extractor"
"""Name of the probe's reference: the same network with its first weights"""
SOFTWARE = ("fedad", "nvflare", "torch", "torchvision", "monai", "scikit-learn", "pydicom", "numpy")


class SummaryError(ValueError):
    """A summary that cannot be built or read; the message says what does not fit."""


class Privacy(BaseModel):
    """What protects the images besides staying where they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: str = Field(description="privacy.mode of the experiment")
    statement: str = Field(description="what may be said about this mode, and no more")
    sites: dict[str, PrivacyClaim] = Field(
        description="site -> its guarantee after its last round in the aggregate, with unit and delta; empty where the "
        "mode gives none"
    )
    hospitals: PrivacyClaim | None = Field(None, description="client_dp: the guarantee of the global models")


class UnseenSite(BaseModel):
    """The site that the probe was run on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: str
    label: str
    description: str = Field(description="what the label is, and how training and test are kept apart")


class JobSummary(BaseModel):
    """What the demos of all jobs tell. Lists over rounds have one element for each finished round, in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: str = Field(description="FLARE's job status, e.g. FINISHED:COMPLETED")
    job_id: str | None = Field(description="FLARE's job id; None if the job was never accepted")
    experiment: str
    seed: int
    config_digest: str = Field(description="SHA-256 of the configuration's canonical JSON")
    config: dict[str, Any] = Field(description="the whole configuration, defaults written out")
    sites: list[str]
    n_samples: dict[str, int] = Field(
        description="site -> images or bags it trained on, as it reported; empty where the privacy mode keeps that at "
        "the site"
    )
    rounds: int = Field(description="finished rounds")
    rounds_planned: int
    participants: list[list[str]] = Field(description="per round: sites whose update is in the aggregate")
    refused: list[dict[str, str]] = Field(description="per round: site -> why its update is not in the aggregate")
    losses: list[dict[str, Losses]] = Field(description="per round: site -> losses of its last local epoch")
    round_seconds: list[float]
    bytes_sent: dict[str, int] = Field(description="site -> bytes of all the tensors that it sent")
    notes: list[str] = Field(description="what a reader must know to judge the numbers")
    versions: dict[str, str] = Field(description="software -> version")
    finished_at: str = Field(description="UTC, ISO 8601")
    wall_s: float = Field(description="seconds for the whole demo, from provisioning to the last result")

    def write(self, path: str | Path) -> None:
        """Write JSON, atomically."""
        write_atomic(path, (self.model_dump_json(indent=2) + "\n").encode("utf-8"))


class Summary(JobSummary):
    """One demo of FedAD."""

    data: str = Field(description="embedded or wbc")
    lambda_t: list[float] = Field(description="per round: lambda that the sites used")
    instability: list[float] = Field(description="per round: Delta, Eq. 5")
    phase: list[str] = Field(description="per round: exploration or enforcement")
    contrastive_at_chance: float = Field(
        description="ln(2N - 1), Eq. 2 where nothing has been learnt, N the batch size"
    )
    unseen: UnseenSite
    probe: ProbeResult | None = Field(description="None if there was no model to probe")
    privacy: Privacy

    @classmethod
    def load(cls, path: str | Path) -> Summary:
        """Read a ``summary.json``.

        Raises:
            SummaryError: if it cannot be read or is no summary.
        """
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            raise SummaryError(f"{path}: not a demo's summary: {error}") from None


def build_summary(
    records: Sequence[RoundRecord],
    *,
    status: str,
    job_id: str | None,
    data: DemoData,
    config: FedADConfig,
    probe: ProbeResult | None,
    wall_s: float,
    notes: Sequence[str] = (),
) -> Summary:
    """Put together the server's records, the probe and what the demo was started with.

    Raises:
        SummaryError: if a record is of another round than its position says, or names a site that the demo has not.
    """
    return Summary(
        **job_fields(
            records,
            status=status,
            job_id=job_id,
            sites=list(data.sites),
            config=config,
            wall_s=wall_s,
            notes=[*notes, *_atsa_note(records, config), *_learning_notes(records, config, probe)],
        ),
        data=data.name,
        lambda_t=[record.lambda_t for record in records],
        instability=[record.instability for record in records],
        phase=[record.phase for record in records],
        contrastive_at_chance=math.log(2 * config.training.batch_size - 1),
        unseen=UnseenSite(site=data.unseen.site, label=data.unseen.label, description=data.unseen.description),
        probe=probe,
        privacy=_privacy(records, config),
    )


def job_fields(
    records: Sequence[RoundRecord],
    *,
    status: str,
    job_id: str | None,
    sites: Sequence[str],
    config: ExperimentConfig,
    wall_s: float,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The fields of :class:`JobSummary`.

    Raises:
        SummaryError: if a record is of another round than its position says, or names a site that the demo has not.
    """
    for number, record in enumerate(records):
        if record.round != number:
            raise SummaryError(f"the record of round {number} is missing: found that of round {record.round} instead")
        if strangers := sorted({*record.participants, *record.refused} - set(sites)):
            raise SummaryError(f"round {number} names sites that are not in this demo: {', '.join(strangers)}")
    return {
        "status": status,
        "job_id": job_id,
        "experiment": config.federation.experiment,
        "seed": config.seed,
        "config_digest": config.digest(),
        "config": config.to_json(),
        "sites": list(sites),
        "n_samples": _sample_counts(records, sites, config),
        "rounds": len(records),
        "rounds_planned": config.federation.rounds,
        "participants": [record.participants for record in records],
        "refused": [record.refused for record in records],
        "losses": [record.losses for record in records],
        "round_seconds": [record.seconds for record in records],
        "bytes_sent": {site: sum(record.bytes.get(site, 0) for record in records) for site in sites},
        "notes": list(notes),
        "versions": _versions(),
        "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "wall_s": wall_s,
    }


def _sample_counts(records: Sequence[RoundRecord], sites: Sequence[str], config: ExperimentConfig) -> dict[str, int]:
    if config.privacy.mode in SILENT_MODES:
        return {}
    return {site: max((record.n_samples.get(site, 0) for record in records), default=0) for site in sites}


def _privacy(records: Sequence[RoundRecord], config: FedADConfig) -> Privacy:
    """The mode's statement, and each site's claim as of its last accepted round."""
    claims: dict[str, PrivacyClaim] = {}
    for record in records:
        claims |= record.claims
    return Privacy(
        mode=config.privacy.mode,
        statement=statement(config),
        sites=dict(sorted(claims.items())),
        hospitals=records[-1].global_claim if records else None,
    )


def _atsa_note(records: Sequence[RoundRecord], config: FedADConfig) -> list[str]:
    """ATSA's own warning, from the instabilities that the server recorded."""
    schedule = ATSA(config.atsa)
    for record in records:
        schedule.update(record.instability)
    warning = schedule.warning()
    return [warning] if warning else []


def _learning_notes(records: Sequence[RoundRecord], config: FedADConfig, probe: ProbeResult | None) -> list[str]:
    """Whether anything was learnt: NT-Xent beside chance, and the probe beside an extractor that was never trained."""
    notes, chance = [], math.log(2 * config.training.batch_size - 1)
    losses = [loss.contrastive for loss in records[-1].losses.values() if loss.contrastive] if records else []
    if losses and sum(losses) / len(losses) > LEARNT_BELOW * chance:
        notes.append(
            f"Almost nothing was learnt: the contrastive loss ended at {sum(losses) / len(losses):.2f}, and "
            f"{chance:.2f} is chance. A demo is short; an experiment needs many more rounds."
        )
    untrained = probe.references.get(UNTRAINED) if probe else None
    if probe and untrained and probe.f1 <= untrained.f1:
        notes.append(
            f"The extractor is worth no more than an untrained one on {probe.label}: macro F1 {probe.f1:.3f} against "
            f"{untrained.f1:.3f}. The demo shows that the federation works, not what the method can do."
        )
    return notes


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
