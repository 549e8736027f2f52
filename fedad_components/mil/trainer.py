"""One site's local training of HistoFL, and what it counts for the federation."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.fedsd.seeds import stream_seed
from fedad_components.fedsd.state import require_names
from fedad_components.fedsd.trainer import RoundResult, TrainingError, choose_device
from fedad_components.mil.bags import Outcome, collate, order_of
from fedad_components.mil.bins import event_histogram, to_bins
from fedad_components.mil.federated_metrics import ClassTables
from fedad_components.mil.losses import hazard_nll, risk
from fedad_components.mil.model import GatedAttentionMIL
from fedad_components.mil.site_bags import Row, SiteBags
from fedad_components.mil.splits import Split, split_patients
from fedad_components.mil.survival_metrics import pair_counts
from fedad_components.mil.tables import score_grid, time_grid

if TYPE_CHECKING:
    from fedad_components.mil.config import HistoFLConfig

VALIDATION_ABOVE, TEST_ABOVE = 0.70, 0.85


def build_model(config: HistoFLConfig) -> GatedAttentionMIL:
    """The experiment's initial model, the same everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.seed, "gated attention"))
        return GatedAttentionMIL(config.model.in_features, config.target.outputs, dropout=config.model.dropout)


def split_of(bags: SiteBags, config: HistoFLConfig, site: str) -> Split:
    """The site's patients: 70 % to train on, 15 % to validate, 15 % to test.

    Under dp_sgd each patient's part is drawn for itself, as a unit must not decide about another; else they are
    stratified.

    Raises:
        SplitError: if there are too few patients of a class.
    """
    if config.privacy.mode != "dp_sgd":
        classes = () if config.survival else range(len(config.target.classes))
        return split_patients(bags.labels, config.seed, site, classes)
    place = {patient: stream_seed(config.seed, f"split {patient}", site) / 2**63 for patient in bags.labels}
    return Split(
        frozenset(patient for patient in place if place[patient] < VALIDATION_ABOVE),
        frozenset(patient for patient in place if VALIDATION_ABOVE <= place[patient] < TEST_ABOVE),
        frozenset(patient for patient in place if place[patient] >= TEST_ABOVE),
    )


class BagTrainer:
    """Trains at one site, round by round; nothing private is kept between rounds, the optimiser is fresh in each.

    Args:
        config: of the experiment.
        bags: all of the site's.
        site: the site's name; it enters the seeds and the error messages.
        device: overrides ``training.device``.
        split: of the patients; by default :func:`split_of`.

    Raises:
        TrainingError: if the privacy mode needs another trainer.
        SplitError: if the patients cannot be split.
        CatalogueError: if slides of one patient have different labels.
    """

    modes: ClassVar[frozenset[str]] = frozenset({"none", "weight_noise", "client_dp"})
    """Values of ``privacy.mode`` under which this trainer may train."""

    def __init__(
        self,
        config: HistoFLConfig,
        bags: SiteBags,
        site: str,
        device: str | torch.device | None = None,
        split: Split | None = None,
    ) -> None:
        if config.privacy.mode not in self.modes:
            raise TrainingError(
                f"site {site}: {type(self).__name__} does not train under privacy.mode {config.privacy.mode!r}"
            )
        self.config, self.bags, self.site = config, bags, site
        self.split = split or split_of(bags, config, site)
        self.train_rows = self._rows(self.split.train)
        self.device = torch.device(device) if device is not None else choose_device(config.training.device)
        self.model = build_model(config).to(self.device)

    def train_round(
        self,
        global_state: Mapping[str, Tensor],
        lambda_t: float,
        round_number: int,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
        bin_edges: Sequence[float] | None = None,
    ) -> RoundResult:
        """E local epochs from theta^t, after validating it; in the survey's round, only the count of events.

        Args:
            global_state: theta^t, names as on the wire.
            lambda_t: of no meaning here.
            round_number: t; it enters the seeds.
            on_epoch: called with the epoch's number, from 0, and its loss.
            bin_edges: what the survey has found; none where the configuration says the edges, or needs none.

        Raises:
            StateError: if theta^t does not fit the configuration.
            TrainingError: if the loss is not finite, or edges are missing.
        """
        began = time.perf_counter()
        require_names(global_state, self.model.state_dict(), "state")
        self.model.load_state_dict(dict(global_state))
        if self.config.surveys(round_number):
            update = {name: tensor.clone() for name, tensor in global_state.items()}
            return RoundResult(
                update, len(self.train_rows), [], None, time.perf_counter() - began, events=self._count_events()
            )
        edges = self.config.target.edges or bin_edges
        if self.config.survival and not edges:
            raise TrainingError(f"site {self.site}, round {round_number}: the task brings no edges of time bins")
        told = self.config.reports(round_number)
        validation = self.validate() if "validation" in told else None
        # Dropout draws from the global generators: set for the round, put back afterwards.
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(stream_seed(self.config.seed, "dropout", self.site, round_number))
            losses = self._train(self._targets(edges or ()), round_number, on_epoch)
        update = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}
        n_samples = len(self.train_rows) if "n_samples" in told else None
        return RoundResult(update, n_samples, losses, None, time.perf_counter() - began, validation=validation)

    def site_state(self) -> dict[str, Tensor]:
        """Nothing: a round starts from the global model alone."""
        return {}

    def load_site_state(self, state: Mapping[str, Tensor]) -> None:
        """There is nothing to load; StateError if a state holds something all the same."""
        require_names(state, (), f"private state of site {self.site}")

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy or hazard loss of one bag.

        Args:
            logits: ``(1, C)`` or ``(1, R)``.
            target: int64, the class ``(1,)``; or the bin and whether it is censored, ``(1, 2)``.
        """
        if self.config.survival:
            return hazard_nll(logits, target[:, 0], target[:, 1], self.config.target.beta)
        return F.cross_entropy(logits, target)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """How the present model does on the validation patients: ``wire.ValidationCounts``, as JSON."""
        config, least = self.config, self.config.counts.min_cell
        self.model.eval()
        by_patient: dict[str, list[Tensor]] = defaultdict(list)
        rows = self._rows(self.split.validation)
        for row in rows:
            by_patient[row.owner].append(self._logits(row, draw=-1).squeeze(0).float().cpu())
        targets = {row.owner: row.target for row in rows}
        if config.survival:
            outcomes = [target for target in targets.values() if isinstance(target, Outcome)]
            risks = risk(torch.stack([logits[0] for logits in by_patient.values()]))
            times, events = [outcome.time for outcome in outcomes], [int(outcome.event) for outcome in outcomes]
            comparable = pair_counts(times, events, risks.numpy(), least).counts.tolist()
            return {"patients": len(outcomes) if any(comparable) else 0, "pairs": comparable}
        true = np.array([int(targets[patient]) for patient in by_patient])  # type: ignore[arg-type]
        scores = torch.stack([torch.stack(logits).softmax(dim=1).mean(dim=0) for logits in by_patient.values()]).numpy()
        confusion, histograms, pairs = ClassTables.of(true, scores, score_grid(config), least)
        return {
            "patients": int(confusion.counts.sum()),
            "confusion": confusion.counts.ravel().tolist(),
            "scores": [histogram.counts.ravel().tolist() for histogram in histograms],
            "pairs": np.ravel([table.counts for table in pairs]).tolist() if config.tells_class_pairs else None,
        }

    def _train(
        self, targets: Tensor, round_number: int, on_epoch: Callable[[int, dict[str, float]], None] | None
    ) -> list[dict[str, float]]:
        """E epochs of one bag a step; the mean loss of each."""
        training = self.config.training
        optimizer = make_optimizer(self.model, self.config)
        self.model.train()
        losses = []
        for epoch in range(training.epochs):
            draw = round_number * training.epochs + epoch
            labels = [row.label for row in self.train_rows]
            total = 0.0
            for position in order_of(labels, self.config.seed, self.site, draw, training.balanced):
                logits = self._logits(self.train_rows[position], draw)
                loss = self.loss(logits, targets[position : position + 1])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += loss.item()
            mean = {"total": total / len(self.train_rows)}
            if not np.isfinite(mean["total"]):
                raise TrainingError(
                    f"site {self.site}, round {round_number}, epoch {epoch}: the loss is not finite: lower "
                    f"training.learning_rate, and look for features that are not finite"
                )
            losses.append(mean)
            if on_epoch:
                on_epoch(epoch, mean)
        return losses

    def _logits(self, row: Row, draw: int) -> Tensor:
        """``(1, outputs)`` of one bag; ``draw`` numbers the choice of its patches, where they are too many."""
        batch = collate([self.bags.bag(row)], self.config.training.max_patches or None, self.config.seed, draw)
        batch = batch.to(self.device)
        logits: Tensor = self.model(batch.features, batch.mask).logits
        return logits

    def _targets(self, edges: Sequence[float]) -> Tensor:
        """Of the training bags: class ``(n,)``, or bin and whether censored ``(n, 2)``; int64."""
        found = [row.target for row in self.train_rows]
        if not self.config.survival:
            return torch.tensor(found, dtype=torch.int64, device=self.device)
        outcomes = [target for target in found if isinstance(target, Outcome)]
        bins = to_bins([outcome.time for outcome in outcomes], edges) if outcomes else np.empty(0, np.int64)
        censored = np.array([not outcome.event for outcome in outcomes], dtype=np.int64)
        return torch.from_numpy(np.stack([bins, censored], axis=1)).to(self.device)

    def _count_events(self) -> list[int]:
        outcomes = [row.target for row in self.train_rows if isinstance(row.target, Outcome)]
        times, events = [outcome.time for outcome in outcomes], [int(outcome.event) for outcome in outcomes]
        histogram = event_histogram(times, events, time_grid(self.config), self.config.counts.min_cell)
        counts: list[int] = histogram.counts.tolist()
        return counts

    def _rows(self, patients: frozenset[str]) -> list[Row]:
        return [row for row in self.bags.rows if row.owner in patients]


def make_optimizer(model: nn.Module, config: HistoFLConfig) -> torch.optim.Adam:
    """The paper's Adam over all parameters."""
    training = config.training
    return torch.optim.Adam(
        model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
