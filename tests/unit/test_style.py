from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import skew

from fedad_components.fedsd import style


def coloured(count: int = 5, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=generator)


def test_moments_equal_numpy_and_scipy() -> None:
    x = coloured().permute(0, 3, 1, 2).float() / 255
    pixels = x.flatten(2).double().numpy()
    expected = np.concatenate([pixels.mean(2), pixels.std(2), skew(pixels, axis=2)], axis=1)
    np.testing.assert_allclose(style.channel_moments(x), expected, atol=1e-3)


def test_stain_vector_of_one_stain_is_that_stain() -> None:
    """An image of one dye at varying concentration has optical densities along one line."""
    stain = torch.tensor([0.65, 0.70, 0.29])  # haematoxylin
    concentration = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    x = torch.exp(-stain.view(1, 3, 1, 1) * concentration)
    torch.testing.assert_close(style.stain_vector(x)[0], stain / stain.norm(), atol=1e-4, rtol=0)


def test_stain_vector_does_not_depend_on_an_eigenvectors_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    x = coloured().permute(0, 3, 1, 2).float() / 255
    expected, eigh = style.stain_vector(x), torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: (eigh(matrix)[0], -eigh(matrix)[1]))
    assert torch.equal(style.stain_vector(x), expected)
    assert (expected > 0).all()


def test_spectrum_peaks_in_the_ring_of_a_grating() -> None:
    side = 32
    for ring, cycles in ((1, 3), (3, 7), (6, 13)):
        wave = 0.5 + 0.4 * torch.sin(2 * torch.pi * cycles * torch.arange(side) / side)
        spectrum = style.radial_spectrum(wave.expand(1, 3, side, side))
        assert spectrum.argmax().item() == ring


def test_targets_are_standardised_and_keep_angles() -> None:
    statistics = style.style_statistics(coloured())
    targets = style.style_targets(statistics, seed=0)
    assert statistics.shape == (5, style.STATISTICS)
    assert targets.shape == (5, 128)
    z = (statistics - statistics.mean(0)) / statistics.std(0, correction=0)
    torch.testing.assert_close(targets @ targets.T, z @ z.T, atol=0.05, rtol=0.02)
    torch.testing.assert_close(targets.mean(0), torch.zeros(128), atol=1e-4, rtol=0)


def test_blank_images_are_finite() -> None:
    blank = torch.zeros(3, 32, 32, 3, dtype=torch.uint8)
    assert torch.isfinite(style.style_targets(style.style_statistics(blank), 0)).all()
