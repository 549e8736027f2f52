"""Adaptation to a site by its own statistics, and the features' cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedad_components.evaluation.domain import adabn, lacks_statistics, standardised
from fedad_components.evaluation.feature_cache import FeatureCache, content_key
from fedad_components.evaluation.features import extract_features, whole_view
from fedad_components.evaluation.images import LabelledFeatures

SIDE = 8


def extractor(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *pool).eval()


def pictures(n: int = 48, seed: int = 0) -> np.ndarray:
    """In the order of their classes, as on disk: the second half is darker."""
    images = np.random.default_rng(seed).integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8)
    images[n // 2 :] //= 4
    return images


def test_standardised_features_forget_scale_and_offset() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3))
    x[:, 2] = 5.0
    site = LabelledFeatures("a", x, ["x"] * 30, np.arange(30))
    moved = LabelledFeatures("b", x * [3.0, 0.1, 1.0] + [1.0, -4.0, 2.0], ["x"] * 30, np.arange(30))
    np.testing.assert_allclose(standardised(site).x, standardised(moved).x, atol=1e-9)
    np.testing.assert_allclose(standardised(site).x.std(axis=0), [1, 1, 0], atol=1e-12)


def test_adabn_takes_the_moments_of_the_sites_images_and_leaves_the_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    module, images = extractor(), pictures()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    monkeypatch.setattr("fedad_components.evaluation.domain.STATISTICS_BATCH", len(images))
    adapted = adabn(module, images, SIDE, seed=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not adapted.training
    maps = module[0](whole_view(images, SIDE, torch.device("cpu"))).detach().double()
    torch.testing.assert_close(adapted[1].running_mean.double(), maps.mean(dim=(0, 2, 3)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(adapted[1].running_var.double(), maps.var(dim=(0, 2, 3)), atol=1e-5, rtol=1e-5)


def test_adabn_does_not_batch_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one class would lose the variance between the classes, which here is most of it."""
    module, images = extractor(), pictures()
    monkeypatch.setattr("fedad_components.evaluation.domain.STATISTICS_BATCH", 24)
    maps = module[0](whole_view(images, SIDE, torch.device("cpu"))).detach()
    total = maps.var(dim=(0, 2, 3))
    by_class = (maps[:24].var(dim=(0, 2, 3)) + maps[24:].var(dim=(0, 2, 3))) / 2
    found = adabn(module, images, SIDE, seed=0)[1].running_var
    assert ((found - total).abs() < (by_class - total).abs() / 2).all()


def test_statistics_that_were_never_measured() -> None:
    assert lacks_statistics(extractor())
    assert not lacks_statistics(adabn(extractor(), pictures(), SIDE, seed=0))
    assert not lacks_statistics(nn.Conv2d(3, 4, 3))


def test_a_key_stands_for_weights_structure_pixels_and_side() -> None:
    images = pictures(4)
    keys = [content_key(extractor(), images, SIDE)]
    assert content_key(extractor(), images.copy(), SIDE) == keys[0]
    changed, moved, turned = extractor(), extractor(), images.copy()
    with torch.no_grad():
        changed[0].weight[0, 0, 0, 0] += 1e-6
        moved[1].running_mean[3] = 1e-6
    turned[3, 7, 7, 2] ^= 1
    wider = extractor()
    wider[0].stride = (2, 2)
    keys += [content_key(module, images, SIDE) for module in (changed, moved, wider)]
    keys += [content_key(extractor(), turned, SIDE), content_key(extractor(), images[::-1], SIDE)]
    keys += [content_key(extractor(), images, SIDE + 1), content_key(extractor(), images, SIDE, "AdaBN 0")]
    assert len(set(keys)) == 8


def test_features_are_computed_once_and_again_after_damage(tmp_path: Path) -> None:
    images, calls = pictures(4), []

    def compute() -> np.ndarray:
        calls.append(1)
        return extract_features(extractor(), images, SIDE)

    cache = FeatureCache(tmp_path / "cache" / "features")
    first = cache.get("key", compute)
    np.testing.assert_array_equal(cache.get("key", compute), first)
    assert len(calls) == 1
    file = cache.folder / "key.npy"
    assert (file.stat().st_mode & 0o777, cache.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    file.write_bytes(file.read_bytes()[:-5])
    np.testing.assert_array_equal(cache.get("key", compute), first)
    assert len(calls) == 2
