"""The words on the wire between server and sites: the meta of tasks and results, and the reasons of errors.

One set of rules serves the site's egress filter, the server's gate and the site's check of a task; ``tensors.py`` holds
the rules for the weights. Imports neither FLARE nor torch.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.audit.event import SignedCheckpoint
from fedad_components.config import NAME_PATTERN, ExperimentConfig
from fedad_components.privacy.claim import PrivacyClaim
from fedad_components.privacy.policy import Rule
from fedad_components.records import Losses
from fedad_components.reports import Counts, ReportError, ValidationCounts

REASON_HEADER = "fedad_reason"
"""The one header of ours that an error reply may carry; its value is a :class:`Reason`."""


RULE_HEADER = "fedad_rule"
"""Beside the reason ``policy-refused``: the rule of the site's policy, a :class:`Rule`."""


class Reason(str, Enum):
    """Why a site did not train: a fixed vocabulary, so that no free text leaves a site with an error."""

    TASK_REFUSED = "task-refused"
    POLICY_REFUSED = "policy-refused"
    DATA_REFUSED = "data-refused"
    STATE_REFUSED = "state-refused"
    BUDGET_EXHAUSTED = "budget-exhausted"
    LEDGER_REFUSED = "ledger-refused"
    TRAINING_FAILED = "training-failed"
    WORKER_DIED = "worker-died"
    TIMED_OUT = "timed-out"


def parse_reason(value: Any) -> Reason | None:
    """The reason of an error reply; None for anything outside the vocabulary."""
    return next((reason for reason in Reason if reason.value == value), None)


def parse_rule(value: Any) -> Rule | None:
    """The rule of a refusal; None for anything outside the vocabulary."""
    return next((rule for rule in Rule if rule.value == value), None)


class Refusal(str, Enum):
    """Why the server's gate did not take an update: a fixed vocabulary for the compliance log."""

    TOO_LATE = "too-late"
    NOT_ASKED = "not-asked"
    ANSWERED_TWICE = "answered-twice"
    OTHER_ROUND = "other-round"
    CONTENT = "content-not-as-expected"
    CHECKPOINT = "checkpoint-refused"
    CHECK_FAILED = "check-failed"
    NO_ANSWER = "no-answer-in-time"


class WireError(ValueError):
    """Something that must not be on the wire; the message names it, and what was expected."""

    def __init__(self, message: str, refusal: Refusal = Refusal.CONTENT) -> None:
        super().__init__(message)
        self.refusal = refusal


_SHOWN = 80
_PROBLEMS = 5


def shown(value: Any) -> str:
    """What the other side sent, as it may stand in a log or record: quoted, on one line, at most 80 characters."""
    text = ascii(str(value))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


class _Meta(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TaskMeta(_Meta):
    """Everything that travels to a site with a round's weights."""

    experiment: str = Field(pattern=NAME_PATTERN)
    config_digest: Digest
    round: int = Field(ge=0)
    lambda_t: float = Field(ge=0.0, allow_inf_nan=False)
    ledger_heads: dict[Annotated[str, Field(max_length=64)], Digest] = Field(
        default_factory=dict,
        max_length=100_000,
        description="site_key -> head of that site's privacy ledger in its last result: a ledger that was rolled back, "
        "with everything else at the site, does not hold it any more",
    )
    bin_edges: list[Annotated[float, Field(gt=0.0, allow_inf_nan=False)]] | None = Field(
        default=None, max_length=64, description="inner edges of survival's time bins, which the survey has found"
    )
    checkpoint: SignedCheckpoint | None = Field(
        default=None,
        description="the server's signed statement of the end of its compliance log, which each site keeps; None "
        "where there is no log, as in FLARE's simulator",
    )


class ResultMeta(_Meta):
    """Everything that leaves a site with its weights."""

    config_digest: Digest
    round: int = Field(ge=0)
    n_samples: int | None = Field(
        default=None, gt=0, description="images that the site trained on, the weight of its update; not in SILENT_MODES"
    )
    losses: Losses | None = Field(default=None, description="means of the last local epoch; not in SILENT_MODES")
    events: Counts | None = Field(
        default=None, description="survey of survival: training patients' events by time, in cells of enough patients"
    )
    validation: ValidationCounts | None = Field(
        default=None, description="how the round's model does on the site's validation patients, as counts that add up"
    )
    claim: PrivacyClaim | None = Field(
        default=None, description="dp_sgd: the site's guarantee in this experiment, from public figures alone"
    )
    ledger_head: Digest | None = Field(
        default=None, description="head of the site's privacy ledger, a hash that reveals nothing; always with a claim"
    )
    checkpoint: SignedCheckpoint | None = Field(
        default=None,
        description="the site's signed statement of the end of its compliance log, which the server keeps: "
        "StrictEgress adds it",
    )


class SentMeta(ResultMeta):
    """A result's meta as StrictEgress lets it out: with what no code but the filter's may write."""

    counts_nonce: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{32}$",
        description="random, beside counts: keys their digests in both ends' compliance logs, so that nobody can find "
        "the counts by trying; it is in no log",
    )


CLAIM_TOLERANCE = 0.02
"""By how much a claim may lie below what the server computes: accountants round, and a site may have another build."""


def site_key(experiment: str, site: str) -> str:
    """Key of a site in ``TaskMeta.ledger_heads``, which goes to every site of the round: not its name."""
    return hashlib.sha256(f"{experiment}\x1f{site}".encode()).hexdigest()[:16]


MetaModel = TypeVar("MetaModel", bound=_Meta)


def parse_meta(model: type[MetaModel], meta: Any) -> MetaModel:
    """Validate the meta of a task or result.

    Raises:
        WireError: naming the first keys that are unknown, missing or out of range.
    """
    try:
        return model.model_validate(meta)
    except ValidationError as error:
        problems = [
            f"{shown('.'.join(str(part) for part in item['loc']) or 'meta')}: {item['msg']}"
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:_PROBLEMS]
        ]
        more = f" and {error.error_count() - _PROBLEMS} more" if error.error_count() > _PROBLEMS else ""
        raise WireError(f"meta refused: {'; '.join(problems)}{more}") from None


ResultModel = TypeVar("ResultModel", bound=ResultMeta)


def parse_result_meta(meta: Any, config: ExperimentConfig, model: type[ResultModel]) -> ResultModel:
    """Validate the meta of a result under an experiment's configuration; SentMeta is what the server gets.

    Raises:
        WireError: as :func:`parse_meta`, or if a field is there that the privacy mode keeps back, or lacks.
    """
    parsed = parse_meta(model, meta)
    if parsed.config_digest != config.digest():
        raise WireError("config_digest: trained under another configuration than this job's")
    mode = config.privacy.mode
    expected = config.reports(parsed.round) | ({"claim"} if mode == "dp_sgd" else set())
    for name in ("n_samples", "losses", "events", "validation", "claim"):
        if (getattr(parsed, name) is not None) != (name in expected):
            state = "missing" if name in expected else "unexpected"
            raise WireError(f"{name}: {state} under privacy.mode {mode!r} in round {parsed.round}")
    if parsed.losses is not None and parsed.losses.model_fields_set != config.loss_names:
        raise WireError(f"losses: expected exactly {', '.join(sorted(config.loss_names))}")
    try:
        config.check_counts(parsed.events, parsed.validation, parsed.n_samples)
    except ReportError as error:
        raise WireError(str(error)) from None
    if parsed.claim is not None:
        _check_claim(parsed, parsed.claim, config)
    return parsed


def _check_claim(meta: ResultMeta, claim: PrivacyClaim, config: ExperimentConfig) -> None:
    if meta.ledger_head is None:
        raise WireError("ledger_head: missing: a claim rests on a ledger")
    for name in ("unit", "delta", "noise_multiplier"):
        if getattr(claim, name) != getattr(config.privacy, name):
            raise WireError(
                f"claim.{name}: {shown(getattr(claim, name))}, the configuration's is {getattr(config.privacy, name)}"
            )
    for name, computed in _lower_bounds(claim, config).items():
        stated = getattr(claim, name)
        if stated is None or stated < (1 - CLAIM_TOLERANCE) * computed:
            raise WireError(f"claim.{name}: {shown(stated)}, and its own sigma, q and steps give {computed:.4g}")


def _lower_bounds(claim: PrivacyClaim, config: ExperimentConfig) -> dict[str, float]:
    """Both epsilons of the claim's own sigma, q and steps: a claim may be larger (other rounds), never smaller."""
    from fedad_components.privacy.accountant import AccountantError, Charge, epsilon_record, epsilon_unit
    from fedad_components.privacy.plan import PlanError, sample_rate

    units_per_step = config.privacy.units_per_step
    try:
        rate = sample_rate(claim.units, units_per_step)
        charges = [Charge(claim.noise_multiplier, claim.sample_rate, claim.steps)]
        bounds = {
            "epsilon_unit": epsilon_unit(charges, claim.delta),
            "epsilon_record": epsilon_record(charges, claim.delta),
        }
    except (PlanError, AccountantError, ValueError) as error:
        raise WireError(f"claim: no epsilon can be computed for it: {shown(error)}") from None
    if claim.sample_rate < rate:
        raise WireError(
            f"claim.sample_rate: {claim.sample_rate:g}, below units_per_step {units_per_step} of {claim.units} units"
        )
    return bounds
