"""The discrete-time survival loss, its curve and its risk. Imports torch only; classification uses cross-entropy.

h(r) = sigmoid(logit_r) is the hazard in bin r, S(r) = prod over u <= r of (1 - h(u)) the probability to live beyond it,
S(-1) = 1. All is computed from log h = logsigmoid(logit) and log(1 - h) = logsigmoid(-logit), never from clamped
probabilities, whose gradient is 0 where a prediction is most wrong.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

BETA = 0.15
"""HistoFL's: censored patients count 1 - BETA."""

Reduction = Literal["mean", "sum", "none"]


def hazard_nll(
    logits: Tensor, bins: Tensor, censored: Tensor, beta: float = BETA, reduction: Reduction = "mean"
) -> Tensor:
    """Negative log-likelihood of discrete hazards (Zadeh & Schmid 2020; the convention of HistoFL's code).

    An event in bin Y costs -[log S(Y - 1) + log h(Y)], a patient censored in bin Y -(1 - beta) log S(Y). With beta = 0
    it is pycox's ``nll_logistic_hazard``, whose censored patients live to the end of their bin too.

    Args:
        logits: ``(N, R)``, of the hazards.
        bins: int64 ``(N,)``, 0 to R - 1: the bin of the event or of the last time seen.
        censored: ``(N,)``, bool or 0 and 1: 1 where no event was seen.
        beta: 0 to 1.
        reduction: mean or sum over the N patients (censored ones too), or none: ``(N,)``.

    Raises:
        ValueError: if shapes do not match, or beta or reduction is not among the above.
    """
    if logits.ndim != 2 or not bins.shape == censored.shape == logits.shape[:1]:
        raise ValueError(
            f"logits {tuple(logits.shape)}, bins {tuple(bins.shape)}, censored {tuple(censored.shape)}: expected "
            f"(N, R), (N,) and (N,)"
        )
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta: {beta}: expected 0 to 1")
    log_hazard, log_survival = F.logsigmoid(logits), _log_survival(logits)
    log_survival_before = F.pad(log_survival, (1, 0))[:, :-1]
    in_bin = bins.unsqueeze(1)
    observed = -(log_survival_before + log_hazard).gather(1, in_bin).squeeze(1)
    lived = -log_survival.gather(1, in_bin).squeeze(1)
    cost = torch.where(censored.bool(), (1.0 - beta) * lived, observed)
    if reduction == "none":
        return cost
    if reduction == "sum":
        return cost.sum()
    if reduction == "mean":
        return cost.mean()
    raise ValueError(f"reduction: {reduction!r}: expected 'mean', 'sum' or 'none'")


def survival_curve(logits: Tensor) -> Tensor:
    """S(r) of each bin, ``(..., R)`` to ``(..., R)``: it starts below 1 and never rises."""
    return _log_survival(logits).exp()


def risk(logits: Tensor) -> Tensor:
    """-sum over r of S(r), ``(..., R)`` to ``(...)``, in [-R, 0]: high where death is expected early."""
    return -survival_curve(logits).sum(dim=-1)


def _log_survival(logits: Tensor) -> Tensor:
    return F.logsigmoid(-logits).cumsum(dim=-1)
