"""FedSD's loss, Eqs. 1-4, with the paper's letters. Imports torch only.

Every z has the shape ``(2, N, 128)``: first the views v in {a, b}, then the N images. The paper's sum over v is a sum
over the first dimension; its mean over images is a mean over the second. All is computed in float32 (float64 is kept),
also under autocast: half precision cannot hold a cosine near 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedad_components.config import LossConfig

EPS = 1e-8
DEAD_NORM = 1e-6
"""A z_d shorter than this has no direction: without gamma and lambda_t it gets no gradient and decays to 0."""


class Loss(NamedTuple):
    """Scalars, each with its weight: ``total`` is the sum of the others."""

    total: Tensor
    contrastive: Tensor
    alignment: Tensor
    orthogonality: Tensor


def full(z: Tensor) -> Tensor:
    """``z`` in float32, or float64 if it is."""
    return z if z.dtype == torch.float64 else z.float()


def cos(u: Tensor, v: Tensor) -> Tensor:
    """Cosine over the last dimension, ``(..., D)`` to ``(...)``; norms are at least 1e-8."""
    return (F.normalize(u, dim=-1, eps=EPS) * F.normalize(v, dim=-1, eps=EPS)).sum(dim=-1)


def alive(z_d: Tensor) -> Tensor:
    """``(..., D)`` to ``(...)``, bool: where z_d has a direction.

    A dead z_d takes part in no cosine: it gets no gradient there, instead of one of 1e8.
    """
    return z_d.detach().norm(dim=-1) >= DEAD_NORM


def mean_over_images_sum_over_views(per_view: Tensor) -> Tensor:
    """``(2, N)`` to a scalar: the paper's sum over v in {a, b} of a mean over images."""
    return per_view.mean(dim=1).sum(dim=0)


def nt_xent(z_s: Tensor, temperature: float) -> Tensor:
    """Eq. 2: L_con = -1/2N sum_i log( exp(cos(z_i, z_j(i)) / tau) / sum_{k != i} exp(cos(z_i, z_k) / tau) ).

    Each of the 2N views against the 2N - 1 others; z_j(i) is its twin. With N = 1 there are no negatives: the loss
    is 0.

    Args:
        z_s: ``(2, N, D)``.
    """
    n = z_s.shape[1]
    z = F.normalize(z_s.flatten(0, 1), dim=-1, eps=EPS)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), -torch.inf)
    twin = torch.arange(2 * n, device=z.device).roll(n)
    return F.cross_entropy(logits, twin)


def nt_xent_against(z_s: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Eq. 2 with other negatives: each view against its twin and the given ``negatives``, no other image.

    The loss is a mean over images of which none depends on another.

    Args:
        z_s: ``(2, N, D)``.
        negatives: ``(K, D)``, constants.
    """
    a, b = F.normalize(z_s, dim=-1, eps=EPS)
    twin = (a * b).sum(dim=-1).repeat(2)[:, None]
    others = torch.cat([a, b]) @ F.normalize(negatives, dim=-1, eps=EPS).T
    logits = torch.cat([twin, others], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def alignment(
    z_s: Tensor, z_d: Tensor, z_g: Tensor, lambda_t: float, config: LossConfig, style: Tensor | None = None
) -> Tensor:
    """Eq. 3: L_align = lambda_t/2 sum_v [ (1 - cos(z_s^v, z_g^v)) + (1 + cos(z_d^v, z_g^v)) ], or one of its options.

    Args:
        z_g: ``(2, N, 128)``, or ``(1, N, 128)`` if both views have one target.
        style: ``(N, 128)``, the same for both views of an image (:mod:`fedad_components.fedsd.style`); z_d's target
            under ``domain_target: style``.
    """
    z_g = z_g.expand_as(z_s)
    semantic = relation_gap(z_s, z_g) if config.semantic_alignment == "relations" else 1 - cos(z_s, z_g)
    domain = _domain_term(z_d, z_g, config, style).where(alive(z_d), 0)
    return lambda_t / 2 * mean_over_images_sum_over_views(semantic + domain)


def relation_gap(z_s: Tensor, z_g: Tensor) -> Tensor:
    """How differently z_s and z_g relate an image to the others of its view, ``(2, N, D)`` each, to ``(2, N)``.

    The mean over the others of (cos(z_s_i, z_s_j) - cos(z_g_i, z_g_j))^2, after similarity-preserving distillation
    (Tung and Mori 2019): no rotation between the two spaces matters. 0 for one image.
    """
    relations = [F.normalize(z, dim=-1, eps=EPS) @ F.normalize(z, dim=-1, eps=EPS).mT for z in (z_s, z_g)]
    return (relations[0] - relations[1]).square().sum(dim=-1) / max(1, z_s.shape[1] - 1)


def _domain_term(z_d: Tensor, z_g: Tensor, config: LossConfig, style: Tensor | None) -> Tensor:
    """``(2, N)``: what draws z_d to its target, or away from the teacher."""
    if config.domain_target == "style":
        if style is None:
            raise ValueError("domain_target is 'style': the alignment needs the images' style vectors")
        return 1 - cos(z_d, full(style))
    if config.domain_alignment == "none":
        return torch.zeros_like(z_d[..., 0])
    cos_d = cos(z_d, z_g)
    return cos_d.square() if config.domain_alignment == "orthogonal" else 1 + cos_d


def orthogonality(z_s: Tensor, z_d: Tensor, gamma: float) -> Tensor:
    """Eq. 4: L_ortho = gamma/2 sum_v cos^2(z_s^v, z_d^v)."""
    return gamma / 2 * mean_over_images_sum_over_views(cos(z_s, z_d).square().where(alive(z_d), 0))


def batch_decorrelation(z_s: Tensor, z_d: Tensor, gamma: float) -> Tensor:
    """In place of Eq. 4: gamma/2 sum_v mean_ij (C^v_ij)^2, with C^v ``(D, D)`` the correlations of z_s^v and z_d^v.

    Unlike the cosine of each image, no rotation of one half meets it. It lies in [0, gamma], as Eq. 4 does; independent
    halves leave gamma / N by chance.
    """
    c = standardised(z_s).mT @ standardised(z_d) / z_s.shape[1]
    return gamma / 2 * c.square().mean(dim=(1, 2)).sum(dim=0)


def standardised(z: Tensor) -> Tensor:
    """``(2, N, D)``: each coordinate of each view with mean 0 and variance 1 over the N images; constant ones are 0."""
    centred = z - z.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + EPS).sqrt()


def fedsd(
    z_s: Tensor,
    z_d: Tensor,
    z_g: Tensor | None,
    lambda_t: float,
    config: LossConfig,
    style: Tensor | None = None,
    negatives: Tensor | None = None,
) -> Loss:
    """Eq. 1: L = L_con + L_align + L_ortho, with the options of the configuration. Terms of weight 0 are not computed.

    Args:
        z_s: ``(2, N, 128)``, semantic half of the head's output.
        z_d: ``(2, N, 128)``, domain half.
        z_g: ``(2, N, 128)``, the projected teacher's, or ``(1, N, 128)`` of whole images; None is allowed where
            ``lambda_t`` is 0.
        lambda_t: weight of the alignment in this round.
        config: the configuration's ``loss`` section.
        style: ``(N, 128)``, needed for ``domain_target: style``.
        negatives: ``(K, 128)``, z_s of public images; None: Eq. 2's, the other images.

    Raises:
        ValueError: if a needed target is missing.
    """
    with torch.autocast(z_s.device.type, enabled=False):
        z_s, z_d = full(z_s), full(z_d)
        zero = z_s.new_zeros(())

        if negatives is None:
            contrastive = nt_xent(z_s, config.temperature)
        else:
            contrastive = nt_xent_against(z_s, full(negatives), config.temperature)

        align = zero
        if lambda_t != 0:
            if z_g is None:
                raise ValueError(f"lambda_t is {lambda_t}: the alignment needs the teacher's z_g")
            z_g = full(z_g)
            if config.teacher_centering:
                z_g = z_g - z_g.mean(dim=(0, 1))
            align = alignment(z_s, z_d, z_g, lambda_t, config, style)

        ortho = zero
        if config.gamma != 0:
            decorrelate = batch_decorrelation if config.decorrelation == "batch" else orthogonality
            ortho = decorrelate(z_s, z_d, config.gamma)

        return Loss(contrastive + align + ortho, contrastive, align, ortho)
