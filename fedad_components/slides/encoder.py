"""Encoders: patches to feature vectors, from a file of weights whose digest is known. Needs torch; no FLARE."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from fedad_components.extras import required
from fedad_components.fedsd.state import StateError, load_extractor, plain_names
from fedad_components.fedsd.views import IMAGENET_MEAN, IMAGENET_STD
from fedad_components.files import sha256_of
from fedad_components.slides.reader import SlidesError

KINDS = "resnet50, fedad, torchvision:NAME or timm:NAME"
RESNET50_FEATURES = 1024
RANDOM_SEED = 0

Unused = tuple[str, ...]
"""What the names of the weights begin with that a file may hold and the encoder has no use for."""


@dataclass(frozen=True)
class Encoder:
    """A frozen network and how patches are put into it."""

    name: str
    module: nn.Module
    """``(N, 3, H, W)`` normalised to ``(N, F)``; in evaluation mode."""
    digest: str
    """SHA-256 of the file of weights, in hex; of the tensors where they are random."""
    random: bool = False
    side: int | None = None
    """Patches are resized to this; None: they are taken as they are."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __call__(self, patches: Tensor, bf16: bool = False) -> Tensor:
        """Features of patches.

        Args:
            patches: uint8 ``(N, S, S, 3)``, RGB, on the module's device.
            bf16: under autocast to bfloat16.

        Returns:
            float32 ``(N, F)``.

        Raises:
            SlidesError: if the module gives anything but one vector a patch.
        """
        x = patches.permute(0, 3, 1, 2)
        if self.side is not None and self.side != x.shape[-1]:
            x = F.resize(x, [self.side, self.side], antialias=True)
        mean, std = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in (self.mean, self.std))
        x = ((x.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            features = self.module(x)
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise SlidesError(f"encoder {self.name!r}: expected a network that gives one vector for each image")
        return features.float()

    def to_json(self) -> dict[str, Any]:
        """All that the features depend on, as plain JSON types."""
        return {
            "name": self.name,
            "weights_sha256": self.digest,
            "random_weights": self.random,
            "side": self.side,
            "mean": list(self.mean),
            "std": list(self.std),
        }


def load_encoder(kind: str, weights: Path | None = None, sha256: str | None = None, random: bool = False) -> Encoder:
    """An encoder by name.

    Args:
        kind: ``resnet50``: ResNet-50 to its third block, 1024 features; ``fedad``: an exported extractor, 512;
            ``torchvision:NAME`` or ``timm:NAME``: that network without its classifier.
        weights: safetensors, or a PyTorch file of tensors only; ``fedad``: as the job exports it.
        sha256: digest that the file must have; needed for every file but FedAD's own.
        random: weights from a fixed seed in place of a file: for tests only.

    Raises:
        SlidesError: if the name, the file or its digest is not what was expected.
    """
    family, _, name = kind.partition(":")
    builders: dict[str, Callable[[], tuple[nn.Module, Unused]]] = {
        "resnet50": _resnet50_to_block3,
        "torchvision": lambda: _torchvision(name),
        "timm": lambda: _timm(name),
    }
    if kind == "fedad":
        if random:
            raise SlidesError("--random-weights: expected another encoder than fedad, whose file says what it is")
        return _fedad(_checked(weights, sha256, required=False))
    if family not in builders or (family != "resnet50") != bool(name):
        raise SlidesError(f"encoder {kind!r}: expected {KINDS}")
    if random and weights is not None:
        raise SlidesError("--weights and --random-weights exclude each other: expected one of them")
    checked = None if random else _checked(weights, sha256, required=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_SEED)
        module, unused = builders[family]()
    if checked is None:
        digest = _tensors_digest(module.state_dict())
    else:
        file, digest = checked
        _load(module, _read(file), unused, file)
    given = _timm_input(module) if family == "timm" else {}
    return Encoder(kind, module.eval().requires_grad_(False), digest, random, **given)


def _fedad(checked: tuple[Path, str]) -> Encoder:
    from safetensors import safe_open

    file, digest = checked
    try:
        module = load_extractor(file)
    except StateError as error:
        raise SlidesError(str(error)) from None
    with safe_open(file, framework="pt") as opened:
        side = int(opened.metadata()["image_size"])
    return Encoder("fedad", module.requires_grad_(False), digest, side=side)


def _resnet50_to_block3() -> tuple[nn.Module, Unused]:
    """``(N, 3, H, W)`` to ``(N, 1024)``: 8,543,296 parameters. The third block is torchvision's ``layer3``."""
    from torchvision.models import resnet50

    network = resnet50(weights=None)
    network.layer4, network.fc = nn.Identity(), nn.Identity()
    return network, ("layer4.", "fc.")


def _torchvision(name: str) -> tuple[nn.Module, Unused]:
    """A network of torchvision without its last linear layer."""
    from torchvision.models import get_model

    try:
        network = get_model(name, weights=None)
    except ValueError:
        raise SlidesError(
            f"encoder 'torchvision:{name}': expected a name of torchvision.models.list_models()"
        ) from None
    linear = [path for path, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise SlidesError(f"encoder 'torchvision:{name}': expected a network that ends in a linear classifier")
    network.set_submodule(linear[-1], nn.Identity())
    return network, (f"{linear[-1]}.",)


def _timm(name: str) -> tuple[nn.Module, Unused]:
    """A network of timm without its classifier."""
    timm = required("timm", f"encoder 'timm:{name}' needs timm", "backbones", SlidesError)
    try:
        network = timm.create_model(name, pretrained=False, num_classes=0)
    except Exception as error:
        raise SlidesError(
            f"encoder 'timm:{name}': {type(error).__name__}: expected a name of timm.list_models()"
        ) from None
    stated: Any = network.pretrained_cfg
    heads = stated.get("classifier") or ()
    return network, tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))


def _timm_input(module: nn.Module) -> dict[str, Any]:
    """Mean, standard deviation and, where the network has but one, the side of its input."""
    stated: Any = module.pretrained_cfg
    side = stated["input_size"][-1] if stated.get("fixed_input_size") else None
    return {"mean": tuple(stated["mean"]), "std": tuple(stated["std"]), "side": side}


def _checked(weights: Path | None, sha256: str | None, required: bool) -> tuple[Path, str]:
    """The file and its digest, if it is the expected one."""
    if weights is None:
        raise SlidesError("--weights: expected the encoder's file of weights (or --random-weights, for a test run)")
    try:
        found = sha256_of(weights)
    except OSError as error:
        raise SlidesError(f"{weights}: {error.strerror}: expected the encoder's file of weights") from None
    if sha256 is None and required:
        raise SlidesError(
            f"{weights}: its SHA-256 is {found}: compare it with its publisher's, and give that as --sha256"
        )
    if sha256 is not None and sha256.strip().lower() != found:
        raise SlidesError(
            f"{weights}: its SHA-256 is {found}, --sha256 says {sha256}: expected the same; copy it again"
        )
    return weights, found


def _read(file: Path) -> dict[str, Tensor]:
    """Tensors by name, without executing anything: safetensors, or PyTorch's format with ``weights_only``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state: Any = load_file(file)
    except (SafetensorError, OSError):
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise SlidesError(
                f"{file}: {type(error).__name__}: expected safetensors, or a PyTorch file that holds tensors only"
            ) from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise SlidesError(f"{file}: expected a state dict: tensors by name")
    return plain_names(state)


def _load(module: nn.Module, state: Mapping[str, Tensor], unused: Unused, file: Path) -> None:
    """Copy the weights: all that the module has, from all that the file has but the unused."""
    try:
        module.load_state_dict({name: value for name, value in state.items() if not name.startswith(unused)})
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise SlidesError(f"{file}: weights of another network: {' '.join(lines[1:3]).strip()[:300]}") from None


def _tensors_digest(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
