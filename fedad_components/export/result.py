"""A finished job's result, read strictly: weights, configuration, rounds, and what an evaluation found. No FLARE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedad_components import records
from fedad_components.config import SILENT_MODES, FedADConfig
from fedad_components.evaluation.results import Evaluation
from fedad_components.fedsd.model import has_small_stem
from fedad_components.files import sha256_of
from fedad_components.privacy.claim import PrivacyClaim, statement
from fedad_components.records import RoundRecord, read_records

EXTRACTOR, CONFIG = "extractor.safetensors", "config.json"


class ExportError(ValueError):
    """A result that cannot be exported; the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True)
class JobResult:
    """What a job left.

    Attributes:
        extractor: path of the weights.
        sha256: of that file, hexadecimal.
        config: of the experiment.
        rounds: one record for each finished round, in order; at least one.
        evaluation: what ``fedad probe --json`` printed; None if nothing was measured.
    """

    extractor: Path
    sha256: str
    config: FedADConfig
    rounds: list[RoundRecord]
    evaluation: Evaluation | None

    @classmethod
    def read(cls, folder: Path, config: Path | None = None, evaluation: Path | None = None) -> JobResult:
        """Read the folder ``fedad/`` of a downloaded job.

        Args:
            folder: with ``extractor.safetensors``, ``rounds.jsonl`` and ``config.json``.
            config: the experiment's configuration, where the folder has none.
            evaluation: a file with the output of ``fedad probe --json``.

        Raises:
            ExportError: if a file is missing or damaged, or weights, rounds and configuration do not fit together.
            ConfigError, RecordsError: if configuration or records cannot be used.
        """
        extractor = folder / EXTRACTOR
        rounds = read_records(folder / records.FILE_NAME)
        if not rounds:
            raise ExportError(f"{folder / records.FILE_NAME}: no finished round: there is nothing to export")
        path = config or folder / CONFIG
        if not path.is_file():
            raise ExportError(f"{path}: not found: give the experiment's configuration with --config")
        result = cls(
            extractor,
            _sha256(extractor),
            FedADConfig.load(path),
            rounds,
            _evaluation(evaluation) if evaluation else None,
        )
        _check(result, path)
        return result

    @property
    def sites(self) -> list[str]:
        """All that have an update in the weights."""
        return sorted({site for record in self.rounds for site in record.participants})

    @property
    def counts(self) -> dict[str, int]:
        """Site -> n_k, the most images that it trained on in a round; empty where the privacy mode keeps it there."""
        if self.config.privacy.mode in SILENT_MODES:
            return {}
        return {site: max(record.n_samples.get(site, 0) for record in self.rounds) for site in self.sites}

    @property
    def claims(self) -> dict[str, PrivacyClaim]:
        """Site -> its guarantee as of its last update in the weights; only what the rounds' records hold."""
        return {site: claim for record in self.rounds for site, claim in record.claims.items()}

    @property
    def global_claim(self) -> PrivacyClaim | None:
        """client_dp: the guarantee of the global models so far."""
        return self.rounds[-1].global_claim

    @property
    def statement(self) -> str:
        """What may be said about the mode of privacy, and no more."""
        return statement(self.config)


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise ExportError(
            f"{path}: cannot be read ({error.strerror}): expected the folder 'fedad' of a downloaded job"
        ) from None


def _evaluation(path: Path) -> Evaluation:
    try:
        return Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ExportError(f"{path}: expected what `fedad probe --json` prints: {error}") from None


def _check(result: JobResult, config_path: Path) -> None:
    """Weights, rounds and configuration belong together, as far as the weights' metadata can tell."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(result.extractor, framework="pt") as file:
            told = file.metadata() or {}
    except SafetensorError as error:
        raise ExportError(f"{result.extractor}: not a safetensors file: {error}") from None
    model = result.config.model
    expected = {
        "rounds": str(result.rounds[-1].round + 1),
        "norm": model.norm,
        "stem": "small" if has_small_stem(model) else "imagenet",
        "base_channels": str(model.base_channels),
        "image_size": str(model.image_size),
    }
    if "rounds" not in told:
        raise ExportError(
            f"{result.extractor}: of no finished job (a run of `fedad benchmark` is none): expected the folder 'fedad' "
            f"of a downloaded job"
        )
    for key, value in expected.items():
        if told.get(key) != value:
            beside = records.FILE_NAME if key == "rounds" else config_path
            raise ExportError(
                f"{result.extractor}: {key} is {told.get(key)!r}, and {beside} says {value!r}: expected files of one "
                f"job's result"
            )
    evaluation = result.evaluation
    if evaluation and evaluation.image_size != model.image_size:
        raise ExportError(
            f"the evaluation used images of {evaluation.image_size} px, this extractor takes {model.image_size}: "
            f"expected an evaluation of this extractor"
        )
