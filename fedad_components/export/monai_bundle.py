"""A MONAI bundle: network, preprocessing and weights as MONAI's own programs read them.

The layout is that of MONAI's bundle specification (docs.monai.io, ``mb_specification``). A ResNet-18 of full width with
the 7x7 stem is written in torchvision's terms and needs no FedAD; other forms are built by ``fedsd/model.py``.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fedad_components import __version__
from fedad_components.export.model_card import model_card
from fedad_components.export.result import EXTRACTOR, ExportError, JobResult
from fedad_components.fedsd.model import FULL_WIDTH, feature_count, has_small_stem
from fedad_components.fedsd.state import load_extractor
from fedad_components.fedsd.views import IMAGENET_MEAN, IMAGENET_STD
from fedad_components.files import write_atomic
from fedad_components.imaging.cache import cache_side

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
BICUBIC = int(Image.Resampling.BICUBIC)
INTENDED_USE = "Features for research. Not for diagnosis or any decision about a patient."


def write_bundle(result: JobResult, folder: Path, name: str, licence: str | None = None) -> None:
    """Write the bundle into a new or empty folder.

    Args:
        result: of the job.
        folder: the bundle's root, named as MONAI should name the model.
        name: title of card and metadata.
        licence: of the weights; see :func:`~fedad_components.export.model_card.model_card`.

    Raises:
        ExportError: if the folder is in use.
        StateError: if the weights cannot be loaded.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{folder}: not an empty folder: choose a new one, or remove it")
    extractor = load_extractor(result.extractor)
    for part in ("configs", "models", "docs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    # The specification asks for model.pt. It holds tensors by name alone, and loads with weights_only. The file whose
    # SHA-256 the card states lies beside it.
    torch.save(extractor.state_dict(), folder / "models" / "model.pt")
    shutil.copyfile(result.extractor, folder / "models" / EXTRACTOR)
    write_atomic(folder / "configs" / "metadata.json", _json(metadata(result, name, licence)))
    write_atomic(folder / "configs" / "inference.json", _json(inference(result)))
    card = model_card(result, name, licence, weights=f"models/{EXTRACTOR}").encode("utf-8")
    write_atomic(folder / "docs" / "README.md", card)
    write_atomic(folder / "docs" / "license.txt", _licence(licence).encode("utf-8"))


def metadata(result: JobResult, name: str, licence: str | None = None) -> dict[str, Any]:
    """``configs/metadata.json``: the specification's mandatory keys, and what the card says in short."""
    side, features = result.config.model.image_size, feature_count(result.config.model)
    tensor = {"modality": "n/a", "dtype": "float32", "is_patch_data": False}
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported from {len(result.rounds)} rounds by FedAD {__version__}"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch"),
        "numpy_version": version("numpy"),
        "required_packages_version": {
            "torchvision": version("torchvision"),
            "pillow": version("pillow"),
            **({} if _is_torchvisions(result) else {"fedad": __version__}),
        },
        "name": name,
        "task": "Features of medical images for a classifier",
        "description": f"ResNet-18 encoder trained by {len(result.sites)} sites in {len(result.rounds)} rounds of "
        f"federated self-supervised learning ({result.config.method}), without labels. See docs/README.md.",
        "authors": "To be filled in by the consortium",
        "copyright": f"Licence of the weights: {licence}" if licence else "To be decided by the consortium",
        "data_source": f"data set {result.config.federation.data_set!r} of each site; not public",
        "data_type": "image",
        "intended_use": INTENDED_USE,
        "references": [],
        "fedad": {
            "experiment": result.config.federation.experiment,
            "config_digest": result.config.digest(),
            "extractor_sha256": result.sha256,
            "privacy_mode": result.config.privacy.mode,
        },
        "network_data_format": {
            "inputs": {
                "image": {
                    **tensor,
                    "type": "image",
                    "format": "magnitude",
                    "num_channels": 3,
                    "spatial_shape": [side, side],
                    "value_range": [],
                    "channel_def": {"0": "red", "1": "green", "2": "blue"},
                }
            },
            "outputs": {
                "pred": {
                    **tensor,
                    "type": "tuples",
                    "format": "latent",
                    "num_channels": features,
                    "spatial_shape": [],
                    "value_range": [],
                    "channel_def": {},
                }
            },
        },
    }


def inference(result: JobResult) -> dict[str, Any]:
    """``configs/inference.json``: features of every picture in ``dataset_dir``, into ``features.npz``.

    Pictures are cropped to their centred square and resized twice, as a site's ingest and the probe do it.
    """
    side = result.config.model.image_size
    stored = cache_side(side)
    return {
        "imports": [
            "$import collections",
            "$import glob",
            "$import numpy",
            "$import operator",
            "$import torch",
            "$import torchvision",
        ],
        "bundle_root": ".",
        "dataset_dir": "images",
        "output_file": "features.npz",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "checkpoint": "$@bundle_root + '/models/model.pt'",
        **_network(result),
        "network": "$@network_def.to(@device)",
        "view": {
            "_target_": "torchvision.transforms.v2.Compose",
            "transforms": [
                {"_target_": "torchvision.transforms.v2.Resize", "size": [side, side], "antialias": True},
                {"_target_": "torchvision.transforms.v2.Lambda", "lambd": "$lambda image: image.float() / 255"},
                {
                    "_target_": "torchvision.transforms.v2.Normalize",
                    "mean": list(IMAGENET_MEAN),
                    "std": list(IMAGENET_STD),
                },
            ],
        },
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {
                    "_target_": "LoadImaged",
                    "keys": "image",
                    "dtype": "$numpy.uint8",
                    "reader": {
                        "_target_": "PILReader",
                        "converter": "$lambda image: (lambda w, h, e: image.convert('RGB').crop("
                        "((w - e) // 2, (h - e) // 2, (w + e) // 2, (h + e) // 2)))(*image.size, min(image.size))"
                        f".resize(({stored}, {stored}), {BICUBIC})",
                        "reverse_indexing": False,
                    },
                },
                {"_target_": "EnsureChannelFirstd", "keys": "image", "channel_dim": -1},
                {"_target_": "EnsureTyped", "keys": "image", "dtype": "$torch.uint8", "track_meta": False},
                {"_target_": "Lambdad", "keys": "image", "func": "@view"},
            ],
        },
        "files": "$sorted(glob.glob(@dataset_dir + '/*'))",
        "dataset": {
            "_target_": "Dataset",
            "data": "$[{'image': file} for file in @files]",
            "transform": "@preprocessing",
        },
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 16, "num_workers": 0},
        "inferer": {"_target_": "SimpleInferer"},
        "batches": "$map(operator.methodcaller('to', @device, memory_format=torch.channels_last), "
        "map(operator.itemgetter('image'), @dataloader))",
        "features": "$torch.cat([*map(@network, @batches)]).cpu()",
        "initialize": [
            "$@network_def.load_state_dict(torch.load(@checkpoint, map_location='cpu', weights_only=True))",
            "$@network_def.eval().requires_grad_(False)",
        ],
        "run": ["$numpy.savez(@output_file, files=numpy.array(@files), features=@features.numpy())"],
    }


def _is_torchvisions(result: JobResult) -> bool:
    model = result.config.model
    return model.base_channels == FULL_WIDTH and not has_small_stem(model) and model.norm != "folded"


def _network(result: JobResult) -> dict[str, Any]:
    """Entries up to ``network_def``, whose state dict has the names of ``models/model.pt``."""
    model = result.config.model
    if not _is_torchvisions(result):
        return {
            "network_def": {
                "_target_": "fedad_components.fedsd.model.build_extractor",
                "config": {
                    "_target_": "types.SimpleNamespace",
                    "norm": model.norm,
                    "stem": "small" if has_small_stem(model) else "imagenet",
                    "base_channels": model.base_channels,
                    "image_size": model.image_size,
                },
            }
        }
    norm = "$lambda channels: torch.nn.GroupNorm(32, channels)" if model.norm == "group" else "$torch.nn.BatchNorm2d"
    return {
        "resnet": {"_target_": "torchvision.models.resnet18", "norm_layer": norm},
        # All of it but the last layer, in the order of its forward pass and under the same names.
        "network_def": "$torch.nn.Sequential(collections.OrderedDict([*list(@resnet.named_children())[:-1], "
        "('features', torch.nn.Flatten(1))]))",
    }


def _licence(licence: str | None) -> str:
    decided = (
        f"Licence of the weights: {licence}\n"
        if licence
        else "The consortium has not named a licence of these weights.\n"
    )
    return f"{decided}\nThe software that made them, FedAD {__version__}, is under the Apache License 2.0.\n"


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=4) + "\n").encode("utf-8")
