"""Protocols on made-up sites where the right answer is known."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedad_components
from fedad_components.evaluation.domain import standardised
from fedad_components.evaluation.finetune import FineTuning, class_probabilities, fine_tune
from fedad_components.evaluation.images import LabelledFeatures, LabelledImages
from fedad_components.evaluation.probe import ProbeError, fit_logistic
from fedad_components.evaluation.protocols import (
    KNN_TEMPERATURE,
    NEIGHBOURS,
    Protocol,
    evaluate,
    few_shot,
    fit_neighbours,
    transfer,
    within,
)
from fedad_components.evaluation.results import Evaluation, Repeats
from fedad_components.evaluation.scores import Scores

SIDE = 8
CLASSES = ("even", "odd", "third")


def site(
    name: str, offset: float | np.ndarray, seed: int, n: int = 90, patients: int = 30, scale: float = 1.0
) -> LabelledFeatures:
    """Three clusters, shifted and scaled as a laboratory would; ``patients`` in turn."""
    generator = np.random.default_rng(seed)
    labels = [CLASSES[index % 3] for index in range(n)]
    centres = np.array([[0.0, 0.0, 4.0], [0.0, 4.0, 0.0], [4.0, 0.0, 0.0]])
    x = np.array([centres[CLASSES.index(label)] for label in labels]) + generator.normal(size=(n, 3))
    return LabelledFeatures(name, x * scale + offset, labels, np.arange(n) % patients)


def test_source_is_one_fit_and_one_test() -> None:
    sources, target = [site("a", 0.0, 0), site("b", 0.5, 1)], site("c", 0.3, 2)
    result = transfer("source", fit_logistic, sources, target, seed=0)
    model = fit_logistic(np.concatenate([part.x for part in sources]), [*sources[0].labels, *sources[1].labels]).model
    assert result.scores.accuracy == pytest.approx(np.mean(model.predict(target.x) == np.array(target.labels)))
    assert (result.n_train, result.n_test) == (180, 90)
    assert result.folds is not None
    assert result.folds.n == 5
    assert result.detail is not None
    assert result.detail.intervals.units == 30


def test_a_shift_costs_source_and_standardising_repairs_it() -> None:
    shift = np.array([9.0, 0.0, -3.0])
    sources, target = [site("a", 0.0, 0), site("b", 0.2, 1)], site("c", shift, 2, scale=0.5)
    plain = transfer("source", fit_logistic, sources, target, seed=0)
    repaired = transfer("s", fit_logistic, [standardised(part) for part in sources], standardised(target), seed=0)
    assert plain.scores.accuracy < 0.5
    assert repaired.scores.accuracy > 0.9
    assert plain.folds is not None
    assert plain.folds.mean.accuracy > 0.9, "inside the sources nothing is wrong: the gap is the shift"


def test_target_never_tests_a_patient_that_it_trained_on() -> None:
    """Features that name the patient, and labels drawn for each patient at random: chance, unless patients leak."""
    generator = np.random.default_rng(0)
    units = np.repeat(np.arange(60), 4)
    labels = np.repeat(generator.choice(["x", "y"], 60), 4).tolist()
    x = np.eye(60)[units]
    honest = within(LabelledFeatures("t", x, labels, units), seed=0)
    leaking = within(LabelledFeatures("t", x, labels, np.arange(240)), seed=0)
    assert leaking.scores.accuracy > 0.9
    assert honest.scores.accuracy < 0.65
    assert np.sum(honest.detail.confusion if honest.detail else 0) == 240


def test_few_shot_uses_that_many_labels_and_no_patient_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    target = site("t", 0.0, 0)
    seen: list[tuple[np.ndarray, Sequence[str]]] = []

    def spy(x: np.ndarray, y: Sequence[str]) -> object:
        seen.append((x, y))
        return fit_logistic(x, y)

    monkeypatch.setattr("fedad_components.evaluation.protocols.fit_logistic", spy)
    result = few_shot(target, shots=5, seed=0)
    assert [sorted(y) for _, y in seen] == [sorted(CLASSES * 5)] * 10
    assert len({x.tobytes() for x, _ in seen}) == 10, "every draw has other images"
    assert (result.n_train, result.n_test) == (15, 45)
    assert result.draws is not None
    assert result.draws.n == 10
    assert few_shot(target, shots=5, seed=0) == result
    assert few_shot(target, shots=5, seed=1).draws != result.draws


def test_more_labels_are_no_worse() -> None:
    target = site("t", 0.0, 0, n=300, patients=100)
    one, ten = (few_shot(target, shots, seed=0).scores.accuracy for shots in (1, 10))
    assert ten > one


def test_rare_class_gives_all_it_has() -> None:
    target = site("t", 0.0, 0)
    rows = np.array([row for row, label in enumerate(target.labels) if label != "third" or row < 12])
    assert few_shot(target.take(rows), shots=10, seed=0).n_train in (21, 22, 23)


def test_neighbours_vote_by_cosine() -> None:
    """Against a loop over the definition of Wu et al. 2018."""
    train, test = site("a", 0.0, 0), site("b", 0.5, 1, n=12)
    probability = fit_neighbours(train.x, train.labels).probability(test.x, CLASSES)
    for x, found in zip(test.x, probability, strict=True):
        similarity = train.x @ x / (np.linalg.norm(train.x, axis=1) * np.linalg.norm(x))
        votes = dict.fromkeys(CLASSES, 0.0)
        for row in np.argsort(-similarity)[:NEIGHBOURS]:
            votes[train.labels[row]] += np.exp(similarity[row] / KNN_TEMPERATURE)
        np.testing.assert_allclose(found, np.array(list(votes.values())) / sum(votes.values()), rtol=1e-6)


def test_repeats() -> None:
    def scores(value: float, auc: float | None) -> Scores:
        return Scores(f1=value, precision=value, recall=value, accuracy=value, balanced_accuracy=value, auc=auc)

    repeats = Repeats.of([scores(0.2, None), scores(0.4, 0.5), scores(0.6, 0.9)])
    assert (repeats.mean.f1, repeats.sd["f1"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (repeats.mean.auc, repeats.sd["auc"]) == (pytest.approx(0.7), pytest.approx(np.sqrt(0.08)))
    assert Repeats.of([scores(0.2, None)]).sd == dict.fromkeys(repeats.sd)


def small_extractor(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), norm(8) if norm is nn.BatchNorm2d else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def images(name: str, tint: int, seed: int, n: int = 48) -> LabelledImages:
    """Red, green or blue noise under a site's tint."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 100, (n, SIDE, SIDE, 3)).astype(np.int64) + tint
    labels = [CLASSES[index % 3] for index in range(n)]
    for index, label in enumerate(labels):
        pixels[index, ..., CLASSES.index(label)] += 60
    groups = [None if index < 4 else f"patient {index // 2}" for index in range(n)]
    return LabelledImages(name, pixels.clip(0, 255).astype(np.uint8), labels, groups)


SOURCES, TARGET = [images("a", 0, 0), images("b", 40, 1)], images("c", 90, 2)


def test_everything_together_and_again() -> None:
    extractor = small_extractor()
    before = {name: tensor.clone() for name, tensor in extractor.state_dict().items()}
    evaluation = evaluate(extractor, SOURCES, TARGET, SIDE, protocols=list(Protocol), seed=0)
    assert [result.name for result in evaluation.results] == [
        "source",
        "source/standardised",
        "source/AdaBN",
        "target",
        "few-shot/1",
        "few-shot/5",
        "few-shot/10",
        "knn",
        "fine-tune",
    ]
    transductive = {result.name for result in evaluation.results if result.transductive}
    assert transductive == {"source/standardised", "source/AdaBN"}
    assert evaluation.result("target").scores.accuracy > 0.9
    assert evaluation.target_units == 4 + 22
    assert evaluation.absent == {}
    assert all(torch.equal(tensor, before[name]) for name, tensor in extractor.state_dict().items())
    assert evaluate(extractor, SOURCES, TARGET, SIDE, protocols=list(Protocol), seed=0) == evaluation
    assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation


def test_without_batch_norm_adabn_is_absent_with_its_reason() -> None:
    evaluation = evaluate(small_extractor(nn.Identity), SOURCES, TARGET, SIDE, [Protocol.SOURCE])
    assert [result.name for result in evaluation.results] == ["source", "source/standardised"]
    assert "no BatchNorm" in evaluation.absent["source/AdaBN"]
    assert not any("never measured" in note for note in evaluation.notes)


def test_target_alone_needs_no_sources() -> None:
    evaluation = evaluate(small_extractor(), [], TARGET, SIDE, [Protocol.TARGET, Protocol.FEW_SHOT])
    assert evaluation.sources == {}
    assert len(evaluation.results) == 4


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "protocol source: expected at least one training data set"),
        ([SOURCES[0], SOURCES[0]], "named twice"),
        ([TARGET], "48 of its images are also in the test data set 'c'"),
        ([LabelledImages("d", SOURCES[0].images, ["even", "odd"] * 24)], "training data sets lack: third"),
    ],
)
def test_bad_sources_are_named(sources: list[LabelledImages], message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        evaluate(small_extractor(), sources, TARGET, SIDE, [Protocol.SOURCE])


def test_fine_tuning_changes_all_weights_and_learns() -> None:
    extractor, labels = small_extractor(), list(SOURCES[0].labels)
    settings = FineTuning(epochs=40, batch_size=16, learning_rate=1e-2)
    model = fine_tune(extractor, SOURCES[0].images, labels, CLASSES, SIDE, 0, settings)
    assert not torch.equal(model[0][0].weight, extractor[0].weight)
    probability = class_probabilities(model, SOURCES[0].images, SIDE)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    assert np.mean(np.array(CLASSES)[probability.argmax(axis=1)] == labels) > 0.9
    again = fine_tune(extractor, SOURCES[0].images, labels, CLASSES, SIDE, 0, settings)
    other = fine_tune(extractor, SOURCES[0].images, labels, CLASSES, SIDE, 1, settings)
    assert torch.equal(model[1].weight, again[1].weight)
    assert not torch.equal(model[1].weight, other[1].weight)


def test_training_reads_no_label() -> None:
    """Labels lie beside the images in the cache; nothing that trains takes them from there."""
    root = Path(fedad_components.__file__).parent
    training = [*root.glob("*.py"), *(root / "imaging").glob("*.py")]
    training += [
        path for name in ("fedsd", "worker", "flare", "privacy", "methods") for path in (root / name).rglob("*.py")
    ]
    readers = {
        path.relative_to(root).as_posix()
        for path in training
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "labels"
    }
    assert readers == set()
