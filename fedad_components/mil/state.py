"""A trained model's file: the weights of the gated attention, and what its outputs mean. Needs torch; no FLARE."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from fedad_components.fedsd.state import StateError, read_tensors, require_names
from fedad_components.mil.config import BagModelConfig, TargetConfig
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
        target = TargetConfig.model_validate(json.loads(metadata["target"]))
        in_features = BagModelConfig.model_validate({"in_features": int(metadata["in_features"])}).in_features
        outputs = int(metadata["outputs"])
        if outputs != target.outputs or "kind" not in target.model_fields_set:
            raise ValueError
    except (KeyError, ValueError, RecursionError):
        raise StateError(
            f"{path}: the metadata has no usable in_features, outputs or target: expected the model.safetensors of a "
            f"job of HistoFL"
        ) from None
    with torch.device("meta"):
        module = GatedAttentionMIL(in_features, outputs)
    require_names(tensors, module.state_dict(), f"{path}")
    if not all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in tensors.values()):
        raise StateError(f"{path}: expected finite tensors of float32, as a job of HistoFL exports them: copy it again")
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
        target.classes if target.kind == "classification" else (),
        metadata.get("encoder_sha256"),
        metadata.get(EXPERIMENT),
    )
