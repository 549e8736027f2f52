from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from skimage import data
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as TF

from fedad_components.config import FedADConfig
from fedad_components.fedsd import trainer as trainers
from fedad_components.fedsd.model import build_extractor, build_head, build_projection
from fedad_components.fedsd.seeds import stream
from fedad_components.fedsd.state import StateError, initial_state, is_statistic, trainable_names, wire_spec
from fedad_components.fedsd.trainer import LocalTrainer, RoundResult, TrainingError
from fedad_components.fedsd.views import Views, normalise

SIDE = 18
"""Of the stored images; views have 16 pixels. A configuration allows no less than 32, with four times the work."""


def tiles(count: int = 4, side: int = SIDE) -> np.ndarray:
    """Tissue of scikit-image's immunohistochemistry and retina, ``(count, side, side, 3)`` uint8."""
    ihc, retina = data.immunohistochemistry(), data.retina()[300:1100:2, 300:1100:2]
    corners = [(row, column) for row in range(0, 350, 50) for column in range(0, 350, 50)]
    cut = [
        image[row : row + side, column : column + side]
        for row, column in corners[: (count + 1) // 2]
        for image in (ihc, retina)
    ]
    return np.stack(cut[:count])


def configuration(**sections: dict) -> FedADConfig:
    training = {"epochs": 1, "batch_size": 2} | sections.pop("training", {})
    config = FedADConfig.parse({"training": training, **sections})
    return config.model_copy(update={"model": config.model.model_copy(update={"image_size": 16})})


def train(config: FedADConfig, lambda_t: float = 0.5, **arguments: object) -> tuple[LocalTrainer, RoundResult]:
    trainer = LocalTrainer(config, tiles(), "hospital-1", "cpu")
    return trainer, trainer.train_round(initial_state(config), lambda_t, 0, **arguments)  # type: ignore[arg-type]


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def distance(first: dict[str, Tensor], second: dict[str, Tensor], names: Iterable[str]) -> float:
    return math.sqrt(sum(float((first[name] - second[name]).square().sum()) for name in names))


def test_same_seed_gives_bit_equal_weights() -> None:
    (first_trainer, first), (second_trainer, second) = train(configuration()), train(configuration())
    assert equal(first.update, second.update)
    assert equal(first_trainer.site_state(), second_trainer.site_state())
    assert first.losses == second.losses
    _, other = train(configuration(seed=1))
    assert not torch.equal(first.update["conv1.weight"], other.update["conv1.weight"])


def test_a_round_is_algorithm_1_written_out() -> None:
    """Lines 12-26 with torch's own ResNet calls, cosines and Adam; only weights, views and order are the package's."""
    lambda_t, gamma, temperature, seed, number = 0.7, 1.5, 0.2, 3, 2
    adam = {"learning_rate": 1e-4, "weight_decay": 0.1, "betas": (0.5, 0.9)}
    config = configuration(
        seed=seed,
        training={"epochs": 2, "batch_size": 4, "teacher_precision": "fp32", **adam},
        loss={"temperature": temperature, "gamma": gamma},
    )
    images, theta = tiles(6), initial_state(config)
    result = LocalTrainer(config, images, "north", "cpu").train_round(theta, lambda_t, number)

    student = build_extractor(config.model, seed)
    student.load_state_dict(theta, strict=False)
    head, p = build_head(seed, "north"), build_projection(seed).weight
    teacher = copy.deepcopy(student).eval()
    optimizer = torch.optim.Adam(
        [*student.parameters(), *head.parameters()], lr=1e-4, weight_decay=0.1, betas=(0.5, 0.9), foreach=False
    )
    order, draws = stream(seed, "order", "north", number), stream(seed, "views", "north", number)
    totals = []
    for _ in range(2):
        weighted = 0.0
        for batch in torch.randperm(6, generator=order).split(4):
            n = len(batch)
            x = Views(config.views, 16)(torch.from_numpy(images)[batch], draws)
            with torch.no_grad():
                z_g = teacher(x) @ p.T
            z = head(student(x))
            z_s, z_d = z[:, :128], z[:, 128:]
            similarity = torch.cosine_similarity(z_s[:, None], z_s[None], dim=-1) / temperature
            loss = torch.zeros(())
            for i in range(2 * n):
                others = [k for k in range(2 * n) if k != i]
                loss = loss + (similarity[i, others].logsumexp(0) - similarity[i, (i + n) % (2 * n)]) / (2 * n)
                s_g, d_g, s_d = (
                    torch.cosine_similarity(u[i], v[i], dim=0) for u, v in ((z_s, z_g), (z_d, z_g), (z_s, z_d))
                )
                loss = loss + lambda_t / 2 * ((1 - s_g) + (1 + d_g)) / n + gamma / 2 * s_d**2 / n
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weighted += n * loss.item() / 6
        totals.append(weighted)

    assert [losses["total"] for losses in result.losses] == pytest.approx(totals, rel=1e-3)
    expected = student.state_dict()
    parameters, statistics = trainable_names(config), {name for name in theta if is_statistic(name)}
    for names in (parameters, statistics):
        assert distance(result.update, expected, names) < 0.002 * distance(theta, expected, names)


def test_loss_falls_on_real_images() -> None:
    config = configuration(
        training={"epochs": 6, "batch_size": 4}, loss={"temperature": 0.5}, views={"crop_scale_min": 0.5, "hue": 0.1}
    )
    _, result = train(config)
    assert result.losses[-1]["total"] < result.losses[0]["total"]


def test_result_is_the_contracts() -> None:
    reported: list[int] = []
    config = configuration(training={"epochs": 2})
    _, result = train(config, on_epoch=lambda epoch, losses: reported.append(epoch))
    assert reported == [0, 1]
    assert result.n_samples == 4
    assert {name: tuple(tensor.shape) for name, tensor in result.update.items()} == wire_spec(config)
    assert result.dead_z_d == 0
    for losses in result.losses:
        assert set(losses) == {"total", "contrastive", "alignment", "orthogonality"}
        parts = losses["contrastive"] + losses["alignment"] + losses["orthogonality"]
        assert losses["total"] == pytest.approx(parts, rel=1e-5)


def test_teacher_is_untouched_and_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    kept: list[trainers.Teacher] = []

    class Watched(trainers.Teacher):
        def __init__(self, extractor: nn.Module, *arguments: object) -> None:
            super().__init__(extractor, *arguments)  # type: ignore[arg-type]
            extractor.register_forward_hook(lambda *_: calls.append("student"))
            self.before = [tensor.clone() for tensor in self.tensors()]
            kept.append(self)

        def tensors(self) -> list[Tensor]:
            return [*self.extractor.state_dict().values(), *self.projection.state_dict().values()]

        def __call__(self, x: Tensor) -> Tensor:
            calls.append("teacher")
            return super().__call__(x)

    monkeypatch.setattr(trainers, "Teacher", Watched)
    _, result = train(configuration())
    (teacher,) = kept
    assert all(torch.equal(a, b) for a, b in zip(teacher.tensors(), teacher.before, strict=True))
    assert not any(tensor.requires_grad for tensor in teacher.tensors())
    assert calls == ["teacher", "student"] * 2
    assert not torch.equal(result.update["conv1.weight"], initial_state(configuration())["conv1.weight"])


def test_the_teacher_may_see_whole_images_and_give_both_views_one_target(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    original = trainers.Teacher.__call__
    monkeypatch.setattr(trainers.Teacher, "__call__", lambda self, x: seen.append(x) or original(self, x))
    trainer, _ = train(configuration(loss={"teacher_view": "whole"}))
    assert [x.shape for x in seen] == [(2, 3, 16, 16)] * 2
    every = trainer.views.whole(torch.from_numpy(trainer.images))
    expected = TF.resize(torch.from_numpy(trainer.images).permute(0, 3, 1, 2), [16, 16], antialias=True).float() / 255
    torch.testing.assert_close(every, normalise(expected))
    assert all(any(torch.equal(image, other) for other in every) for x in seen for image in x)


def test_the_averaged_teacher_moves_by_its_share_and_survives_a_restart() -> None:
    config = configuration(loss={"teacher_momentum": 0.75})
    first, theta = LocalTrainer(config, tiles(), "north", "cpu"), initial_state(config)
    later = {name: tensor + 0.01 for name, tensor in theta.items()}
    first.train_round(theta, 0.5, 0)
    state = first.site_state()
    second = LocalTrainer(config, tiles(), "north", "cpu")
    second.load_site_state(state)
    results = [trainer.train_round(later, 0.5, 1) for trainer in (first, second)]
    assert equal(results[0].update, results[1].update)
    average = {
        name.removeprefix("teacher."): t for name, t in first.site_state().items() if name.startswith("teacher.")
    }
    for name, tensor in theta.items():
        torch.testing.assert_close(average[name], tensor + 0.0025)
    del state["teacher.conv1.weight"]
    with pytest.raises(StateError, match=r"1 missing \(teacher.conv1.weight\)"):
        second.load_site_state(state)
    plain, _ = train(configuration())
    assert not any(name.startswith("teacher.") for name in plain.site_state())


def test_no_teacher_without_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "Teacher", None)
    _, result = train(configuration(loss={"gamma": 0.0}), lambda_t=0.0)
    assert result.losses[0]["total"] == result.losses[0]["contrastive"]


@pytest.mark.parametrize(
    "options",
    [
        {"domain_target": "style", "teacher_centering": True},
        {"domain_alignment": "orthogonal", "decorrelation": "batch"},
    ],
)
def test_options_train(options: dict) -> None:
    _, result = train(configuration(loss=options, views={"stain_jitter": 0.4}))
    assert np.isfinite(result.losses[0]["total"])
    assert result.losses[0]["alignment"] > 0


def test_local_norm_keeps_statistics_at_the_site() -> None:
    config = configuration(model={"norm": "local"})
    trainer, result = train(config)
    assert not any(is_statistic(name) for name in result.update)
    statistics = {name: tensor for name, tensor in trainer.site_state().items() if is_statistic(name)}
    assert len(statistics) == 40
    assert not torch.equal(statistics["extractor.bn1.running_mean"], torch.zeros(64))


def test_group_norm_trains() -> None:
    config = configuration(model={"norm": "group"})
    _, result = train(config)
    assert result.update.keys() == wire_spec(config).keys()


def test_aggregated_head_travels_and_is_not_private() -> None:
    config = configuration(loss={"head": "aggregated"})
    trainer, result = train(config)
    assert "head.0.weight" in result.update
    assert trainer.site_state() == {}


@pytest.mark.parametrize("norm", ["batch", "local"])
def test_a_restarted_site_continues_bit_equal(norm: str) -> None:
    config = configuration(model={"norm": norm})
    trainer, first = train(config)
    saved = trainer.site_state()
    expected = trainer.train_round(first.update, 0.5, 1)
    restarted = LocalTrainer(config, tiles(), "hospital-1", "cpu")
    restarted.load_site_state(saved)
    assert equal(restarted.train_round(first.update, 0.5, 1).update, expected.update)


def test_foreign_private_state_is_refused() -> None:
    trainer = LocalTrainer(configuration(), tiles(4), "hospital-1", "cpu")
    state = trainer.site_state()
    state.pop("head.2.bias")
    with pytest.raises(StateError, match=r"hospital-1.*head\.2\.bias"):
        trainer.load_site_state(state)


def test_non_finite_loss_names_where_and_leaves_the_site_as_it_was() -> None:
    config = configuration()
    trainer = LocalTrainer(config, tiles(6), "hospital-1", "cpu")
    before, poisoned = trainer.site_state(), initial_state(config)
    poisoned["conv1.weight"][0] = torch.nan
    with pytest.raises(TrainingError, match="site hospital-1, round 4, epoch 0: the loss is not finite"):
        trainer.train_round(poisoned, 0.5, 4)
    assert equal(trainer.site_state(), before)


@pytest.mark.parametrize(("images", "batch_size", "expected"), [(12, 6, [6, 6]), (13, 6, [6, 6]), (14, 6, [6, 6, 2])])
def test_a_single_image_left_over_sits_out(images: int, batch_size: int, expected: list[int]) -> None:
    trainer = LocalTrainer(configuration(training={"batch_size": batch_size}), tiles(images), "s", "cpu")
    batches = list(trainer._batches(torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == expected
    assert len(torch.cat(batches).unique()) == sum(expected)


def test_max_images_is_a_seeded_subset() -> None:
    config = configuration(training={"max_images": 5})
    first, second = (LocalTrainer(config, tiles(12), "s", "cpu") for _ in range(2))
    assert len(first.chosen.unique()) == 5
    assert torch.equal(first.chosen, second.chosen)
    assert first.train_round(initial_state(config), 0.0, 0).n_samples == 5


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, SIDE, SIDE, 3), np.uint8), "at least 2"),
        (np.zeros((4, SIDE, SIDE, 3), np.float32), "expected uint8"),
        (np.zeros((4, 3, SIDE, SIDE), np.uint8), "expected uint8"),
    ],
)
def test_unusable_images_are_refused(images: np.ndarray, message: str) -> None:
    with pytest.raises(TrainingError, match=f"site s: .*{message}"):
        LocalTrainer(configuration(), images, "s", "cpu")
