"""HistoFL's server between rounds: time bins from the survey, federated validation, early stopping. No FLARE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedad_components.algorithms.monitor import Monitor
from fedad_components.mil.bins import edges_from_histograms
from fedad_components.mil.tables import class_pair_tables, confusion_table, event_table, pair_table, score_tables
from fedad_components.reports import Validation

if TYPE_CHECKING:
    from fedad_components.mil.config import HistoFLConfig
    from fedad_components.reports import ValidationCounts


class FederatedValidation(Monitor):
    """Chooses the model that does best on all sites' validation patients together, and ends when none does better.

    What a site reports in round t is about theta^t, the model that it received: the last round's own model is never
    validated, and is kept beside the best one.
    """

    def __init__(self, config: HistoFLConfig) -> None:
        self.config = config
        self.bin_edges: list[float] | None = None
        self.best: float | None = None
        self.best_round: int | None = None
        self.stopped = False

    def update(
        self, round_number: int, events: Mapping[str, list[int]], counts: Mapping[str, ValidationCounts]
    ) -> Validation | None:
        if self.config.surveys(round_number):
            histograms = {site: event_table(told, self.config) for site, told in events.items()}
            self.bin_edges = list(edges_from_histograms(histograms, self.config.target.bins))
            return None
        if not counts:
            return None
        found = self._validation(counts)
        value = found.value
        better = value is not None and (self.best is None or value > self.best)
        if better:
            self.best, self.best_round = value, round_number
        stopping = self.config.stopping
        if stopping.patience and self.best_round is not None and round_number + 1 >= stopping.min_rounds:
            self.stopped = round_number - self.best_round >= stopping.patience
        return found.model_copy(update={"best": better})

    def _validation(self, counts: Mapping[str, ValidationCounts]) -> Validation:
        sites = [counts[site] for site in sorted(counts)]
        patients = sum(site.patients for site in sites)
        if self.config.survival:
            return Validation(patients=patients, c_index=pair_table(sites).c_index, best=False)
        confusion = confusion_table(sites, self.config)
        if self.config.tells_class_pairs:
            areas = [pairs.c_index for pairs in class_pair_tables(sites, self.config)]
        else:
            areas = [table.auc for table in score_tables(sites, self.config)]
        known = [area for area in areas if area is not None]
        return Validation(
            patients=patients,
            auc=float(np.mean(known)) if known else None,
            balanced_accuracy=confusion.balanced_accuracy,
            best=False,
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "bin_edges": self.bin_edges,
            "best": self.best,
            "best_round": self.best_round,
            "stopped": self.stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.bin_edges, self.best = state["bin_edges"], state["best"]
        self.best_round, self.stopped = state["best_round"], bool(state["stopped"])
