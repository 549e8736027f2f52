"""What may be said about the privacy of a site's training: an epsilon never stands without what it is an epsilon of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from fedad_components.config import ExperimentConfig

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]

STATEMENTS = {
    "none": "No differential privacy. {Records} stayed at their hospital; the weights that left can reveal something "
    "about the {records} they were trained on, and nothing bounds how much.",
    "weight_noise": "No guarantee. Noise was added to the weights in proportion to their spread, without clipping or "
    "accounting (HistoFL's alpha): no epsilon belongs to it.",
    "dp_sgd": "With differential privacy on, for each site, everything it sends over all rounds is (epsilon, delta)-DP "
    "with respect to adding or removing all {records} of one {unit} at that site; the number of units is public. "
    "Secret randomness is assumed, and attacks on floating-point arithmetic are not covered.",
    "client_dp": "The sequence of global models is (epsilon, delta)-DP with respect to adding or removing one "
    "hospital, for everyone but the server, which sees each hospital's clipped update and is trusted to add the noise.",
}
"""The sentence to quote for each mode of ``privacy.mode``; ``{unit}`` is the privacy unit, ``{records}`` the data."""


def statement(config: ExperimentConfig) -> str:
    """The sentence to quote for a job's mode and unit, on what it trains on: images, or HistoFL's bags."""
    records = config.trains_on
    text = STATEMENTS[config.privacy.mode]
    return text.format(unit=config.privacy.unit, records=records, Records=records.capitalize())


ACCOUNTANTS = {"unit": "PRV accountant", "record": "replace-one PRV accountant"}
"""Opacus's numerical composition (Gopi et al. 2021), and the same on the pair of one record replaced."""


def adjacencies(unit: str) -> dict[str, str]:
    """What the two epsilons are about, in words."""
    return {"unit": f"adding or removing one {unit}", "record": f"one record changed inside a {unit}"}


class PrivacyClaim(BaseModel):
    """The guarantee of one site in one experiment, after the rounds that its ledger has charged."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    unit: Literal["patient", "bundle", "hospital"] = Field(description="what is protected")
    units: int = Field(ge=1, description="declared number of units, public")
    noise_multiplier: Positive = Field(description="sigma of the last round")
    sample_rate: Annotated[float, Field(gt=0.0, le=1.0)] = Field(description="q of the last round")
    steps: int = Field(ge=1, description="noised steps, over all rounds charged")
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(description="the delta of both epsilons")
    epsilon_unit: Positive = Field(description="adding or removing one unit; accountant: PRV (Gopi et al. 2021)")
    epsilon_record: Positive | None = Field(
        description="one record changed inside a unit, the tight replace-one pair; None for hospitals"
    )

    def __str__(self) -> str:
        parts = [
            f"epsilon = {epsilon:.2f} for {adjacency} (delta = {self.delta:g}, {ACCOUNTANTS[name]})"
            for name, adjacency in adjacencies(self.unit).items()
            if (epsilon := {"unit": self.epsilon_unit, "record": self.epsilon_record}[name]) is not None
        ]
        return "; ".join(parts)
