"""Each condition of the theorem in docs/privacy.md, on the trainer that sites run."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch
from private_training import UNITS, Spy, configuration, flat, make_trainer, spy, start, tiles
from scipy.stats import chi2
from torch import Tensor

from fedad_components.fedsd.losses import fedsd
from fedad_components.fedsd.model import build_extractor, build_head, build_projection
from fedad_components.fedsd.seeds import stream
from fedad_components.fedsd.state import wire_spec
from fedad_components.fedsd.views import Views

__all__ = ["spy"]

C = 0.1
"""max_grad_norm of these tests: below the length of every gradient here, so that all are clipped."""
LOSSES: list[dict] = [
    {},
    {"loss": {"teacher_centering": True, "decorrelation": "batch", "head": "aggregated"}},
]


def without(unit: int) -> dict[int, np.ndarray]:
    return {number: indices for number, indices in UNITS.items() if number != unit}


@pytest.mark.parametrize("sections", LOSSES)
def test_a_unit_changes_no_other_units_gradient(spy: Spy, sections: dict) -> None:
    config, changed = configuration(**sections), tiles()
    changed[UNITS[1]] = 255 - changed[UNITS[1]]
    before, after = make_trainer(config), make_trainer(config, changed)
    gone = make_trainer(config, units=without(1))
    others = spy.clipped_sum(before, [0, 2])
    assert torch.equal(others, spy.clipped_sum(after, [0, 2]))
    assert torch.equal(others, spy.clipped_sum(gone, [0, 1]))
    assert not torch.equal(spy.clipped_sum(before, [1]), spy.clipped_sum(after, [1]))


@pytest.mark.parametrize(("norm", "trainable"), [("group", "all"), ("folded", "affine_and_head")])
def test_removing_a_unit_moves_the_sum_by_the_clipping_norm(spy: Spy, norm: str, trainable: str) -> None:
    config = configuration(norm=norm, trainable=trainable)
    everyone = spy.clipped_sum(make_trainer(config), [0, 1, 2])
    for unit in UNITS:
        moved = everyone - spy.clipped_sum(make_trainer(config, units=without(unit)), [0, 1])
        assert moved.norm() == pytest.approx(C, rel=1e-4)


def test_changing_a_record_moves_the_sum_by_at_most_twice_the_clipping_norm(spy: Spy) -> None:
    config, images = configuration(), tiles()
    before = spy.clipped_sum(make_trainer(config, images), [0, 1, 2])
    lengths = []
    for replacement in (0, 255 - images[4], images[8]):
        changed = images.copy()
        changed[4] = replacement
        lengths.append((spy.clipped_sum(make_trainer(config, changed), [0, 1, 2]) - before).norm().item())
    assert min(lengths) > 0
    assert max(lengths) <= 2 * C * (1 + 1e-5)


def test_an_outlier_among_near_identical_images_moves_its_own_unit_alone(spy: Spy) -> None:
    """64 near-identical images and one outlier: per-image clipping of NT-Xent moves the sum by up to 105 C here."""
    generator = np.random.default_rng(0)
    near = np.clip(tiles(1)[0] + generator.integers(-2, 3, (65, 18, 18, 3)), 0, 255).astype(np.uint8)
    with_outlier = near.copy()
    with_outlier[64] = generator.integers(0, 256, (18, 18, 3))
    units = {number: np.arange(8 * number, 8 * number + 8) for number in range(8)}
    units[7] = np.arange(56, 65)
    config = configuration(privacy={"unit_size": 9})
    draw = list(range(8))
    ordinary, outlying = (spy.clipped_sum(make_trainer(config, images, units), draw) for images in (near, with_outlier))
    assert 0 < (outlying - ordinary).norm() <= 2 * C * (1 + 1e-5)
    rest = spy.clipped_sum(make_trainer(config, with_outlier, {n: units[n] for n in range(7)}), draw[:7])
    assert (outlying - rest).norm() <= C * (1 + 1e-5)


@pytest.mark.parametrize("trainable", ["all", "affine_and_head"])
def test_training_is_the_mechanism_written_out(spy: Spy, trainable: str) -> None:
    """Draws of 2, 0 and 1 units with torch's own loop and Adam; only weights, views and loss are the package's."""
    clip = 2.0
    config = configuration(
        seed=5,
        training={"learning_rate": 1e-4, "weight_decay": 1e-3, "betas": (0.5, 0.9)},
        trainable=trainable,
        privacy={"unit_size": 2, "units_per_step": 3, "max_grad_norm": clip},
    )
    images, draws, lambda_t = tiles(), [[0, 2], [], [1], [2]], 0.7
    trainer = make_trainer(config, images)
    update = spy.train(trainer, *draws, lambda_t=lambda_t)

    student = build_extractor(config.model, 5)
    head, projection, teacher = build_head(5, "north"), build_projection(5), copy.deepcopy(student).eval()
    trained = [p for p in student.parameters() if trainable == "all" or p.dim() == 1] + list(head.parameters())
    optimizer = torch.optim.Adam(trained, lr=1e-4, weight_decay=1e-3, betas=(0.5, 0.9), foreach=False)
    for step, draw in enumerate(draws):
        total = [torch.zeros_like(parameter) for parameter in trained]
        for unit in draw:
            generator = stream(5, f"unit {unit} step {step}", "north", 0)
            chosen = UNITS[unit][torch.randperm(3, generator=generator)[:2].numpy()]
            x = Views(config.views, 16)(torch.from_numpy(images[chosen]), generator)
            z = head(student(x)).unflatten(0, (2, 2))
            with torch.no_grad():
                z_g = projection(teacher(x)).unflatten(0, (2, 2))
            loss = fedsd(z[..., :128], z[..., 128:], z_g, lambda_t, config.loss).total
            gradients = torch.autograd.grad(loss, trained)
            norm = sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5
            for summed, gradient in zip(total, gradients, strict=True):
                summed += gradient * min(1.0, clip / norm)
        for parameter, summed in zip(trained, total, strict=True):
            parameter.grad = summed / 3
        optimizer.step()

    expected = student.state_dict()
    before = start(config)
    for name, tensor in update.items():
        assert (tensor - expected[name]).abs().max() <= 1e-6, name
        is_trained = trainable == "all" or tensor.dim() == 1
        assert torch.equal(tensor, before[name]) != is_trained, name
    for name, tensor in head.state_dict().items():
        assert (trainer.site_state()[f"head.{name}"] - tensor).abs().max() <= 1e-6


def test_all_that_is_trained_is_noised_to_the_same_degree(spy: Spy) -> None:
    """Two empty draws, so that what reaches the optimiser is noise: sigma C / units_per_step in each coordinate."""
    sigma = 3.0
    trainer = make_trainer(configuration(sigma, trainable="all"))
    before = start(trainer.config) | trainer.site_state()
    update = spy.train(trainer, [], [])
    first, second = ([mean / (sigma * C / 2) for mean in means] for means in spy.means)
    n_parameters = sum(p.numel() for p in (*trainer.extractor.parameters(), *trainer.head.parameters()))
    for noise in (flat(first), flat(second), *first[-4:]):  # the last four are the head's
        statistic = chi2(noise.numel()).cdf(float(noise.double().square().sum()))
        assert 1e-6 < statistic < 1 - 1e-6
    assert flat(first).numel() == n_parameters
    correlation = (flat(first) * flat(second)).double().mean() * n_parameters**0.5
    assert abs(correlation) < 5
    for name, tensor in (update | trainer.site_state()).items():
        assert not torch.equal(tensor, before[name]), name


def test_draws_and_noise_differ_from_round_to_round_of_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the configuration decides them: a job that is run twice has new noise."""
    spy = Spy(monkeypatch)
    first, second = (spy.train(make_trainer(configuration(1.0)), []) for _ in range(2))
    assert not torch.equal(first["bn1.weight"], second["bn1.weight"])


@pytest.mark.parametrize("norm", ["group", "folded"])
def test_no_statistic_is_kept_or_sent(spy: Spy, norm: str) -> None:
    config = configuration(norm=norm)
    trainer = make_trainer(config)
    update = spy.train(trainer, [0, 1])
    assert list(trainer.extractor.buffers()) == list(trainer.head.buffers()) == []
    assert {name: tuple(tensor.shape) for name, tensor in update.items()} == wire_spec(config)
    assert {name for name, _ in trainer.extractor.named_parameters()} == update.keys()


def test_the_result_says_nothing_but_the_weights(spy: Spy) -> None:
    spy.draws = [[0], [1]]
    trainer = make_trainer(configuration(training={"epochs": 2}))
    reported: list[int] = []
    result = trainer.train_round(start(trainer.config), 0.5, 0, on_epoch=lambda epoch, losses: reported.append(epoch))
    assert (result.n_samples, result.losses, result.dead_z_d, reported) == (None, [], None, [])


def test_images_beyond_the_unit_size_take_turns(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(privacy={"unit_size": 2})
    trainer = make_trainer(config)
    loaded: list[list[int]] = []

    def watched_load(batch: Tensor) -> Tensor:
        loaded.append(batch.tolist())
        return torch.from_numpy(trainer.images[batch.numpy()])

    monkeypatch.setattr(trainer, "_load", watched_load)
    spy.train(trainer, *[[1]] * 4)
    assert all(len(set(batch)) == 2 for batch in loaded)
    assert {record for batch in loaded for record in batch} == set(UNITS[1])
    again = list(loaded)
    loaded.clear()
    spy.train(trainer, *[[0, 1]] * 4)
    assert loaded[1::2] == again


def test_no_teacher_without_alignment(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedad_components.fedsd.trainer.Teacher", None)
    assert spy.clipped_sum(make_trainer(configuration()), [0], lambda_t=0.0).norm() == pytest.approx(C, rel=1e-4)


def test_a_unit_of_one_image_has_no_contrastive_gradient(spy: Spy, caplog: pytest.LogCaptureFixture) -> None:
    config, single = configuration(loss={"gamma": 0.0}), {4: np.array([0]), 9: np.array([1, 2])}
    with caplog.at_level(logging.WARNING, "fedad.privacy"):
        trainer = make_trainer(config, units=single)
    (record,) = caplog.records
    assert "1 of 2 privacy units have one image" in record.getMessage()
    assert torch.equal(spy.clipped_sum(trainer, [0], lambda_t=0.0), torch.zeros_like(spy.clipped_sum(trainer, [1])))


def test_public_negatives_teach_a_unit_of_one_image(spy: Spy, caplog: pytest.LogCaptureFixture) -> None:
    config = configuration(
        loss={"gamma": 0.0}, training={"batch_size": 4}, privacy={"negatives": "public", "public_data_set": "open"}
    )
    single = {4: np.array([0]), 9: np.array([1, 2])}
    trainer = make_trainer(config, units=single, public_images=tiles(20)[9:])
    assert caplog.records == []
    alone = spy.clipped_sum(trainer, [0], lambda_t=0.0)
    assert alone.norm() == pytest.approx(C, rel=1e-4)
    assert torch.equal(
        alone,
        spy.clipped_sum(make_trainer(config, units={4: single[4]}, public_images=tiles(20)[9:]), [0], lambda_t=0.0),
    )
    other = make_trainer(config, units=single, public_images=tiles(30)[20:])
    assert not torch.equal(alone, spy.clipped_sum(other, [0], lambda_t=0.0))


def test_a_poisoned_unit_counts_as_zero(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tiles()
    images[UNITS[1]] = 0
    trainer = make_trainer(configuration(), images)
    expected, apply = spy.clipped_sum(trainer, [0]), trainer.views.apply
    monkeypatch.setattr(
        trainer.views, "apply", lambda images, draw: apply(images, draw) * (1 if images.any() else torch.nan)
    )
    assert torch.equal(spy.clipped_sum(trainer, [1]), torch.zeros_like(expected))
    assert torch.equal(spy.clipped_sum(trainer, [0, 1]), expected)
