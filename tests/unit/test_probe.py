from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize
from torch import nn
from torchvision.transforms.v2 import functional as F

from fedad_components.evaluation.features import extract_features, read_images
from fedad_components.evaluation.probe import MAJORITY, ProbeError, ProbeResult, linear_probe

# One feature whose sign is the class, but for the images at the wrong side: predictions are known by hand.
TRAIN_X = np.array([[-2.0], [-1.0], [-3.0], [1.0], [2.0], [3.0]])
TRAIN_Y = ["no", "no", "no", "yes", "yes", "yes"]
TEST_X = np.array([[-5.0], [-4.0], [4.0], [5.0], [6.0], [-6.0], [7.0], [8.0]])
TEST_Y = ["no", "no", "no", "yes", "yes", "yes", "yes", "yes"]


def test_scores_by_hand() -> None:
    """Predicted: no no yes yes yes no yes yes, so 2 true no, 1 no taken for yes, 1 yes taken for no, 4 true yes."""
    result = linear_probe(TRAIN_X, TRAIN_Y, TEST_X, TEST_Y, "sign")
    assert result.confusion == [[2, 1], [1, 4]]
    assert result.classes == ["no", "yes"]
    assert result.accuracy == pytest.approx(6 / 8)
    assert result.precision == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert result.recall == result.balanced_accuracy == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert result.f1 == pytest.approx((2 / 3 + 4 / 5) / 2)  # each class has precision equal to recall
    assert result.auc == pytest.approx(12 / 15)  # pairs of a yes above a no: all but those of the yes at -6
    assert (result.n_train, result.n_test, result.label) == (6, 8, "sign")
    assert result.converged


def test_majority_class_is_the_chance_row() -> None:
    train_y = ["no", "yes", "yes", "yes", "yes", "yes"]
    chance = linear_probe(TRAIN_X, train_y, TEST_X, TEST_Y, "sign").references[MAJORITY]
    assert chance.accuracy == pytest.approx(5 / 8)
    assert chance.balanced_accuracy == pytest.approx(0.5)
    assert chance.precision == pytest.approx((5 / 8 + 0) / 2)
    assert chance.f1 == pytest.approx((2 * (5 / 8) / (5 / 8 + 1) + 0) / 2)
    assert chance.auc == pytest.approx(0.5)


def clusters(seed: int = 0, n: int = 90, classes: int = 3, dimension: int = 5) -> tuple[np.ndarray, list[str]]:
    generator = np.random.default_rng(seed)
    y = [f"c{index % classes}" for index in range(n)]
    centres = np.random.default_rng(99).normal(size=(classes, dimension))
    x = np.stack([centres[int(name[1])] for name in y]) + generator.normal(size=(n, dimension))
    return x, y


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_l2_weighs_the_penalty_beside_the_mean_loss(l2: float) -> None:
    """Against scipy's minimiser of the objective as the docstring states it: accuracy of both, and their confusion."""
    x, y = clusters()
    test_x, test_y = clusters(seed=1)
    result = linear_probe(x, y, test_x, test_y, "cluster", l2=l2, max_iter=2000)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    z, one_hot = (x - mean) / deviation, np.array([[name == c for c in ("c0", "c1", "c2")] for name in y])

    def objective(flat: np.ndarray) -> float:
        w, b = flat[:15].reshape(3, 5), flat[15:]
        logits = z @ w.T + b
        peak = logits.max(axis=1)
        log_sum = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
        return float((log_sum - (logits * one_hot).sum(axis=1)).mean() + l2 / 2 * (w**2).sum())

    best = minimize(objective, np.zeros(18), method="BFGS", options={"gtol": 1e-6}).x
    logits = ((test_x - mean) / deviation) @ best[:15].reshape(3, 5).T + best[15:]
    confusion = np.zeros((3, 3), dtype=int)
    for true, predicted in zip(test_y, logits.argmax(axis=1), strict=True):
        confusion[int(true[1]), predicted] += 1
    assert result.confusion == confusion.tolist()
    areas = []
    for column, name in enumerate(("c0", "c1", "c2")):  # each one against the rest, by counting pairs
        probability = np.exp(logits - logits.max(axis=1, keepdims=True))
        probability = (probability / probability.sum(axis=1, keepdims=True))[:, column]
        positive = np.array([true == name for true in test_y])
        difference = probability[positive][:, None] - probability[~positive][None, :]
        areas.append(((difference > 0) + 0.5 * (difference == 0)).mean())
    assert result.auc == pytest.approx(np.mean(areas), abs=2e-3)


def test_features_are_standardised_by_the_training_split() -> None:
    x, y = clusters()
    test_x, test_y = clusters(seed=1)
    scale, shift = np.array([1e-3, 1.0, 1e4, 7.0, 1.0]), np.array([5.0, -100.0, 0.0, 3.0, 1.0])
    plain = linear_probe(x, y, test_x, test_y, "cluster")
    moved = linear_probe(x * scale + shift, y, test_x * scale + shift, test_y, "cluster")
    assert moved.confusion == plain.confusion
    assert moved.f1 == pytest.approx(plain.f1)


def test_a_class_that_the_test_lacks_leaves_the_auc_undefined() -> None:
    result = linear_probe(TRAIN_X, TRAIN_Y, TEST_X[3:5], ["yes", "yes"], "sign")
    assert result.auc is None
    assert result.accuracy == result.balanced_accuracy == 1.0


def test_too_few_iterations_are_reported() -> None:
    x, y = clusters()
    assert not linear_probe(x, y, x, y, "cluster", max_iter=1).converged


def test_another_probe_as_reference_and_json() -> None:
    x, y = clusters()
    result = linear_probe(x, y, x, y, "cluster")
    other = linear_probe(x[:, :1], y, x[:, :1], y, "cluster")
    both = result.compared_with("untrained extractor", other)
    assert list(both.references) == [MAJORITY, "untrained extractor"]
    assert both.references["untrained extractor"].f1 == other.f1
    assert ProbeResult.model_validate_json(both.model_dump_json()) == both


@pytest.mark.parametrize(
    ("train_x", "train_y", "test_x", "test_y", "message"),
    [
        (TRAIN_X, ["no"] * 6, TEST_X, TEST_Y, r"sign: the training split has one class only \('no'\)"),
        (TRAIN_X, TRAIN_Y, TEST_X[:0], [], "test split: it has no images"),
        (TRAIN_X[:0], [], TEST_X, TEST_Y, "training split: it has no images"),
        (TRAIN_X, TRAIN_Y[:5], TEST_X, TEST_Y, "training split: expected features .* got .* 5 labels"),
        (TRAIN_X, TRAIN_Y, TEST_X[:, 0], TEST_Y, "test split: expected features"),
        (TRAIN_X, TRAIN_Y, np.hstack([TEST_X, TEST_X]), TEST_Y, "have length 1, test features 2"),
        (TRAIN_X, TRAIN_Y, TEST_X, [*TEST_Y[:7], "maybe"], "the training split lacks: maybe"),
        (TRAIN_X * np.nan, TRAIN_Y, TEST_X, TEST_Y, "training split: features that are not finite"),
    ],
)
def test_bad_input_is_named(
    train_x: np.ndarray, train_y: list[str], test_x: np.ndarray, test_y: list[str], message: str
) -> None:
    with pytest.raises(ProbeError, match=message):
        linear_probe(train_x, train_y, test_x, test_y, "sign")


def test_l2_must_be_positive() -> None:
    with pytest.raises(ProbeError, match="l2 = 0"):
        linear_probe(TRAIN_X, TRAIN_Y, TEST_X, TEST_Y, "sign", l2=0)


class Probe(nn.Module):
    """Mean of each channel, through a BatchNorm that would move if it were left in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return self.norm(x).mean(dim=(2, 3))


def test_features_are_those_of_each_image_alone() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 40, 40, 3), dtype=np.uint8)
    extractor = Probe().train()
    features = extract_features(extractor, images, image_size=24, batch_size=3)
    assert extractor.training
    assert torch.equal(extractor.norm.running_mean, torch.zeros(3)), "an evaluation must not move BatchNorm"
    assert features.shape == (7, 3)
    assert features.dtype == np.float32
    extractor.eval()
    for image, got in zip(images, features, strict=True):
        x = torch.from_numpy(image).permute(2, 0, 1)[None]
        x = F.resize(x, [24, 24], antialias=True).float() / 255
        x = F.normalize(x, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        with torch.inference_mode():
            np.testing.assert_allclose(got, extractor(x)[0].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "images", [np.zeros((0, 8, 8, 3), np.uint8), np.zeros((2, 8, 8, 3)), np.zeros((8, 8, 3), np.uint8)]
)
def test_what_is_no_batch_of_images_is_refused(images: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"uint8 \(n, S, S, 3\)"):
        extract_features(Probe(), images, image_size=8)


def test_pictures_are_read_as_square_rgb(tmp_path: Path) -> None:
    colour = np.zeros((10, 20, 3), np.uint8)
    colour[:, 5:15] = (200, 100, 50)  # the central square
    Image.fromarray(colour).save(tmp_path / "colour.png")
    Image.fromarray(np.full((10, 10), 77, np.uint8)).save(tmp_path / "grey.png")
    got = read_images([tmp_path / "colour.png", tmp_path / "grey.png"], side=10)
    assert got.shape == (2, 10, 10, 3)
    assert (got[0] == (200, 100, 50)).all()
    assert (got[1] == 77).all()


def test_an_unreadable_picture_is_reported_by_number_only(tmp_path: Path) -> None:
    (tmp_path / "Jane_Doe.png").write_text("no picture")
    with pytest.raises(ValueError, match="image 0 of 1") as caught:
        read_images([tmp_path / "Jane_Doe.png"], side=10)
    assert "Jane" not in str(caught.value)
