"""State dicts: what is on the wire, what is exported, and the only place where keys are renamed.

On the wire, names are torchvision ResNet-18's without ``fc.``, floating tensors only. Imports torch, torchvision, and
safetensors where a file is read or written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedad_components.fedsd.model import (
    FULL_WIDTH,
    LOCAL_PART,
    SMALL_STEM_BELOW,
    build_extractor,
    has_small_stem,
    head_of,
)
from fedad_components.fedsd.seeds import PUBLIC
from fedad_components.methods.local import SHARED_PREFIX, shared_spec

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig, InitialWeights, ModelConfig

METADATA: Mapping[str, Collection[str]] = {
    "norm": ("batch", "local", "group", "folded"),
    "image_size": {str(side) for side in range(1, 4097)},
    "stem": ("auto", "imagenet", "small"),
    "base_channels": {str(channels) for channels in range(1, FULL_WIDTH + 1)},
}
"""What the file of an exported extractor says of it, and which values make sense."""
HEAD_PREFIX = "head."
STEM_KERNEL = 7
WRAPPERS = ("_module.", "module.", "_orig_mod.")
"""Prefixes that Opacus, DataParallel and torch.compile put before a wrapped module's names."""
RUNNING_STATISTICS = ("running_mean", "running_var")
COUNTER = "num_batches_tracked"
BATCH_NORM_EPS = 1e-5
"""torchvision's, which is PyTorch's."""


class StateError(ValueError):
    """A state dict that does not fit; the message names the keys."""


def plain_name(name: str) -> str:
    """``name`` without any wrapper's prefix."""
    while name.startswith(WRAPPERS):
        name = name[name.index(".") + 1 :]
    return name


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under plain names.

    Raises:
        StateError: if two names become one.
    """
    renamed = {plain_name(name): tensor for name, tensor in state.items()}
    if len(renamed) != len(state):
        raise StateError(
            f"{len(state)} names became {len(renamed)} without their wrapper prefixes: the state mixes a "
            f"wrapped and an unwrapped model"
        )
    return renamed


def is_statistic(name: str) -> bool:
    """Whether ``name`` is BatchNorm's running mean or variance."""
    return name.rpartition(".")[2] in RUNNING_STATISTICS


def _on_wire(name: str, norm: str) -> bool:
    return name.rpartition(".")[2] != COUNTER and not (norm != "batch" and is_statistic(name))


def _wire_view(extractor: nn.Module, head: nn.Module | None, norm: str) -> dict[str, Tensor]:
    """The modules' own tensors, by their names on the wire."""
    view = {name: tensor for name, tensor in plain_names(extractor.state_dict()).items() if _on_wire(name, norm)}
    if head is not None:
        view |= {
            HEAD_PREFIX + name: tensor
            for name, tensor in plain_names(head.state_dict()).items()
            if not name.startswith(LOCAL_PART)
        }
    return view


def wire_state(extractor: nn.Module, head: nn.Module | None = None, norm: str = "batch") -> dict[str, Tensor]:
    """theta for the wire: detached, contiguous copies on the CPU. Give ``head`` only where it is aggregated."""
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in _wire_view(extractor, head, norm).items()
    }


def require_names(found: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Raise StateError, with the first few names, unless both hold the same names."""
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unknown:
        listed = [
            f"{len(names)} {kind} ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
            for kind, names in (("missing", missing), ("unknown", unknown))
            if names
        ]
        raise StateError(f"{what}: {'; '.join(listed)} names; expected exactly those of the configuration")


def extractor_part(theta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """theta without an aggregated head, and without what a method has travel beside the weights."""
    return {name: tensor for name, tensor in theta.items() if not name.startswith((HEAD_PREFIX, SHARED_PREFIX))}


@torch.no_grad()
def load_wire_state(
    state: Mapping[str, Tensor], extractor: nn.Module, head: nn.Module | None = None, norm: str = "batch"
) -> None:
    """Copy theta into the modules, in place. Local statistics and counters stay as they are.

    Raises:
        StateError: naming missing, unknown or mis-shaped keys; nothing is copied then.
    """
    state = plain_names(state)
    view = _wire_view(extractor, head, norm)
    require_names(state, view, "state")
    for name, tensor in view.items():
        if state[name].shape != tensor.shape:
            raise StateError(f"{name}: expected shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}")
    for name, tensor in view.items():
        tensor.copy_(state[name])


def _meta_modules(config: FedADConfig) -> tuple[nn.Module, nn.Module | None]:
    with torch.device("meta"):
        return build_extractor(config.model), _shared_head(config)


def _shared_head(config: FedADConfig) -> nn.Module | None:
    if config.loss.head == "private":
        return None
    return head_of(config, PUBLIC)


def wire_spec(config: FedADConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor on the wire under a configuration; costs no memory."""
    weights = _wire_view(*_meta_modules(config), config.model.norm)
    return {name: tuple(tensor.shape) for name, tensor in weights.items()} | shared_spec(config)


def trainable_names(config: FedADConfig) -> frozenset[str]:
    """Names of theta's trainable parameters, over which Delta is taken: no statistics, no counters, no head."""
    return frozenset(name for name, _ in _meta_modules(config)[0].named_parameters())


def initial_state(config: FedADConfig, weights_dir: str | Path = ".") -> dict[str, Tensor]:
    """theta of round 0: from the consortium's file, else random from the seed. An aggregated head is always random.

    What a method has travel beside the weights is 0.

    Raises:
        StateError: if the file is missing, is another file than the configuration says, or does not fit.
    """
    extractor = build_extractor(config.model, config.seed)
    weights = config.model.initial_weights
    if weights is not None:
        exported = read_checked(weights, weights_dir)
        load_wire_state(from_torchvision(exported, config.model), extractor, norm=config.model.norm)
    shared = {name: torch.zeros(shape) for name, shape in shared_spec(config).items()}
    return wire_state(extractor, _shared_head(config), config.model.norm) | shared


def read_checked(weights: InitialWeights, weights_dir: str | Path = ".") -> dict[str, Tensor]:
    """Tensors of the initial weights' safetensors file, if its SHA-256 is the configured one; else StateError."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(weights_dir) / weights.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StateError(f"initial weights {path}: cannot be read: {error.strerror}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != weights.sha256:
        raise StateError(
            f"initial weights {path}: SHA-256 is {found}, the configuration expects {weights.sha256}: supply "
            f"the agreed file, or agree on this one"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise StateError(
            f"initial weights {path}: not a safetensors file ({error}); convert it with safetensors.torch.save_file"
        ) from error


def to_torchvision(state: Mapping[str, Tensor], norm: str = "batch") -> dict[str, Tensor]:
    """theta as a state dict that loads strictly into ``torchvision.models.resnet18()`` with ``fc = Identity()``.

    The small stem's 3x3 kernel is zero-padded to 7x7, which is the same convolution with stride 1, padding 3 and no
    max-pool. BatchNorm counters are written as zero, and statistics that stayed at the sites as mean 0, variance 1: to
    be estimated by :func:`~fedad_components.fedsd.model.estimate_statistics`. Folded statistics are written as mean 0
    and variance 1 - eps: BatchNorm adds eps, and is the identity. An extractor with GroupNorm has neither counters nor
    statistics, and loads into ``resnet18(norm_layer=lambda channels: GroupNorm(32, channels))``. An aggregated head is
    left out, as is what a method has travel beside the weights.
    """
    exported = extractor_part(plain_names(state))
    margin = (STEM_KERNEL - exported["conv1.weight"].shape[-1]) // 2
    exported["conv1.weight"] = F.pad(exported["conv1.weight"], (margin,) * 4).contiguous()
    if norm != "group":
        norm_layers = [name for name, tensor in exported.items() if name.endswith(".weight") and tensor.dim() == 1]
        variance = 1 - BATCH_NORM_EPS if norm == "folded" else 1.0
        for name in norm_layers:
            layer, weight = name.removesuffix("weight"), exported[name]
            exported.setdefault(layer + "running_mean", torch.zeros_like(weight))
            exported.setdefault(layer + "running_var", torch.full_like(weight, variance))
            exported[layer + COUNTER] = torch.zeros((), dtype=torch.int64)
    return exported


def from_torchvision(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """theta for the wire from torchvision's names: the last layer, counters and unused statistics are dropped.

    Raises:
        StateError: if views are below 96 px and the 7x7 stem is not a padded 3x3 one, or there are no statistics to
            fold.
    """
    given = plain_names(state)
    if config.norm == "folded":
        given = fold_statistics(given)
    theta = {
        name: tensor for name, tensor in given.items() if not name.startswith("fc.") and _on_wire(name, config.norm)
    }
    stem = theta.get("conv1.weight")
    if stem is not None and has_small_stem(config) and stem.shape[-1] == STEM_KERNEL:
        centre = stem[..., 2:5, 2:5].contiguous()
        if not torch.equal(F.pad(centre, (2,) * 4), stem):
            raise StateError(
                f"conv1.weight: views of {config.image_size} px use a 3x3 stem, and this 7x7 stem has values outside "
                f"its 3x3 centre: use weights of a small stem, stem 'imagenet', or image_size >= {SMALL_STEM_BELOW}"
            )
        theta["conv1.weight"] = centre
    return theta


def fold_statistics(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """BatchNorm's running statistics as part of its scale and shift: the same network in evaluation mode, without them.

    gamma / sqrt(variance + eps), and beta - mean gamma / sqrt(variance + eps), in float64 and rounded once.

    Raises:
        StateError: if a normalisation layer has no statistics.
    """
    folded = {name: tensor for name, tensor in state.items() if not is_statistic(name)}
    for name in [name for name, tensor in folded.items() if name.endswith(".weight") and tensor.dim() == 1]:
        layer = name.removesuffix("weight")
        try:
            mean, variance = (state[layer + statistic].double() for statistic in RUNNING_STATISTICS)
            beta = state[layer + "bias"]
        except KeyError as missing:
            raise StateError(
                f"{missing.args[0]}: missing: norm 'folded' starts from weights of a network with BatchNorm; use norm "
                f"'group' for one with GroupNorm"
            ) from None
        scale = folded[name].double() / (variance + BATCH_NORM_EPS).sqrt()
        folded[name] = scale.to(folded[name].dtype)
        folded[layer + "bias"] = (beta.double() - mean * scale).to(beta.dtype)
    return folded


def save_extractor(
    path: str | Path, state: Mapping[str, Tensor], config: FedADConfig, metadata: Mapping[str, str] | None = None
) -> None:
    """Write theta as safetensors, in the form of :func:`to_torchvision`; an existing file is replaced atomically.

    The file's metadata says what the names cannot (``norm``, ``stem``, ``image_size``), beside ``metadata``.

    Raises:
        StateError: if the state does not fit the configuration.
    """
    from safetensors.torch import save_file

    require_names(plain_names(state), wire_spec(config), "state to export")
    described = {
        "format": "pt",
        "architecture": "torchvision resnet18, fc = Identity",
        "norm": config.model.norm,
        "stem": "small" if has_small_stem(config.model) else "imagenet",
        "base_channels": str(config.model.base_channels),
        "image_size": str(config.model.image_size),
    }
    partial = Path(path).with_name(Path(path).name + ".partial")
    save_file(to_torchvision(state, config.model.norm), partial, metadata={**(metadata or {}), **described})
    os.replace(partial, path)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    Raises:
        StateError: if it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path}: cannot be read as safetensors: {error}") from error


def load_extractor(path: str | Path) -> nn.Module:
    """The extractor of a file that :func:`save_extractor` wrote, in evaluation mode: ``(N, 3, H, W)`` to ``(N, 512)``.

    Raises:
        StateError: if the file cannot be read, or was not written by ``save_extractor``.
    """
    exported, metadata = read_tensors(path)
    if not {"norm", "image_size"} <= metadata.keys():
        raise StateError(f"{path}: the metadata lacks norm and image_size; expected a file written by save_extractor")
    told = {"stem": "auto", "base_channels": str(FULL_WIDTH), **metadata}
    for key, possible in METADATA.items():
        if told[key] not in possible:
            raise StateError(f"{path}: metadata {key} is {told[key]!r}: no extractor of save_extractor has that")
    config: Any = SimpleNamespace(
        norm=told["norm"],
        image_size=int(told["image_size"]),
        stem=told["stem"],
        base_channels=int(told["base_channels"]),
    )
    extractor = build_extractor(config)
    load_wire_state(from_torchvision(exported, config), extractor, norm=config.norm)
    return extractor.eval()
