"""HistoFL's settings: Lu et al. 2022, and what its paper leaves open. Needs no torch.

Layer sizes are fixed (:class:`~fedad_components.mil.model.GatedAttentionMIL`); the rest of the federation is configured
as FedAD's is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedad_components.config import (
    NAME_PATTERN,
    SILENT_MODES,
    Decay,
    ExperimentConfig,
    FederationConfig,
    LocalTraining,
    NonNegative,
    Positive,
    PrivacyConfig,
    Probability,
    Section,
)
from fedad_components.reports import ReportError, ValidationCounts, check_table


class TargetConfig(Section):
    """What a bag is to predict."""

    kind: Literal["classification", "survival"] = Field(
        "classification", description="classification: cross-entropy; survival: discrete hazards over time bins"
    )
    classes: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        ("0", "1"), strict=False, description="classification: the labels of the sites' tables, in the outputs' order"
    )
    bins: int = Field(4, ge=2, le=64, description="survival: R, number of time bins")
    beta: Probability = Field(0.15, description="survival: censored patients count 1 - beta")
    edges: tuple[Positive, ...] | None = Field(
        None,
        strict=False,
        description="survival: the R - 1 inner edges of the bins, in the unit of the sites' tables; none: quantiles of "
        "the training patients' events, over all sites, which round 0 surveys",
    )
    horizon: Positive = Field(
        4096.0, description="survival: longest time that the survey tells apart, in the unit of the sites' tables"
    )

    @field_validator("classes")
    @classmethod
    def _several(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) < 2 or len(set(value)) != len(value):
            raise ValueError("expected two different labels or more")
        return value

    @model_validator(mode="after")
    def _edges_fit(self) -> TargetConfig:
        if self.edges is not None:
            ascending = all(low < high for low, high in zip(self.edges, self.edges[1:], strict=False))
            if len(self.edges) != self.bins - 1 or not ascending:
                raise ValueError(f"edges: expected {self.bins - 1} ascending times for {self.bins} bins")
        return self

    @property
    def outputs(self) -> int:
        """C classes, or R bins."""
        return len(self.classes) if self.kind == "classification" else self.bins


class BagModelConfig(Section):
    """Gated attention over a bag's patches; the layers are the paper's."""

    in_features: int = Field(
        1024,
        ge=1,
        le=65_536,
        description="d, length of a patch's features: 1024 of ResNet-50, 512 of FedAD's extractor",
    )
    dropout: Decay = Field(0.25, description="after the first layer and after each gate")
    encoder_sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the encoder's weights, as `fedad data check` shows it: a site whose features are of "
        "another one refuses; none: nobody compares",
    )


class BagTrainingConfig(LocalTraining):
    """Local training of one round: one bag a step, Adam, which is fresh in each round."""

    epochs: int = Field(1, ge=1, le=1000, description="local epochs E in a round; the paper's are 1, 2, 4 and 8")
    learning_rate: Positive = Field(2e-4, description="Adam's learning rate; the optimiser is fresh in each round")
    weight_decay: NonNegative = Field(1e-5, description="Adam's L2 penalty")
    balanced: bool = Field(
        False,
        description="true: bags are drawn with replacement, every class as often as every other (survival: patients "
        "with and without an event)",
    )
    max_patches: int = Field(
        0, ge=0, description="0: all patches of a bag; n: at most n of them, drawn anew in each epoch"
    )


class BagPrivacyConfig(PrivacyConfig):
    """As FedAD's; the unit of dp_sgd is a patient, with all patches of all slides as one bag."""

    unit: Literal["patient"] = Field("patient", description="dp_sgd: what is protected, all slides of a patient")


class CountsConfig(Section):
    """The counts by which the sites survey events and validate together; nothing else about a patient is in them."""

    min_cell: int = Field(
        5,
        ge=1,
        le=1000,
        description="fewest patients of a kind of which a site tells counts: smaller cells of the survey and of scores "
        "are joined or leave as 0, and of a class with fewer validation patients nothing is told; a site's policy "
        "bounds it",
    )
    score_depth: int = Field(8, ge=1, le=12, description="classification: 2^depth cells of a score, from 0 to 1")
    time_depth: int = Field(
        7, ge=1, le=10, description="survival: 2^depth cells of the survey, from 0 to target.horizon"
    )


class StoppingConfig(Section):
    """Early stopping in rounds, by the federated validation; without it (dp_sgd, client_dp) all rounds are run."""

    patience: int = Field(10, ge=0, description="rounds without a better validation after which the job ends; 0: never")
    min_rounds: int = Field(20, ge=0, description="rounds before which it does not end")


class BagFederationConfig(FederationConfig):
    """As FedAD's, under other names."""

    experiment: str = Field(
        "histofl",
        pattern=NAME_PATTERN,
        description="name under which checkpoints survive resubmission; not FLARE's job id",
    )
    data_set: str = Field(
        "slides", pattern=NAME_PATTERN, description="data-set id, of kind bags, in each site's catalogue"
    )


class HistoFLConfig(ExperimentConfig):
    """An experiment of HistoFL. Privacy, federation and seed are configured as FedAD's."""

    trains_on: ClassVar[str] = "bags"

    algorithm: Literal["histofl"] = Field("histofl", description="what tells a job of HistoFL from one of FedAD")
    target: TargetConfig = Field(default_factory=TargetConfig)
    model: BagModelConfig = Field(default_factory=BagModelConfig)
    training: BagTrainingConfig = Field(default_factory=BagTrainingConfig)
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weight of a site in the mean: n_k, its training bags, or the same for all"
    )
    counts: CountsConfig = Field(default_factory=CountsConfig)
    stopping: StoppingConfig = Field(default_factory=StoppingConfig)
    privacy: BagPrivacyConfig = Field(default_factory=BagPrivacyConfig)
    federation: BagFederationConfig = Field(default_factory=BagFederationConfig)

    @property
    def survival(self) -> bool:
        """Whether the target is survival."""
        return self.target.kind == "survival"

    @property
    def smallest_cell(self) -> int | None:
        """``counts.min_cell``, where counts leave a site."""
        return None if self.privacy.mode in SILENT_MODES else self.counts.min_cell

    @property
    def tells_class_pairs(self) -> bool:
        """Classification with a least count, whose joined histograms give no AUC: with 8 patients of a class at each of
        three sites and a least count of 5, it was .14 off (root mean square); from pairs within sites, .01."""
        return not self.survival and self.counts.min_cell > 1

    def surveys(self, round_number: int) -> bool:
        """Round 0 of survival without agreed edges."""
        return round_number == 0 and self.survival and self.target.edges is None

    def reports(self, round_number: int) -> frozenset[str]:
        """The survey's histogram, or a round's sample count, losses and validation counts."""
        if self.surveys(round_number):
            return frozenset({"n_samples", "events"})
        told = super().reports(round_number)
        return told | {"validation"} if told else told

    def check_edges(self, edges: list[float] | None, round_number: int) -> None:
        """R - 1 from the round after the survey on, ascending, within what the survey tells apart."""
        expected = self.target.bins - 1 if self.surveys(0) and round_number > 0 else None
        if (None if edges is None else len(edges)) != expected:
            raise ReportError(f"bin_edges: expected {expected or 'no'} edges in round {round_number}")
        if any(low >= high for low, high in pairwise(edges or [])):
            raise ReportError("bin_edges: expected ascending times")
        if edges and edges[-1] > self.target.horizon:
            raise ReportError(f"bin_edges: {edges[-1]:g} is beyond target.horizon {self.target.horizon:g}")

    def weight(self, n_samples: int | None) -> int:
        """n_k, or 1 under ``weighting: uniform``."""
        return super().weight(n_samples) if self.weighting == "samples" else 1

    def check_counts(
        self, events: list[int] | None, validation: ValidationCounts | None, n_samples: int | None
    ) -> None:
        """The survey's histogram, or the tables of classification or of survival, with no count below ``min_cell``.

        A site weighs as many pairs as its patients make, and it has no more of them to validate than training bags:
        70 % of a label's patients are trained on, 15 % validated, and one of three at least.
        """
        counts = self.counts
        if events is not None:
            check_table(events, 1 << counts.time_depth, counts.min_cell, "events")
            if n_samples is not None and sum(events) > n_samples:
                raise ReportError(f"events: {sum(events)} of {n_samples} training bags (n_samples)")
        if validation is None:
            return
        check_table([validation.patients], 1, counts.min_cell, "validation.patients")
        if n_samples is not None and validation.patients > n_samples:
            raise ReportError(f"validation.patients: {validation.patients}, with {n_samples} training bags (n_samples)")
        if self.survival:
            self._check_survival(validation)
        else:
            self._check_classes(validation)

    def _check_survival(self, told: ValidationCounts) -> None:
        check_table(told.pairs, 3, 1, "validation.pairs")
        check_table(told.confusion, 0, 1, "validation.confusion")
        if told.scores is not None:
            raise ReportError("validation.scores: expected none")
        pairs, most = sum(told.pairs or ()), told.patients * (told.patients - 1) // 2
        if pairs > most:
            raise ReportError(f"validation.pairs: {pairs} pairs, and {told.patients} patients make {most}")

    def _check_classes(self, told: ValidationCounts) -> None:
        """All tables are of the confusion's patients: those of a hidden class would follow from another."""
        classes, counts = len(self.target.classes), self.counts
        check_table(told.confusion, classes**2, 1, "validation.confusion")
        check_table(told.pairs, 3 * classes * self.tells_class_pairs, 1, "validation.pairs")
        if told.scores is None or len(told.scores) != classes:
            raise ReportError(f"validation.scores: expected one table for each of {classes} classes")
        confusion, cells = told.confusion or [], 1 << counts.score_depth
        if sum(confusion) != told.patients:
            raise ReportError(f"validation.confusion: of {sum(confusion)} patients, expected {told.patients}")
        for number, table in enumerate(told.scores):
            of_class = sum(confusion[number * classes : (number + 1) * classes])
            others = told.patients - of_class
            check_table([of_class], 1, counts.min_cell, f"validation.confusion of class {number}")
            check_table(table, 2 * cells, counts.min_cell, "validation.scores")
            if (sum(table[:cells]), sum(table[cells:])) != (others, of_class):
                raise ReportError(
                    f"validation.scores of class {number}: expected {others} patients that are not, and {of_class} "
                    f"that are of it, as the confusion tells"
                )
            if told.pairs and sum(told.pairs[3 * number : 3 * number + 3]) != of_class * others:
                raise ReportError(
                    f"validation.pairs of class {number}: expected {of_class * others}, as the confusion tells"
                )

    def _conflicts(self) -> list[str]:
        wrong = super()._conflicts()
        if self.privacy.mode in SILENT_MODES and self.survival and self.target.edges is None:
            wrong.append(
                "the survey of round 0 counts events, which no noise hides: give the bins as target.edges, from public "
                "knowledge"
            )
        if self.privacy.mode == "dp_sgd" and self.training.balanced:
            wrong.append(
                "training.balanced makes the draw of a patient depend on the labels of the others: set it to false"
            )
        return wrong
