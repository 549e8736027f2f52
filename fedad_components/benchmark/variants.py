"""The rows of the benchmark: methods, ablations and references, each a choice of settings. Needs no torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedad_components.config import FedADConfig
from fedad_components.methods import METHODS
from fedad_components.settings import apply_settings

STAIN_JITTER = 0.4
JITTERED = "+stain_jitter"
"""Ending of a variant's name: the same with ``views.stain_jitter``."""

_NO_PULL = {"loss": {"gamma": 0.0}, "atsa": {"schedule": "fixed", "lambda_fixed": 0.0}}

_RELATIONS = {
    "loss": {
        "gamma": 0.0,
        "semantic_alignment": "relations",
        "domain_alignment": "none",
        "teacher_view": "whole",
        "teacher_centering": True,
    }
}


@dataclass(frozen=True)
class Variant:
    """One row.

    Attributes:
        name: as on the command line and in the results.
        title: for people.
        settings: sections of the configuration that make it.
        training: federated; pooled, one site that holds all images (what the data-protection officer forbids); none,
            the random initialisation.
        labels: whether the labels train, as a reference.
    """

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Literal["federated", "pooled", "none"] = "federated"
    labels: bool = False


_PLAIN = (
    Variant("random", "random initialisation", training="none"),
    Variant("fedad", "FedAD"),
    Variant("relations", "FedAD, relations of a whole-image teacher", _RELATIONS),
    Variant("no_orthogonality", "FedAD without orthogonality", {"loss": {"gamma": 0.0}}),
    Variant("no_atsa", "FedAD without ATSA", {"atsa": {"schedule": "fixed", "lambda_fixed": 0.5}}),
    Variant("private_head", "private head only", _NO_PULL),
    *(Variant(name, card.title, {"method": name}) for name, card in METHODS.items() if name != "fedad"),
    Variant("centralized_simclr", "SimCLR, pooled", {"method": "fedavg_ssl"}, "pooled"),
    Variant("fedavg_supervised", "FedAvg, supervised", _NO_PULL, labels=True),
    Variant("centralized_supervised", "supervised, pooled", _NO_PULL, "pooled", labels=True),
)

VARIANTS: Mapping[str, Variant] = {variant.name: variant for variant in _PLAIN} | {
    variant.name + JITTERED: Variant(
        variant.name + JITTERED,
        f"{variant.title} + stain jitter",
        {**variant.settings, "views": {"stain_jitter": STAIN_JITTER}},
        variant.training,
    )
    for variant in _PLAIN
    if variant.training != "none" and not variant.labels  # else no views are drawn: there is nothing to jitter
}

CHANGED, AND = "@", "+"
"""Between a row's name and the settings in which a run deviates from it, and between those."""

BASELINE = "fedavg_ssl"
"""What every other method is tested against."""
ALWAYS = ("random", BASELINE, "private_head", "centralized_supervised")
"""Rows without which no table is honest: they are run whatever is asked for."""


def find_variant(name: str) -> Variant:
    """A row by its name, or one that deviates from it: ``fedad@loss.gamma=0+views.hue=0.1+stain_jitter``.

    Raises:
        ValueError: if there is no such row, or a setting is wrong.
    """
    if name in VARIANTS:
        return VARIANTS[name]
    base, _, changes = name.removesuffix(JITTERED).partition(CHANGED)
    if base not in VARIANTS:
        raise ValueError(f"method {base!r}: expected one of {', '.join(VARIANTS)}")
    variant = VARIANTS[base + JITTERED if name.endswith(JITTERED) else base]
    settings = apply_settings(copy.deepcopy(dict(variant.settings)), changes.split(AND))
    for key, instead in (("seed", "--seeds"), ("method", "the row of that method")):
        if settings.get(key) != variant.settings.get(key):
            raise ValueError(f"method {name!r}: {key} is not a row's to set: expected {instead}")
    configuration(replace(variant, settings=settings), PRESETS["quick"], 0, 2)  # refuses unknown settings here
    return replace(variant, name=name, title=f"{variant.title}, {changes}", settings=settings)


def honest(names: Iterable[str]) -> list[str]:
    """The chosen variants with the rows that are always there, and each of them with and without stain jitter.

    Raises:
        ValueError: naming a variant that does not exist.
    """
    plain = dict.fromkeys(find_variant(name.removesuffix(JITTERED)).name for name in (*ALWAYS, *names))
    listed = [name for name in VARIANTS if name.removesuffix(JITTERED) in plain]
    return listed + [name + jitter for name in plain if name not in VARIANTS for jitter in ("", JITTERED)]


LEARNABLE = {"loss": {"temperature": 0.5}, "views": {"hue": 0.1, "crop_scale_min": 0.3}}
"""For all rows: with the paper's temperature, hue and crops, NT-Xent hardly leaves chance in so few steps, and nothing
could be compared (docs/experiments.md)."""


@dataclass(frozen=True)
class Preset:
    """How much is trained."""

    image_size: int
    batch_size: int
    rounds: int
    epochs: int
    max_images: int
    """Of each laboratory, to train on; 0: all."""
    probe_images: int = 0
    """Of each laboratory, whose labels fit the probe; 0: all."""
    base_channels: int = 64
    stem: str = "auto"
    amp: str = "auto"
    protocols: tuple[str, ...] = ("source", "target", "few-shot", "knn")


PRESETS: Mapping[str, Preset] = {
    "quick": Preset(
        image_size=64,
        batch_size=32,
        rounds=36,
        epochs=3,
        max_images=200,
        probe_images=400,
        base_channels=32,
        stem="imagenet",
        amp="bf16",
    ),
    "full": Preset(image_size=96, batch_size=64, rounds=27, epochs=3, max_images=0),
}


def configuration(variant: Variant, preset: Preset, seed: int, sites: int) -> FedADConfig:
    """The configuration of one run over ``sites`` laboratories."""
    base: dict[str, Any] = {
        "seed": seed,
        "model": {"image_size": preset.image_size, "base_channels": preset.base_channels, "stem": preset.stem},
        "training": {
            "batch_size": preset.batch_size,
            "epochs": preset.epochs,
            "amp": preset.amp,
            "max_images": 0 if variant.training == "pooled" else preset.max_images,  # pooled images are chosen before
        },
        "federation": {"rounds": preset.rounds, "min_sites": 1 if variant.training == "pooled" else sites},
    }
    return FedADConfig.parse(merged(merged(base, LEARNABLE), variant.settings))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of ``base`` with the settings of ``changes`` in them."""
    whole = dict(base)
    for name, value in changes.items():
        whole[name] = {**base.get(name, {}), **value} if isinstance(value, Mapping) else value
    return whole
