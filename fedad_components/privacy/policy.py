"""What a site's policy demands of a job's privacy; each rule has a name, by which the job is refused."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from fedad_components.config import ExperimentConfig


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, not {str(value).lower()}")
    return value


# Not strict: YAML reads 1e-5, without a point, as text.
Number = Annotated[float, BeforeValidator(_no_truth_value), Field(strict=False, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0.0)]


class Rule(str, Enum):
    """The rules' names: keys of ``policy.yaml``, and what the operator sees of a refusal."""

    REQUIRED_MODE = "required_mode"
    MIN_NOISE_MULTIPLIER = "min_noise_multiplier"
    MAX_EPSILON = "max_epsilon"
    MAX_EPSILON_RECORD = "max_epsilon_record"
    MAX_DELTA = "max_delta"
    MIN_PATIENTS = "min_patients"
    MIN_CELL_COUNT = "min_cell_count"
    ALLOW_AGGREGATED_HEAD = "allow_aggregated_head"
    ALLOW_SHARED_SPECTRA = "allow_shared_spectra"
    PUBLIC_DATA_SETS = "public_data_sets"


class PolicyRefused(ValueError):
    """A job that the site's policy does not allow; the message names the rule, both values and the fix."""

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(f"{rule.value}: {message}")
        self.rule = rule


class PrivacyRules(BaseModel):
    """The site's rules for a data set, whatever a job asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    required_mode: Literal["none", "dp_sgd"] = Field(
        default="none", description="dp_sgd: only jobs with that privacy.mode may train; none: any mode"
    )
    min_noise_multiplier: Annotated[Number, Field(ge=0.0)] = Field(
        default=1.0, description="smallest privacy.noise_multiplier of a dp_sgd or client_dp job"
    )
    max_epsilon: Positive | None = Field(
        default=10.0, description="budget of the data set over all jobs, for adding or removing one unit; null: none"
    )
    max_epsilon_record: Positive | None = Field(
        default=None, description="budget of the data set over all jobs, for one record changed; null: none"
    )
    max_delta: Annotated[Positive, Field(lt=1.0)] = Field(
        default=1e-5, description="largest privacy.delta of a dp_sgd or client_dp job"
    )
    min_patients: int = Field(default=0, ge=0, description="fewest patients that the data set must have")
    min_cell_count: int = Field(
        default=5,
        ge=1,
        description="fewest patients of a kind (a class, those with an event) of which counts leave the site "
        "(HistoFL's counts.min_cell)",
    )


def check_rules(config: ExperimentConfig, rules: PrivacyRules) -> None:
    """Refuse a job below the rules, from its configuration alone; the ledger keeps the budgets.

    Raises:
        PolicyRefused: naming the first rule that the job is below.
    """
    privacy = config.privacy
    if rules.required_mode != "none" and privacy.mode != rules.required_mode:
        raise PolicyRefused(
            Rule.REQUIRED_MODE,
            f"this site requires privacy.mode {rules.required_mode!r} for data set {config.federation.data_set!r}, the "
            f"job has {privacy.mode!r}",
        )
    smallest = config.smallest_cell
    if smallest is not None and smallest < rules.min_cell_count:
        raise PolicyRefused(
            Rule.MIN_CELL_COUNT,
            f"this site lets no counts of fewer than {rules.min_cell_count} patients of a kind out; the job "
            f"asks for them from {smallest} on",
        )
    if privacy.mode not in ("dp_sgd", "client_dp"):
        return
    if privacy.noise_multiplier < rules.min_noise_multiplier:
        raise PolicyRefused(
            Rule.MIN_NOISE_MULTIPLIER,
            f"this site requires privacy.noise_multiplier of at least {rules.min_noise_multiplier:g}, the job has "
            f"{privacy.noise_multiplier:g}",
        )
    if privacy.delta > rules.max_delta:
        raise PolicyRefused(
            Rule.MAX_DELTA,
            f"this site allows privacy.delta up to {rules.max_delta:g}, the job has {privacy.delta:g}",
        )


def check_patients(patients: int, rules: PrivacyRules) -> None:
    """Refuse a data set of too few patients.

    Raises:
        PolicyRefused: with both numbers, which stay in the site's log.
    """
    if patients < rules.min_patients:
        raise PolicyRefused(
            Rule.MIN_PATIENTS,
            f"this site requires at least {rules.min_patients} patients, the data set has {patients}",
        )
