"""The methods that a job may name: FedAD, and those it is compared with. Needs no torch.

A method is a choice of settings (``settings``) and, where settings do not reach, one small module with a
:class:`~fedad_components.methods.local.LocalMethod`. Trainer, controller, gate and wire are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MethodName = Literal["fedad", "fedavg_ssl", "fedprox_ssl", "moon", "fedbn_ssl", "fedema", "fedgala", "feddg", "feddis"]

_AGGREGATED_SIMCLR: Mapping[str, Mapping[str, Any]] = {
    "loss": {"head": "aggregated", "gamma": 0.0},
    "atsa": {"schedule": "fixed", "lambda_fixed": 0.0},
}


@dataclass(frozen=True)
class MethodCard:
    """What an operator, officer or reader has to know of a method."""

    title: str
    source: str
    shares: str
    """What leaves a site in each round, beside n_k and mean losses."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sections of the configuration with the values that make it this method; a job cannot change them."""


METHODS: Mapping[MethodName, MethodCard] = {
    "fedad": MethodCard(
        "FedAD",
        "Eqs. 1-6 and Algorithm 1 of the paper",
        "the extractor",
    ),
    "fedavg_ssl": MethodCard(
        "FedAvg-SSL",
        "McMahan et al. 2017, Algorithm 1; local loss NT-Xent (Chen et al. 2020, Eq. 1)",
        "extractor and projection head",
        _AGGREGATED_SIMCLR,
    ),
    "fedprox_ssl": MethodCard(
        "FedProx-SSL",
        "Li et al. 2020 (FedProx), Eq. 2; local loss NT-Xent",
        "extractor and projection head",
        _AGGREGATED_SIMCLR,
    ),
    "moon": MethodCard(
        "MOON",
        "Li, He and Song 2021, Eq. 3, beside NT-Xent in place of the supervised loss",
        "extractor and projection head; the site's last model stays there",
        _AGGREGATED_SIMCLR,
    ),
    "fedbn_ssl": MethodCard(
        "FedBN-SSL",
        "Li et al. 2021 (FedBN), Algorithm 1; local loss NT-Xent",
        "extractor without BatchNorm's statistics, and projection head",
        {**_AGGREGATED_SIMCLR, "model": {"norm": "local"}},
    ),
    "fedema": MethodCard(
        "FedEMA",
        "Zhuang, Wen and Zhang 2022, Eqs. 1-4, with BYOL (Grill et al. 2020, Eq. 2)",
        "extractor, projector and predictor; the target network and the site's last model stay there",
        _AGGREGATED_SIMCLR,
    ),
    "fedgala": MethodCard(
        "FedGaLA",
        "Pourpanah et al. 2025, Algorithm 1: alignment of gradients at the site and of updates at the server",
        "extractor and projection head; the server keeps a round's updates until it has them all",
        _AGGREGATED_SIMCLR,
    ),
    "feddg": MethodCard(
        "FedDG",
        "Liu, Chen, Qin, Dou and Heng 2021, Eqs. 1-3; NT-Xent in place of their episodes",
        "extractor, projection head, and amplitude spectra of single images, which go on to the other sites and are "
        "not private",
        _AGGREGATED_SIMCLR,
    ),
    "feddis": MethodCard(
        "FedDis",
        "Bercea, Wiestler, Rueckert and Albarqouni 2022: shape consistency and latent orthogonality, beside NT-Xent",
        "extractor and the head's half for shape; its half for appearance stays at the site",
        _AGGREGATED_SIMCLR,
    ),
}
