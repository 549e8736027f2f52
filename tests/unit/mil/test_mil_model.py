"""Attention over padded bags: sizes, padding, per-sample gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedad_components.mil.bags import Bag, collate
from fedad_components.mil.losses import hazard_nll
from fedad_components.mil.model import GatedAttentionMIL

D = 6


def small(outputs: int = 4, dropout: float = 0.0, seed: int = 0) -> GatedAttentionMIL:
    torch.manual_seed(seed)
    return GatedAttentionMIL(D, outputs, hidden=8, attention=5, dropout=dropout)


def ragged(lengths: list[int], seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, D, generator=generator, dtype=dtype) for length in lengths]


def padded(features: list[Tensor], extra: int = 0, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    longest = max(map(len, features)) + extra
    batch = torch.full((len(features), longest, D), fill, dtype=features[0].dtype)
    mask = torch.zeros(len(features), longest, dtype=torch.bool)
    for row, patches in enumerate(features):
        batch[row, : len(patches)] = patches
        mask[row, : len(patches)] = True
    return batch, mask


def loss_of(logits: Tensor, row: int) -> Tensor:
    return hazard_nll(logits, torch.tensor([row % 4]), torch.tensor([row % 2 == 1]))


@pytest.mark.parametrize(("outputs", "parameters"), [(2, 788_739), (3, 789_252), (4, 789_765), (8, 791_817)])
def test_the_published_sizes(outputs: int, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in GatedAttentionMIL(1024, outputs).parameters()) == parameters


def test_initial_weights_are_xavier_normal_and_biases_zero() -> None:
    torch.manual_seed(0)
    for name, parameter in GatedAttentionMIL(1024, 2).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.numel() > 10_000:
            expected = (2 / sum(parameter.shape)) ** 0.5
            assert parameter.std().item() == pytest.approx(expected, rel=0.02), name
            assert abs(parameter.mean().item()) < 4 * expected / parameter.numel() ** 0.5, name
            assert parameter.abs().max() > 3.5 * expected, name  # a uniform one ends at 1.73 deviations


def test_the_formula_of_ilse_et_al() -> None:
    model, x = small().eval(), ragged([7])[0]
    h = [torch.relu(model.embed[0](patch)) for patch in x]
    w = [model.score(torch.tanh(model.content[0](each)) * torch.sigmoid(model.gate[0](each))) for each in h]
    weights = [each.exp() / sum(other.exp() for other in w) for each in w]
    bag = sum(a * each for a, each in zip(weights, h, strict=True))
    output = model(x)
    torch.testing.assert_close(output.attention, torch.cat(weights))
    torch.testing.assert_close(output.logits, model.classifier(bag))


def test_dropout_is_where_the_paper_has_it() -> None:
    layers = [name for name, layer in small(dropout=0.25).named_modules() if isinstance(layer, torch.nn.Dropout)]
    assert layers == ["embed.2", "content.2", "gate.2"]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    extra=st.integers(0, 30),
    fill=st.sampled_from([0.0, 1e6, -1e6, float("inf"), float("nan")]),
)
@settings(max_examples=25, deadline=None)
def test_padding_changes_no_output(lengths: list[int], extra: int, fill: float) -> None:
    model, features = small().eval(), ragged(lengths)
    batch, mask = padded(features, extra, fill)
    with torch.no_grad():
        logits, attention = model(batch, mask)
        for row, patches in enumerate(features):
            alone = model(patches)
            torch.testing.assert_close(logits[row], alone.logits, rtol=0, atol=1e-6)
            torch.testing.assert_close(attention[row, : len(patches)], alone.attention, rtol=0, atol=1e-6)
            assert not attention[row, len(patches) :].any()


def test_the_order_of_patches_does_not_matter() -> None:
    model, x = small().eval(), ragged([30])[0]
    torch.testing.assert_close(model(x).logits, model(x.flip(0)).logits, rtol=0, atol=1e-6)


def single_bag_gradients(model: GatedAttentionMIL, features: list[Tensor]) -> list[dict[str, Tensor]]:
    gradients = []
    for row, patches in enumerate(features):
        model.zero_grad()
        loss_of(model(patches.unsqueeze(0)).logits, row).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    return gradients


@pytest.mark.parametrize("fill", [0.0, float("nan")])
def test_opacus_gives_each_padded_bag_its_own_gradient(fill: float) -> None:
    model = small().double()
    features = ragged([3, 11, 1, 6], dtype=torch.float64)
    expected = single_bag_gradients(copy.deepcopy(model), features)
    batch, mask = padded(features, extra=4, fill=fill)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    logits = wrapped(batch, mask).logits
    sum(loss_of(logits[row : row + 1], row) for row in range(len(features))).backward()
    for row, alone in enumerate(expected):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad_sample[row], alone[name], rtol=1e-9, atol=1e-12)
        norms = [parameter.grad_sample[row].norm() for parameter in model.parameters()]
        assert torch.stack(norms).norm().item() == pytest.approx(
            torch.stack([each.norm() for each in alone.values()]).norm().item(), rel=1e-9
        )


def test_functorch_gives_the_same_gradients() -> None:
    model = small().double().eval()
    features = ragged([3, 11, 1, 6], dtype=torch.float64)
    expected = single_bag_gradients(model, features)
    batch, mask = padded(features)

    def loss(parameters: dict[str, Tensor], bag: Tensor, present: Tensor, y: Tensor, censored: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (bag, present)).logits
        return hazard_nll(logits[None], y[None], censored[None])

    rows = torch.arange(len(features))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    per_bag = vmap(grad(loss), in_dims=(None, 0, 0, 0, 0))(parameters, batch, mask, rows % 4, rows % 2)
    for row, alone in enumerate(expected):
        for name, gradient in alone.items():
            torch.testing.assert_close(per_bag[name][row], gradient, rtol=1e-9, atol=1e-12)


def test_a_mask_without_a_patch_is_never_a_plausible_number() -> None:
    batch, mask = padded(ragged([3, 2]))
    mask[1] = False
    logits = small().eval()(batch, mask).logits
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()


@pytest.mark.parametrize(("features", "mask"), [((2, 5, D), (2, 4)), ((2, 0, D), (2, 0)), ((5, D), (1, 5))])
def test_shapes_that_do_not_fit(features: tuple[int, ...], mask: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        small()(torch.zeros(features), torch.ones(mask, dtype=torch.bool))


def test_it_learns_which_patch_matters() -> None:
    generator = np.random.default_rng(0)
    bags = []
    for number in range(60):
        x = torch.from_numpy(generator.normal(size=(generator.integers(2, 15), D))).float()
        label = number % 2
        if label:
            x[0, 0] += 6.0
        bags.append(Bag(str(number), str(number), x, label))
    batch, model = collate(bags), small(outputs=2)
    targets = torch.tensor([int(bag.target) for bag in bags if isinstance(bag.target, int)])
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(batch.features, batch.mask).logits, targets).backward()
        optimiser.step()
    output = model.eval()(batch.features, batch.mask)
    assert (output.logits.argmax(1) == targets).float().mean() > 0.95
    most = output.attention.argmax(dim=1)[targets == 1]
    assert (most == 0).float().mean() > 0.8
