"""Each method's own formula against a slow loop or a hand value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage import data
from torch import nn
from torch.nn import functional as F

from fedad_components.aggregation import AlignedMean, BankMean, StreamingMean, aligned_weights, make_mean
from fedad_components.config import FedADConfig
from fedad_components.fedsd.views import denormalise, normalise
from fedad_components.methods.feddg import SPECTRA, interpolated, masked, spectrum
from fedad_components.methods.feddis import latent_orthogonality, shape_consistency, shift_intensities
from fedad_components.methods.fedema import byol
from fedad_components.methods.fedgala import FedGaLA
from fedad_components.methods.fedprox import FedProx
from fedad_components.methods.moon import model_contrastive


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    return float(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))


def test_fedprox_is_half_mu_times_the_squared_distance_and_pulls_back() -> None:
    config = FedADConfig.parse({"method": "fedprox_ssl", "baselines": {"prox_mu": 0.3}})
    extractor, head = nn.Linear(3, 2).double(), nn.Linear(2, 2).double()
    method, z_s = FedProx(config), random(2, 4, 2)
    method.begin_round(extractor, head)
    assert method.pull(z_s, z_s).item() == 0
    moves = {}
    for number, parameter in enumerate((*extractor.parameters(), *head.parameters())):
        moves[parameter] = random(*parameter.shape, seed=number)
        parameter.data += moves[parameter]
    term = method.pull(z_s, z_s)
    assert term.item() == pytest.approx(0.15 * sum(float((move**2).sum()) for move in moves.values()), rel=1e-12)
    term.backward()
    for parameter, move in moves.items():
        torch.testing.assert_close(parameter.grad, 0.3 * move)


def test_moon_equals_equation_3_written_out() -> None:
    z, towards, away = random(2, 5, 7), random(2, 5, 7, seed=1), random(2, 5, 7, seed=2)
    expected = []
    for view in range(2):
        for image in range(5):
            near = math.exp(cosine(z[view, image].numpy(), towards[view, image].numpy()) / 0.5)
            far = math.exp(cosine(z[view, image].numpy(), away[view, image].numpy()) / 0.5)
            expected.append(-math.log(near / (near + far)))
    assert model_contrastive(z, towards, away, 0.5).item() == pytest.approx(np.mean(expected), rel=1e-12)
    assert model_contrastive(z, away, away, 0.5).item() == pytest.approx(math.log(2))  # no difference, no preference


def test_byol_compares_each_prediction_with_the_other_views_target() -> None:
    q, y = random(2, 4, 6), random(2, 4, 6, seed=1)
    expected = np.mean(
        [
            sum(float(((q[v, i] / q[v, i].norm() - y[1 - v, i] / y[1 - v, i].norm()) ** 2).sum()) for v in range(2))
            for i in range(4)
        ]
    )  # Grill et al., Eq. 2: the squared distance of the normalised vectors
    assert byol(q, y).item() == pytest.approx(expected, rel=1e-12)
    assert byol(q, q.flip(0)).item() == pytest.approx(0, abs=1e-12)


def test_fedgala_drops_a_layers_gradient_that_works_against_the_last_movement() -> None:
    extractor, head = nn.Linear(2, 1, bias=False), nn.Linear(1, 1)
    method = FedGaLA(FedADConfig.parse({"method": "fedgala"}))
    method.begin_round(extractor, head)
    for parameter in (*extractor.parameters(), *head.parameters()):
        parameter.grad = torch.ones_like(parameter)
    method.before_step()
    assert extractor.weight.grad is not None  # the first round has no reference
    method.end_round(extractor, head)
    with torch.no_grad():  # the federation moved the extractor up, the head's weight down, its bias not at all
        extractor.weight += 1
        head.weight -= 1
    method.begin_round(extractor, head)
    method.before_step()
    assert extractor.weight.grad is None  # descent would go down again
    assert torch.equal(head.weight.grad, torch.ones(1, 1))  # type: ignore[arg-type]
    assert torch.equal(head.bias.grad, torch.ones(1))  # type: ignore[arg-type]


def loop_of_weights(movements: np.ndarray, iterations: int) -> np.ndarray:
    aggregate = movements.mean(axis=0)
    for _ in range(iterations):
        weights = np.array([(1 + cosine(movement, aggregate)) / 2 for movement in movements])
        weights /= weights.sum()
        aggregate = sum(weight * movement for weight, movement in zip(weights, movements, strict=True))
    return weights


def test_aligned_weights_equal_a_loop_and_favour_those_who_agree() -> None:
    movements = random(4, 9)
    movements[1:] += 2  # three agree, the first goes its own way
    weights = aligned_weights(movements, 3)
    np.testing.assert_allclose(weights, loop_of_weights(movements.numpy(), 3), rtol=1e-10)
    assert weights.sum().item() == pytest.approx(1)
    assert weights.argmin() == 0


def test_the_aligned_mean_of_sites_that_agree_is_their_plain_mean() -> None:
    theta = {"w": random(3, 2), "b": random(2, seed=1)}
    mean = AlignedMean(3, theta)
    for factor in (1.0, 3.0):
        mean.add({name: tensor + factor for name, tensor in theta.items()}, 5)
    for name, tensor in mean.result().items():
        torch.testing.assert_close(tensor, (theta[name] + 2).float())


def low_pass_of(side: int, half_width: int) -> np.ndarray:
    """M of Eq. 2 in FFT's own order: frequencies -h..h on both axes."""
    low = np.abs(np.fft.fftfreq(side, 1 / side)) <= half_width
    return low[:, None] & low[None]


@pytest.mark.parametrize("side", [32, 33])
@pytest.mark.parametrize("half_width", [1, 4])
def test_feddg_equals_equations_1_to_3_by_numpy(side: int, half_width: int) -> None:
    image, other = data.immunohistochemistry()[:side, :side], data.retina()[600 : 600 + side, 600 : 600 + side]
    mask = low_pass_of(side, half_width)
    expected = np.empty((side, side, 3))
    for channel in range(3):
        own, its = np.fft.fft2(image[..., channel] / 255.0), np.fft.fft2(other[..., channel] / 255.0)
        amplitude = (1 - 0.7) * np.abs(own) * mask + 0.7 * np.abs(its) * mask + np.abs(own) * (1 - mask)
        expected[..., channel] = np.fft.ifft2(amplitude * np.exp(1j * np.angle(own))).real
    images, others = torch.from_numpy(image)[None], torch.from_numpy(other)[None]
    amplitudes = masked(spectrum(others), half_width).abs()
    result = interpolated(images, amplitudes, torch.tensor([0.7]))[0].numpy()
    np.testing.assert_array_less(np.abs(result - np.clip(expected * 255, 0, 255)), 0.51)
    assert np.abs(result.astype(int) - image).max() > 5
    assert torch.equal(interpolated(images, amplitudes, torch.zeros(1)), images)  # lambda = 0: the image itself


def test_feddgs_bank_is_filled_in_turn_whoever_answers_first() -> None:
    banks = [random(5, 3, 2, 2, seed=seed).float() for seed in range(3)]
    results = []
    for order in ((0, 1, 2), (2, 0, 1)):
        mean = BankMean()
        for site in order:
            mean.add({"w": torch.full((2,), float(site)), SPECTRA: banks[site]}, weight=site + 1)
        results.append(mean.result())
    torch.testing.assert_close(results[0]["w"], torch.full((2,), (0 * 1 + 1 * 2 + 2 * 3) / 6))
    assert torch.equal(results[0][SPECTRA], results[1][SPECTRA])
    owners = [
        next(site for site in range(3) if torch.equal(results[0][SPECTRA][row], banks[site][row])) for row in range(5)
    ]
    assert sorted(owners[:3]) == [0, 1, 2]
    assert owners[3:] == owners[:2]


def test_feddiss_losses_are_pytorchs_cosine_embedding_losses() -> None:
    """As in the authors' code: target 1 for shape under changed intensities, -1 for appearance against shape."""
    z_s, z_d, other = random(2, 6, 7), random(2, 6, 7, seed=1), random(2, 6, 7, seed=2)
    z_s.requires_grad_()
    flat, target = z_s.flatten(0, 1), torch.ones(12, dtype=torch.float64)
    assert shape_consistency(z_s, other).item() == pytest.approx(
        F.cosine_embedding_loss(flat, other.flatten(0, 1), target).item(), rel=1e-12
    )
    z_d.requires_grad_()
    term = latent_orthogonality(z_s, z_d)
    assert term.item() == pytest.approx(F.cosine_embedding_loss(z_d.flatten(0, 1), flat, -target).item(), rel=1e-12)
    term.backward()
    assert z_s.grad is None  # appearance turns away, shape stays
    assert z_d.grad is not None


def test_feddis_changes_intensities_by_a_power() -> None:
    intensities = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    shifted = denormalise(shift_intensities(normalise(intensities), torch.tensor([0.5, 2.0])))
    torch.testing.assert_close(shifted, torch.stack([intensities[0] ** 0.5, intensities[1] ** 2]), atol=1e-3, rtol=1e-4)


def test_the_method_chooses_the_servers_mean() -> None:
    assert isinstance(make_mean(FedADConfig.parse({"method": "fedgala"})), AlignedMean)
    assert isinstance(make_mean(FedADConfig.parse({"method": "feddg"})), BankMean)
    assert type(make_mean(FedADConfig.parse({"method": "moon"}))) is StreamingMean
