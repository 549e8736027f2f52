"""A trained model's file: the weights of the gated attention, and what its outputs mean. Needs torch; no FLARE."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedad_components.fedsd.state import StateError, read_tensors, require_names
from fedad_components.mil.losses import risk
from fedad_components.mil.model import GatedAttentionMIL

EXPERIMENT = "experiment_sha256"
"""Of the metadata: the identity of the configuration that trained the model, which decides who was trained on."""


@dataclass(frozen=True)
class SavedModel:
    """A model to predict with.

    Attributes:
        module: in evaluation mode.
        in_features: d, length of a patch's features.
        classes: of classification, in the outputs' order; none: the outputs are survival's time bins.
        encoder_sha256: digest of the weights of the encoder that the features are of; None: the file does not say it.
        experiment: identity of the configuration that trained it; None: the file does not say it.
    """

    module: GatedAttentionMIL
    in_features: int
    classes: tuple[str, ...]
    encoder_sha256: str | None
    experiment: str | None = None

    def describe(self, logits: torch.Tensor) -> str:
        """What logits ``(outputs,)`` predict of a bag, in words."""
        if not self.classes:
            return f"predicted risk {float(risk(logits)):.3f}, from {-len(logits)} (low) to 0 (high)"
        probability, number = logits.softmax(dim=-1).max(dim=-1)
        return f"predicted {self.classes[int(number)]}, probability {float(probability):.3f}"


def load_bag_model(path: str | Path) -> SavedModel:
    """The model of a file that a job of HistoFL exported: safetensors with ``in_features``, ``outputs`` and ``target``.

    Raises:
        StateError: if the file cannot be read, was not written by such a job, or its tensors are not the model's.
    """
    tensors, metadata = read_tensors(path)
    try:
        in_features, outputs = int(metadata["in_features"]), int(metadata["outputs"])
        classes = _classes(json.loads(metadata["target"]), outputs)
    except (KeyError, ValueError, TypeError):
        raise StateError(
            f"{path}: the metadata lacks in_features, outputs or target: expected the model.safetensors of a job of "
            f"HistoFL"
        ) from None
    with torch.device("meta"):
        module = GatedAttentionMIL(in_features, outputs)
    require_names(tensors, module.state_dict(), f"{path}")
    try:
        module.load_state_dict(tensors, assign=True)
    except RuntimeError:
        raise StateError(
            f"{path}: the tensors are not of a model of {in_features} features and {outputs} outputs, as its metadata "
            f"says: copy it again"
        ) from None
    return SavedModel(
        module.eval().requires_grad_(False),
        in_features,
        classes,
        metadata.get("encoder_sha256"),
        metadata.get(EXPERIMENT),
    )


def _classes(target: Mapping[str, Any], outputs: int) -> tuple[str, ...]:
    """Names of the classes, or nothing for survival."""
    if target["kind"] == "survival":
        return ()
    classes = tuple(map(str, target["classes"]))
    if target["kind"] != "classification" or len(classes) != outputs:
        raise ValueError
    return classes
