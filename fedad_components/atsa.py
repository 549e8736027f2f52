"""ATSA, adaptive teacher-student alignment: Eqs. 5-6 and Algorithm 1, at the server. Imports torch only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from fedad_components.config import ATSAConfig

EPS = 1e-8
ADAPTS_FROM = 0.05
"""Smallest relative variation of exp(-k Delta) over a run for which lambda_t can be said to adapt."""


def instability(theta_new: Mapping[str, Tensor], theta_old: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """Eq. 5: Delta = ||theta^{t+1} - theta^t||_2 / (||theta^t||_2 + 1e-8), accumulated in float64.

    ``names`` are the trainable parameters (:func:`~fedad_components.fedsd.state.trainable_names`): running statistics
    and counters are no part of theta here.

    Raises:
        KeyError: if a state lacks one of the names.
    """
    change = norm = 0.0
    for name in sorted(names):  # one order everywhere: floating-point sums depend on it
        old, new = theta_old[name].double(), theta_new[name].double()
        change += float((new - old).square().sum())
        norm += float(old.square().sum())
    return math.sqrt(change) / (math.sqrt(norm) + EPS)


class ATSA:
    """The schedule of lambda_t.

    ``lambda_t`` goes out with the coming round's task, ``lambda_min`` in round 0; after each aggregation call
    ``update(Delta)``. ``history`` holds Delta of every round, as measured.
    """

    def __init__(self, config: ATSAConfig) -> None:
        self.config = config
        self.lambda_t: float = config.lambda_fixed if config.schedule == "fixed" else config.lambda_min
        self.history: list[float] = []

    def scaled(self, delta: float) -> float:
        """Delta as Eq. 6 uses it: itself, or divided by the first round's (``instability_scale: relative``)."""
        return delta / (self.history[0] + EPS) if self.config.instability_scale == "relative" else delta

    def stability(self, delta: float) -> float:
        """e^{-k Delta}: 1 for a model that no longer changes."""
        return math.exp(-self.config.k * self.scaled(delta))

    def update(self, delta: float) -> float:
        """Eq. 6: lambda^{t+1} = alpha lambda^t + (1 - alpha) [lambda_min + (lambda_max - lambda_min) e^{-k Delta}].

        Raises:
            ValueError: if ``delta`` is negative or not finite.
        """
        if not (math.isfinite(delta) and delta >= 0):
            raise ValueError(f"instability {delta!r}: expected a finite number >= 0; the aggregate is not usable")
        self.history.append(float(delta))
        c = self.config
        if c.schedule == "atsa":
            target = c.lambda_min + (c.lambda_max - c.lambda_min) * self.stability(delta)
            self.lambda_t = c.alpha * self.lambda_t + (1 - c.alpha) * target
        return self.lambda_t

    @property
    def phase(self) -> Literal["exploration", "enforcement"]:
        """``exploration`` until the latest Delta is at most ``stability_threshold``, ``enforcement`` while it is.

        Only a name for reports: lambda_t itself moves smoothly. Delta is the scaled one, as in Eq. 6.
        """
        stable = bool(self.history) and self.scaled(self.history[-1]) <= self.config.stability_threshold
        return "enforcement" if stable else "exploration"

    def warning(self) -> str | None:
        """What to say when lambda_t followed its own momentum rather than the model: e^{-k Delta} varied by < 5 %."""
        if self.config.schedule == "fixed" or len(self.history) < 2:
            return None
        values = [self.stability(delta) for delta in self.history]
        variation = 1 - min(values) / max(values) if max(values) > 0 else 0.0
        if variation >= ADAPTS_FROM:
            return None
        return (
            f"ATSA did not adapt: exp(-k Delta) varied by {variation:.1%} over {len(values)} rounds "
            f"({min(values):.3g} to {max(values):.3g}), so lambda_t only followed its moving average. Set "
            f"atsa.instability_scale to 'relative', or choose k so that exp(-k Delta) spans its range."
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types: lambda_t and the history."""
        return {"lambda_t": self.lambda_t, "history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved ``state_dict()``."""
        self.lambda_t = float(state["lambda_t"])
        self.history = [float(delta) for delta in state["history"]]
