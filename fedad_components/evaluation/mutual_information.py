"""Mutual information of two vectors by MINE (Belghazi et al. 2018), on held-out pairs. Imports torch; no FLARE."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedad_components.fedsd.seeds import stream, stream_seed

COMPONENTS = 16
"""Principal components of each vector that the critic sees; what the others say is not counted."""
FEWEST = 60
"""Pairs below which the three parts are too small to fit, to choose and to estimate."""
HIDDEN = 64
BATCH = 128
MISMATCHES = 4
"""Wrong partners of each x in a batch; on held-out pairs there are more, which costs no gradient."""
HELD_OUT_MISMATCHES = 32
STEPS = 400
CHECK_EVERY = 20
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 1e-3
EMA_RATE = 0.05
"""Weight of the newest batch in the moving average that stands for E[exp T] in the gradient."""


class MutualInformationError(ValueError):
    """Vectors whose mutual information cannot be estimated; the message says what was expected."""


class MutualInformation(BaseModel):
    """A lower bound, and what to compare it with; all in nats."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nats: float = Field(description="Donsker-Varadhan bound on pairs that took no part in the fit")
    null: float = Field(description="the same on shuffled pairs, whose mutual information is 0")
    ceiling: float = Field(
        description="about the most that this number of held-out pairs can show: ln of their number (McAllester & "
        "Stratos 2020)"
    )
    held_out: Annotated[int, Field(ge=1)] = Field(description="pairs of the estimate")


def mutual_information(x: npt.NDArray, y: npt.NDArray, seed: int = 0, steps: int = STEPS) -> MutualInformation:
    """I(X; Y) of the pairs ``(x_i, y_i)``, as a lower bound, beside the same for shuffled pairs.

    Three fifths of the pairs fit the critic, one fifth chooses its step, one fifth gives the estimate. Both vectors are
    reduced to their first principal components and standardised by the first part, which can only lose information: the
    bound stays one.

    Args:
        x: ``(n, D)``.
        y: ``(n, E)``.
        seed: draws the parts, the critic's weights, the batches and the shuffled pairing.
        steps: of the critic's optimiser.

    Raises:
        MutualInformationError: if there are fewer than 60 pairs, the shapes do not fit, or a value is not finite.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or len(x) < FEWEST:
        raise MutualInformationError(
            f"expected at least {FEWEST} pairs of vectors (n, D) and (n, E), got {x.shape} and {y.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise MutualInformationError("vectors that are not finite; was the extractor trained to NaN?")
    generator = np.random.default_rng([seed, 0x313E])
    order, shuffled = generator.permutation(len(x)), generator.permutation(len(x))
    return MutualInformation(
        nats=_held_out_bound(x[order], y[order], seed, steps),
        null=_held_out_bound(x[order], y[shuffled], seed, steps),
        ceiling=math.log(_held_out(len(x))),
        held_out=_held_out(len(x)),
    )


def donsker_varadhan(scores: Tensor) -> Tensor:
    """E_P[T] - ln E_{P x P}[exp T] of a critic's ``(1 + S, n)`` scores (Belghazi et al. 2018, Eq. 10)."""
    return scores[0].mean() - _log_mean_exp(scores[1:])


class Critic(nn.Module):
    """T(x, y), ``(n, D)`` and ``(n, E)`` to ``(1 + S, n)``: row s scores each x_i with y_{i+s}, so row 0 are the pairs.

    The other rows stand for the product of the marginals; S = ``mismatches``, at most n - 1.
    """

    def __init__(self, x_size: int, y_size: int) -> None:
        super().__init__()
        self.of_x, self.of_y = nn.Linear(x_size, HIDDEN), nn.Linear(y_size, HIDDEN, bias=False)
        self.rest = nn.Sequential(nn.ELU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, 1))

    def forward(self, x: Tensor, y: Tensor, mismatches: int = MISMATCHES) -> Tensor:
        shifts = torch.arange(1 + min(mismatches, len(x) - 1))
        partner = (torch.arange(len(x)) + shifts[:, None]) % len(x)
        scores: Tensor = self.rest(self.of_x(x) + self.of_y(y)[partner])
        return scores.squeeze(-1)


def _held_out(n: int) -> int:
    return n // 5


def _held_out_bound(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], seed: int, steps: int) -> float:
    test = _held_out(len(x))
    fit = len(x) - 2 * test
    (fit_x, choose_x, test_x), (fit_y, choose_y, test_y) = (
        _reduced(values, fit).split([fit, test, test]) for values in (x, y)
    )
    if fit_x.shape[1] == 0 or fit_y.shape[1] == 0:
        return 0.0  # a constant tells nothing
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "mine"))
        critic = Critic(fit_x.shape[1], fit_y.shape[1])
    optimizer = torch.optim.Adam(critic.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    draw = stream(seed, "mine batches")
    log_average: Tensor | None = None
    best, result = 0.0, 0.0  # the constant critic's, which is where every fit may stay
    for step in range(1, steps + 1):
        batch = torch.randperm(fit, generator=draw)[:BATCH]
        scores = critic(fit_x[batch], fit_y[batch])
        log_mean = _log_mean_exp(scores[1:])
        now = log_mean.detach()
        log_average = (
            now
            if log_average is None
            else torch.logaddexp(log_average + math.log(1 - EMA_RATE), now + math.log(EMA_RATE))
        )
        # Its gradient is E[T'] - E[exp(T) T'] / average: unbiased, unlike the batch's own ratio (section 3.2).
        loss = -(scores[0].mean() - (log_mean - log_average).exp())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % CHECK_EVERY == 0:
            with torch.inference_mode():
                chosen = donsker_varadhan(critic(choose_x, choose_y, HELD_OUT_MISMATCHES)).item()
                if chosen > best:
                    best = chosen
                    result = donsker_varadhan(critic(test_x, test_y, HELD_OUT_MISMATCHES)).item()
    return result


def _log_mean_exp(values: Tensor) -> Tensor:
    return values.flatten().logsumexp(dim=0) - math.log(values.numel())


def _reduced(values: npt.NDArray[np.float64], fit: int) -> Tensor:
    """``(n, D)`` to ``(n, min(D, 16))``: principal components of the first ``fit`` rows, each with variance 1 there."""
    centre = values[:fit].mean(axis=0)
    _, singular, axes = np.linalg.svd(values[:fit] - centre, full_matrices=False)
    kept = int((singular[:COMPONENTS] > 1e-6 * max(singular[0], 1e-12)).sum())
    scale = singular[:kept] / math.sqrt(fit)
    return torch.from_numpy((values - centre) @ axes[:kept].T / scale).float()
