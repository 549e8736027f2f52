from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedad_components.config import LossConfig
from fedad_components.fedsd import losses

DIMENSION = 128


def random_z(n: int, seed: int = 0, dimension: int = DIMENSION) -> Tensor:
    return torch.randn(2, n, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nt_xent_by_loops(z_s: Tensor, temperature: float) -> float:
    """Eq. 2 as the paper writes it: a sum over pairs, with no matrix and no library."""
    z = [row.tolist() for view in z_s for row in view]
    n = len(z) // 2
    norms = [math.sqrt(math.fsum(value * value for value in row)) for row in z]

    def similarity(i: int, j: int) -> float:
        return math.fsum(a * b for a, b in zip(z[i], z[j], strict=True)) / (norms[i] * norms[j])

    terms = []
    for i in range(2 * n):
        twin = (i + n) % (2 * n)
        denominator = math.fsum(math.exp(similarity(i, k) / temperature) for k in range(2 * n) if k != i)
        terms.append(-math.log(math.exp(similarity(i, twin) / temperature) / denominator))
    return math.fsum(terms) / (2 * n)


@pytest.mark.parametrize("temperature", [0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_nt_xent_equals_a_double_loop(n: int, temperature: float) -> None:
    z_s = random_z(n, dimension=16)
    expected = nt_xent_by_loops(z_s, temperature)
    assert losses.nt_xent(z_s, temperature).item() == pytest.approx(expected, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize("n", [1, 5])
def test_nt_xent_against_given_negatives_equals_a_loop_over_images(n: int) -> None:
    """Each view's softmax has its twin and the negatives, no other image: the mean of each image's own loss."""
    z_s, negatives, temperature = random_z(n, 0, 16), random_z(4, 1, 16).flatten(0, 1), 0.3
    terms = []
    for i in range(n):
        for own, twin in ((z_s[0, i], z_s[1, i]), (z_s[1, i], z_s[0, i])):
            positive = torch.cosine_similarity(own, twin, dim=0) / temperature
            others = torch.cosine_similarity(own[None], negatives) / temperature
            terms.append(torch.log(positive.exp() + others.exp().sum()) - positive)
    found = losses.nt_xent_against(z_s, negatives, temperature)
    assert found.item() == pytest.approx(float(torch.stack(terms).mean()), rel=1e-12)
    alone = [losses.nt_xent_against(z_s[:, [i]], negatives, temperature) for i in range(n)]
    assert found.item() == pytest.approx(float(torch.stack(alone).mean()), rel=1e-12)
    whole = losses.fedsd(z_s, z_s, None, 0.0, LossConfig(gamma=0.0, temperature=temperature), negatives=negatives)
    assert whole.total == found


def test_nt_xent_of_one_image_has_no_gradient() -> None:
    z_s = random_z(1).requires_grad_()
    (gradient,) = torch.autograd.grad(losses.nt_xent(z_s, 0.1), z_s)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_nt_xent_of_equal_vectors_is_chance() -> None:
    n = 9
    assert losses.nt_xent(torch.ones(2, n, 4, dtype=torch.float64), 0.1).item() == pytest.approx(math.log(2 * n - 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"domain_alignment": "orthogonal", "teacher_centering": True},
        {"decorrelation": "batch"},
        {"domain_target": "style"},
        {"domain_alignment": "none", "semantic_alignment": "relations"},
        {"gamma": 0.0},
    ],
)
def test_gradients_equal_finite_differences(options: dict) -> None:
    config, n = LossConfig(temperature=0.5, **options), 3
    z_g, style = random_z(n, 2, 5), random_z(n, 3, 5)[0]

    def total(z_s: Tensor, z_d: Tensor) -> Tensor:
        return losses.fedsd(z_s, z_d, z_g, 0.7, config, style).total

    z_s, z_d = random_z(n, 0, 5).requires_grad_(), random_z(n, 1, 5).requires_grad_()
    assert torch.autograd.gradcheck(total, (z_s, z_d))


@pytest.mark.parametrize(
    "options", [{}, {"decorrelation": "batch"}, {"domain_target": "style"}, {"semantic_alignment": "relations"}]
)
def test_loss_ignores_the_order_of_views_and_of_images(options: dict) -> None:
    config, n = LossConfig(**options), 6
    z = [random_z(n, seed) for seed in range(3)]
    style = random_z(n, 4)[0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    loss = losses.fedsd(*z, 0.5, config, style)
    swapped = losses.fedsd(*(item.flip(0) for item in z), 0.5, config, style)
    permuted = losses.fedsd(*(item[:, order] for item in z), 0.5, config, style[order])
    torch.testing.assert_close(torch.stack(swapped), torch.stack(loss), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack(permuted), torch.stack(loss), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"domain_alignment": "orthogonal"},
        {"domain_target": "style"},
        {"teacher_centering": True},
        {"decorrelation": "batch"},
        {"domain_alignment": "none"},
        {"semantic_alignment": "relations", "domain_alignment": "orthogonal"},
    ],
)
def test_terms_equal_the_papers_sums(options: dict) -> None:
    """Eqs. 1, 3 and 4 and their options with torch's own cosine, one image and one view at a time."""
    n, lambda_t, gamma = 4, 0.3, 2.0
    z_s, z_d, z_g = (random_z(n, seed) for seed in range(3))
    style = random_z(n, 3)[0]
    config = LossConfig(gamma=gamma, **options)
    loss = losses.fedsd(z_s, z_d, z_g, lambda_t, config, style)
    if config.teacher_centering:
        z_g = z_g - sum(z_g[v, i] for v in range(2) for i in range(n)) / (2 * n)
    align = ortho = 0.0
    for v in range(2):
        for i in range(n):
            s_g, d_g, s_d, d_style = (
                torch.cosine_similarity(a, b, dim=0).item()
                for a, b in (
                    (z_s[v, i], z_g[v, i]),
                    (z_d[v, i], z_g[v, i]),
                    (z_s[v, i], z_d[v, i]),
                    (z_d[v, i], style[i]),
                )
            )
            domain = {"opposite": 1 + d_g, "orthogonal": d_g**2, "none": 0.0}[config.domain_alignment]
            if config.domain_target == "style":
                domain = 1 - d_style
            semantic = 1 - s_g
            if config.semantic_alignment == "relations":
                semantic = 0.0
                for j in set(range(n)) - {i}:
                    s_s, g_g = (torch.cosine_similarity(z[v, i], z[v, j], dim=0).item() for z in (z_s, z_g))
                    semantic += (s_s - g_g) ** 2 / (n - 1)
            align += lambda_t / 2 * (semantic + domain) / n
            ortho += gamma / 2 * s_d**2 / n
    if config.decorrelation == "batch":
        ortho = 0.0
        for s, d in zip(z_s.numpy(), z_d.numpy(), strict=True):
            ortho += gamma / 2 * np.mean(np.corrcoef(s.T, d.T)[:DIMENSION, DIMENSION:] ** 2)
    assert loss.alignment.item() == pytest.approx(align, rel=1e-12)
    # Only the correlations' variances have an epsilon that shows here.
    tolerance = 1e-7 if config.decorrelation == "batch" else 1e-12
    assert loss.orthogonality.item() == pytest.approx(ortho, rel=tolerance)
    assert loss.total.item() == pytest.approx(loss.contrastive.item() + align + ortho, rel=tolerance)


def test_cosine_has_the_specs_epsilon() -> None:
    """Norms are at least 1e-8: u . v / (max(|u|, 1e-8) max(|v|, 1e-8))."""
    short = torch.tensor([1e-9, 0.0], dtype=torch.float64)
    assert losses.cos(short, torch.tensor([3.0, 4.0], dtype=torch.float64)).item() == pytest.approx(0.06, rel=1e-12)
    assert losses.cos(short, short).item() == pytest.approx(0.01, rel=1e-12)
    assert losses.nt_xent(torch.zeros(2, 5, 3), 0.1).item() == pytest.approx(math.log(9))


@pytest.mark.parametrize(("lambda_t", "gamma"), [(1.0, 2.0), (0.4, 2.0), (0.5, 0.5)])
def test_equilibrium_of_alignment_and_orthogonality(lambda_t: float, gamma: float) -> None:
    """With z_s = z_g, the paper's form settles at cos(z_s, z_d) = -lambda / (2 gamma), not at 0."""
    z_s = random_z(3, 0, 8)
    z_d = random_z(3, 1, 8).requires_grad_()
    optimizer = torch.optim.LBFGS([z_d], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = losses.alignment(z_s, z_d, z_s, lambda_t, LossConfig()) + losses.orthogonality(z_s, z_d, gamma)
        loss.backward()
        return loss

    optimizer.step(closure)
    expected = torch.full((2, 3), -lambda_t / (2 * gamma), dtype=torch.float64)
    torch.testing.assert_close(losses.cos(z_s, z_d).detach(), expected, atol=1e-5, rtol=0)


def test_one_target_for_both_views_is_that_target_twice() -> None:
    z_s, z_d, z_g = (random_z(5, seed) for seed in range(3))
    twice = losses.fedsd(z_s, z_d, z_g[:1].expand(2, -1, -1), 0.5, LossConfig(teacher_centering=True))
    assert losses.fedsd(z_s, z_d, z_g[:1], 0.5, LossConfig(teacher_centering=True)) == twice


def test_relations_are_the_same_under_any_rotation_of_either_space() -> None:
    z_s = random_z(6, 0)
    rotation = torch.linalg.qr(random_z(DIMENSION, 1, DIMENSION)[0]).Q
    assert losses.relation_gap(z_s, 3 * z_s @ rotation).abs().max() < 1e-25
    assert losses.relation_gap(z_s, random_z(6, 2)).min() > 1e-3
    assert losses.relation_gap(z_s[:, :1], z_s[:, 1:2]).max() < 1e-25  # one image relates to itself alone


def test_orthogonal_alignment_has_no_conflict() -> None:
    z_s = torch.eye(4, dtype=torch.float64)[0].expand(2, 3, 4)
    z_d = torch.eye(4, dtype=torch.float64)[1].expand(2, 3, 4)
    assert losses.alignment(z_s, z_d, z_s, 1.0, LossConfig(domain_alignment="orthogonal")).item() == pytest.approx(
        0, abs=1e-12
    )
    assert losses.orthogonality(z_s, z_d, 2.0).item() == pytest.approx(0, abs=1e-12)


def test_teacher_centering_removes_what_all_images_share() -> None:
    z_s, z_d, z_g = (random_z(5, seed) for seed in range(3))
    config = LossConfig(teacher_centering=True)
    shifted = losses.fedsd(z_s, z_d, z_g + 100 * torch.ones(DIMENSION), 0.5, config)
    torch.testing.assert_close(shifted.alignment, losses.fedsd(z_s, z_d, z_g, 0.5, config).alignment)


def test_batch_decorrelation_is_gamma_for_one_shared_factor_and_chance_for_independent_halves() -> None:
    n, gamma = 4000, 2.0
    factor = random_z(n, 0, 1).expand(2, n, 4)
    assert losses.batch_decorrelation(factor, factor, gamma).item() == pytest.approx(gamma, rel=1e-6)
    assert losses.batch_decorrelation(random_z(n, 1, 4), random_z(n, 2, 4), gamma).item() < 5 * gamma / n


@pytest.mark.parametrize("options", [{}, {"domain_alignment": "orthogonal"}, {"domain_target": "style"}])
@pytest.mark.parametrize("norm", [0.0, 1e-9])
def test_dead_z_d_gives_finite_loss_and_no_gradient(norm: float, options: dict) -> None:
    """A cosine's gradient is the inverse of the norm: 1e9 here, if z_d took part."""
    z_s, z_g, style = random_z(3, 0), random_z(3, 2), random_z(3, 3)[0]
    z_d = (norm * torch.nn.functional.normalize(random_z(3, 1), dim=-1)).requires_grad_()
    loss = losses.fedsd(z_s, z_d, z_g, 0.5, LossConfig(**options), style)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert not losses.alive(z_d).any()
    assert z_d.grad is not None
    assert torch.equal(z_d.grad, torch.zeros_like(z_d))


def test_terms_without_weight_need_no_teacher() -> None:
    loss = losses.fedsd(random_z(3), random_z(3, 1), None, 0.0, LossConfig(gamma=0.0))
    assert loss.alignment == 0
    assert loss.orthogonality == 0
    assert torch.equal(loss.total, loss.contrastive)


def test_missing_targets_are_errors() -> None:
    z = random_z(2)
    with pytest.raises(ValueError, match="teacher's z_g"):
        losses.fedsd(z, z, None, 0.5, LossConfig())
    with pytest.raises(ValueError, match="style vectors"):
        losses.fedsd(z, z, z, 0.5, LossConfig(domain_target="style"))


def test_float32_inside_autocast() -> None:
    z_s, z_d, z_g = (random_z(8, seed).bfloat16() for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        loss = losses.fedsd(z_s, z_d, z_g, 0.5, LossConfig())
    expected = losses.fedsd(z_s.float(), z_d.float(), z_g.float(), 0.5, LossConfig())
    assert loss.total.dtype == torch.float32
    assert torch.equal(torch.stack(loss), torch.stack(expected))


def test_a_plain_attribute_object_is_a_configuration() -> None:
    z = [random_z(2, seed) for seed in range(3)]
    plain = SimpleNamespace(**LossConfig().model_dump())
    assert torch.equal(losses.fedsd(*z, 0.5, plain).total, losses.fedsd(*z, 0.5, LossConfig()).total)  # type: ignore[arg-type]
