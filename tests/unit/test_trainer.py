from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from skimage import data
from torch import Tensor, nn

from fedad_components.config import FedADConfig
from fedad_components.fedsd import trainer as trainers
from fedad_components.fedsd.state import StateError, initial_state, is_statistic, wire_spec
from fedad_components.fedsd.trainer import LocalTrainer, RoundResult, TrainingError


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model runs fastest without the threads' synchronisation, and independent of the machine's load."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiles(count: int = 4, side: int = 36) -> np.ndarray:
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
    model = {"image_size": 32} | sections.pop("model", {})
    return FedADConfig.parse({"model": model, "training": training, **sections})


def train(config: FedADConfig, lambda_t: float = 0.5, **arguments: object) -> tuple[LocalTrainer, RoundResult]:
    trainer = LocalTrainer(config, tiles(), "hospital-1", "cpu")
    return trainer, trainer.train_round(initial_state(config), lambda_t, 0, **arguments)  # type: ignore[arg-type]


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_same_seed_gives_bit_equal_weights() -> None:
    (first_trainer, first), (second_trainer, second) = train(configuration()), train(configuration())
    assert equal(first.update, second.update)
    assert equal(first_trainer.site_state(), second_trainer.site_state())
    assert first.losses == second.losses
    _, other = train(configuration(seed=1))
    assert not torch.equal(first.update["conv1.weight"], other.update["conv1.weight"])


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
    first, second = (LocalTrainer(config, tiles(12), "s", "cpu").chosen for _ in range(2))
    assert len(first.unique()) == 5
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 36, 36, 3), np.uint8), "at least 2"),
        (np.zeros((4, 36, 36, 3), np.float32), "expected uint8"),
        (np.zeros((4, 3, 36, 36), np.uint8), "expected uint8"),
    ],
)
def test_unusable_images_are_refused(images: np.ndarray, message: str) -> None:
    with pytest.raises(TrainingError, match=f"site s: .*{message}"):
        LocalTrainer(configuration(), images, "s", "cpu")
