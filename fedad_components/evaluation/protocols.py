"""The protocols of an evaluation: who gives labels, and who is tested. Needs torch and scikit-learn; no FLARE.

:func:`evaluate` takes an extractor and labelled images and returns every figure; the functions below it take features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from fedad_components.evaluation.domain import adabn, has_batch_norm, lacks_statistics, standardised
from fedad_components.evaluation.feature_cache import FeatureCache, content_key
from fedad_components.evaluation.features import extract_features
from fedad_components.evaluation.finetune import FineTuning, class_probabilities, fine_tune
from fedad_components.evaluation.folds import folds
from fedad_components.evaluation.images import LabelledFeatures, LabelledImages, refuse_shared_pixels
from fedad_components.evaluation.probe import Fitted, ProbeError, fit_logistic
from fedad_components.evaluation.results import Detail, Evaluation, Repeats, Result
from fedad_components.evaluation.scores import Scores, bootstrap, confusion_of, roc_of, scores_of
from fedad_components.fedsd.seeds import stream_seed

N_FOLDS = 5
SHOTS = (1, 5, 10)
DRAWS = 10
NEIGHBOURS = 20
KNN_TEMPERATURE = 0.07
FEW_UNITS = 10
"""Below so many patients, percentile intervals are known to be too narrow."""

Fit = Callable[[npt.NDArray, Sequence[str]], Fitted]
Say = Callable[[str], None]


class Protocol(str, Enum):
    """Where the labels come from."""

    SOURCE = "source"
    TARGET = "target"
    FEW_SHOT = "few-shot"
    KNN = "knn"
    FINE_TUNE = "fine-tune"


NEED_SOURCES = {Protocol.SOURCE, Protocol.KNN, Protocol.FINE_TUNE}
FROZEN = (Protocol.SOURCE, Protocol.TARGET, Protocol.FEW_SHOT, Protocol.KNN)
"""The protocols that leave the extractor as it is: seconds once the features are there."""


def evaluate(
    extractor: nn.Module,
    sources: Sequence[LabelledImages],
    target: LabelledImages,
    image_size: int,
    protocols: Collection[Protocol] = FROZEN,
    seed: int = 0,
    cache: FeatureCache | None = None,
    fine_tuning: FineTuning | None = None,
    say: Say = lambda _: None,
) -> Evaluation:
    """Every figure of the chosen protocols. The same arguments give the same figures; the extractor is not changed.

    Args:
        extractor: ``(N, 3, H, W)``, ImageNet-normalised, to ``(N, F)``.
        sources: data sets whose labels train a classifier; may be empty for ``target`` and ``few-shot``.
        target: the data set that is tested.
        image_size: side of the extractor's views in pixels.
        protocols: which; ``source`` comes with its two transductive variants.
        seed: of folds, draws, resamples and fine-tuning.
        cache: where features are kept; none: they are computed.
        fine_tuning: settings of ``fine-tune``; none: the defaults.
        say: told what is being computed, one line a step.

    Raises:
        ProbeError: if data sets, classes or groups do not suffice for a protocol, a name occurs twice, or a source
            holds images of the target.
    """
    protocols = [Protocol(protocol) for protocol in protocols]
    if (needy := NEED_SOURCES.intersection(protocols)) and not sources:
        names = ", ".join(sorted(protocol.value for protocol in needy))
        raise ProbeError(f"protocol {names}: expected at least one training data set")
    if len({source.name for source in sources}) != len(sources):
        raise ProbeError("a training data set is named twice: expected different ones")
    refuse_shared_pixels(sources, target)
    source_classes = {label for source in sources for label in source.labels}
    if needy and (unknown := sorted(set(target.labels) - source_classes)):
        raise ProbeError(
            f"data set {target.name!r}: classes that the training data sets lack: {', '.join(unknown)}: expected "
            f"the same names of classes"
        )

    def features(data: LabelledImages, adapt: bool = False) -> LabelledFeatures:
        say(f"features of {data.name}" + (", AdaBN" if adapt else ""))

        def compute() -> npt.NDArray[np.float32]:
            module = adabn(extractor, data.images, image_size, seed) if adapt else extractor
            return extract_features(module, data.images, image_size)

        variant = f"AdaBN {seed}" if adapt else ""
        key = content_key(extractor, data.images, image_size, variant) if cache else ""
        return data.features(cache.get(key, compute) if cache else compute())

    test = features(target)
    train = [features(source) for source in sources] if {Protocol.SOURCE, Protocol.KNN} & set(protocols) else []
    results: list[Result] = []
    absent: dict[str, str] = {}
    if Protocol.SOURCE in protocols:
        say("source: logistic regression")
        results.append(transfer("source", fit_logistic, train, test, seed))
        sites = [standardised(site) for site in train]
        results.append(
            transfer("source/standardised", fit_logistic, sites, standardised(test), seed, transductive=True)
        )
        if has_batch_norm(extractor):
            adapted = [features(source, adapt=True) for source in sources]
            results.append(
                transfer("source/AdaBN", fit_logistic, adapted, features(target, True), seed, transductive=True)
            )
        else:
            absent["source/AdaBN"] = "the extractor has no BatchNorm, so that there are no statistics to estimate again"
    if Protocol.TARGET in protocols:
        say("target: cross-validation")
        results.append(within(test, seed))
    if Protocol.FEW_SHOT in protocols:
        say("few-shot")
        results += [few_shot(test, shots, seed) for shots in SHOTS]
    if Protocol.KNN in protocols:
        say("knn")
        results.append(transfer("knn", fit_neighbours, train, test, seed))
    if Protocol.FINE_TUNE in protocols:
        say("fine-tune: the whole network")
        results.append(tuned(extractor, sources, target, image_size, seed, fine_tuning or FineTuning()))
    return Evaluation(
        sources={source.name: len(source.labels) for source in sources},
        target=target.name,
        n_target=len(test),
        target_units=int(test.units.max()) + 1,
        image_size=image_size,
        seed=seed,
        results=results,
        absent=absent,
        notes=_notes(extractor, test),
    )


def transfer(
    name: str,
    fit: Fit,
    sources: Sequence[LabelledFeatures],
    target: LabelledFeatures,
    seed: int,
    transductive: bool = False,
) -> Result:
    """Domain generalisation: fit on all labels of the sources, test once on the target.

    Beside it, cross-validation inside the pooled sources: the gap between the two is the shift between laboratories.
    """
    train = LabelledFeatures.pooled(sources)
    classes = sorted(set(train.labels))
    inside = [scores_of(fold.true, fold.probability, classes) for fold in _crossed(train, fit, classes, seed)]
    fitted = fit(train.x, train.labels)
    probability = fitted.probability(target.x, classes)
    return Result(
        name=name,
        transductive=transductive,
        scores=scores_of(target.labels, probability, classes),
        n_train=len(train),
        n_test=len(target),
        converged=fitted.converged,
        detail=_detail(target, probability, classes, seed),
        folds=Repeats.of(inside),
    )


def within(target: LabelledFeatures, seed: int) -> Result:
    """Cross-validation inside the target, no patient in both training and test: each image is tested once.

    The scores are those of all folds' predictions together, so that a fold without a rare class does no harm.
    """
    classes = sorted(set(target.labels))
    parts = list(_crossed(target, fit_logistic, classes, seed))
    probability = _together(parts, len(target), classes)
    return Result(
        name=Protocol.TARGET.value,
        transductive=False,
        scores=scores_of(target.labels, probability, classes),
        n_train=round(np.mean([part.n_train for part in parts])),
        n_test=len(target),
        converged=all(part.converged for part in parts),
        detail=_detail(target, probability, classes, seed),
        folds=Repeats.of([scores_of(part.true, part.probability, classes) for part in parts]),
    )


def neighbours_within(data: LabelledFeatures, seed: int) -> Scores:
    """k-NN inside one data set, by the folds and in the way of :func:`within`; it fits nothing, and is cheap."""
    classes = sorted(set(data.labels))
    parts = list(_crossed(data, fit_neighbours, classes, seed))
    return scores_of(data.labels, _together(parts, len(data), classes), classes)


def few_shot(target: LabelledFeatures, shots: int, seed: int, n_draws: int = DRAWS) -> Result:
    """Logistic regression on ``shots`` labels a class of the target, several seeded draws.

    Each draw halves the target by patient, takes its labels from one half (all of a class that has fewer there) and
    tests on the other.
    """
    classes = sorted(set(target.labels))
    scores, n_train, n_test, converged = [], [], [], True
    for draw in range(n_draws):
        support, tested = next(folds(target, 2, seed, f"few-shot {draw}"))
        generator = np.random.default_rng(stream_seed(seed, "few-shot labels", round_number=draw))
        order = generator.permutation(support)
        labels = np.asarray(target.labels)[order]
        chosen = target.take(np.concatenate([order[labels == name][:shots] for name in classes]))
        fitted, test = fit_logistic(chosen.x, chosen.labels), target.take(tested)
        scores.append(scores_of(test.labels, fitted.probability(test.x, classes), classes))
        n_train.append(len(chosen))
        n_test.append(len(test))
        converged &= fitted.converged
    draws = Repeats.of(scores)
    return Result(
        name=f"{Protocol.FEW_SHOT.value}/{shots}",
        transductive=False,
        scores=draws.mean,
        n_train=round(np.mean(n_train)),
        n_test=round(np.mean(n_test)),
        converged=converged,
        draws=draws,
    )


def tuned(
    extractor: nn.Module,
    sources: Sequence[LabelledImages],
    target: LabelledImages,
    image_size: int,
    seed: int,
    settings: FineTuning,
) -> Result:
    """Fine-tune the whole network on all labels of the sources, test once on the target."""
    labels = [label for source in sources for label in source.labels]
    classes = sorted(set(labels))
    images = np.concatenate([source.images for source in sources])
    model = fine_tune(extractor, images, labels, classes, image_size, seed, settings)
    probability = class_probabilities(model, target.images, image_size)
    return Result(
        name=Protocol.FINE_TUNE.value,
        transductive=False,
        scores=scores_of(target.labels, probability, classes),
        n_train=len(images),
        n_test=len(target.images),
        converged=True,
        detail=_detail(target, probability, classes, seed),
    )


def fit_neighbours(x: npt.NDArray, y: Sequence[str]) -> Fitted:
    """The 20 nearest features by cosine similarity s, each with the vote exp(s / 0.07) (Wu et al. 2018)."""
    model = KNeighborsClassifier(
        n_neighbors=min(NEIGHBOURS, len(x)),
        metric="cosine",
        weights=lambda distance: np.exp((1 - distance) / KNN_TEMPERATURE),
    )
    return Fitted(model.fit(x, np.asarray(y)))


class _Fold(NamedTuple):
    rows: npt.NDArray[np.intp]
    true: list[str]
    probability: npt.NDArray[np.float64]
    n_train: int
    converged: bool


def _crossed(data: LabelledFeatures, fit: Fit, classes: Sequence[str], seed: int) -> Iterator[_Fold]:
    for train_rows, test_rows in folds(data, N_FOLDS, seed, "cross-validation"):
        train, test = data.take(train_rows), data.take(test_rows)
        fitted = fit(train.x, train.labels)
        yield _Fold(test_rows, test.labels, fitted.probability(test.x, classes), len(train), fitted.converged)


def _together(parts: Sequence[_Fold], count: int, classes: Sequence[str]) -> npt.NDArray[np.float64]:
    """All folds' predictions, ``(count, len(classes))``: each image was tested in one of them."""
    probability = np.zeros((count, len(classes)))
    for part in parts:
        probability[part.rows] = part.probability
    return probability


def _detail(
    target: LabelledFeatures | LabelledImages, probability: npt.NDArray, classes: list[str], seed: int
) -> Detail:
    return Detail(
        classes=classes,
        confusion=confusion_of(target.labels, probability, classes),
        roc=roc_of(target.labels, probability, classes),
        intervals=bootstrap(target.labels, probability, classes, target.units, seed),
    )


def _notes(extractor: nn.Module, target: LabelledFeatures) -> list[str]:
    notes = []
    n_units = int(target.units.max()) + 1
    if n_units == len(target):
        notes.append(
            f"{target.name}: no patient has two images, or none is known: folds and intervals take each image for a "
            f"patient of its own, and are too optimistic where that is wrong"
        )
    elif n_units < FEW_UNITS:
        notes.append(f"{target.name}: {n_units} patients or groups only: the intervals are too narrow")
    if lacks_statistics(extractor):
        notes.append(
            "the extractor's BatchNorm statistics were never measured (mean 0, variance 1: an untrained extractor, or "
            "norm 'local'): compare source/AdaBN, which measures them at each site"
        )
    return notes
