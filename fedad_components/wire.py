"""The words on the wire between server and sites: the meta of tasks and results, and the reasons of errors.

One set of rules serves the site's egress filter, the server's gate and the site's check of a task; ``tensors.py`` holds
the rules for the weights. Imports neither FLARE nor torch.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedad_components.config import NAME_PATTERN
from fedad_components.records import Losses

REASON_HEADER = "fedad_reason"
"""The one header of ours that an error reply may carry; its value is a :class:`Reason`."""


class Reason(str, Enum):
    """Why a site did not train: a fixed vocabulary, so that no free text leaves a site with an error."""

    TASK_REFUSED = "task-refused"
    POLICY_REFUSED = "policy-refused"
    DATA_REFUSED = "data-refused"
    STATE_REFUSED = "state-refused"
    TRAINING_FAILED = "training-failed"
    WORKER_DIED = "worker-died"
    TIMED_OUT = "timed-out"


def parse_reason(value: Any) -> Reason | None:
    """The reason of an error reply; None for anything outside the vocabulary."""
    return next((reason for reason in Reason if reason.value == value), None)


class WireError(ValueError):
    """Something that must not be on the wire; the message names it, and what was expected."""


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


class ResultMeta(_Meta):
    """Everything that leaves a site with its weights."""

    config_digest: Digest
    round: int = Field(ge=0)
    n_samples: int = Field(gt=0, description="images that the site trained on, the weight of its update")
    losses: Losses = Field(description="means of the last local epoch")


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
