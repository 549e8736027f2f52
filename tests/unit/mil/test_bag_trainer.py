"""HistoFL's local training, and its experiment in one process: against loops that are written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from fedad_components.algorithms import initial_state, parse_config
from fedad_components.fedsd.trainer import TrainingError
from fedad_components.mil.bags import Bag, Outcome, order_of
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.model import GatedAttentionMIL
from fedad_components.mil.monitor import FederatedValidation
from fedad_components.mil.private import PrivateBagTrainer
from fedad_components.mil.site_bags import SiteBags
from fedad_components.mil.splits import split_patients
from fedad_components.mil.tables import event_table, score_tables
from fedad_components.mil.trainer import BagTrainer
from fedad_components.privacy.units import UnitsError
from fedad_components.reports import ReportError, ValidationCounts
from fedad_components.simulation import Simulation

WIDTH = 8


def drawn(
    outcomes: Mapping[str, Outcome | int], severity: Mapping[str, float], seed: int, width: int = WIDTH
) -> list[Bag]:
    """Synthetic features: 3 to 9 patches a patient, whose first feature is the patient's severity plus noise."""
    generator = np.random.default_rng(seed)
    bags = []
    for patient, outcome in outcomes.items():
        features = generator.normal(size=(int(generator.integers(3, 10)), width)).astype(np.float32)
        features[:, 0] += severity[patient]
        bags.append(Bag(patient, patient, torch.from_numpy(features), outcome))
    return bags


def configuration(**sections: Any) -> HistoFLConfig:
    data = {
        "algorithm": "histofl",
        "model": {"in_features": WIDTH, "dropout": 0.0},
        "counts": {"min_cell": 1},
        "stopping": {"patience": 0},
        **sections,
    }
    config = parse_config(data)
    assert isinstance(config, HistoFLConfig)
    return config


def classified(site: int, patients: int = 24) -> SiteBags:
    names = {f"s{site}p{number}": number % 2 for number in range(patients)}
    return SiteBags.of(drawn(names, {name: 2.0 * label for name, label in names.items()}, seed=site))


def survivors(site: int, patients: int = 40) -> SiteBags:
    generator = np.random.default_rng(site)
    severity = {f"s{site}p{number}": float(generator.normal()) for number in range(patients)}
    outcomes = {
        name: Outcome(float(np.ceil(generator.exponential(700 * np.exp(-value)))), bool(generator.random() < 0.6))
        for name, value in severity.items()
    }
    return SiteBags.of(drawn(outcomes, severity, seed=site))


def test_a_round_is_a_loop_of_adam_over_single_bags() -> None:
    config = configuration(training={"epochs": 2})
    bags = classified(0)
    theta = initial_state(config)
    result = BagTrainer(config, bags, "a", "cpu").train_round(theta, 0.0, 3)
    model = GatedAttentionMIL(WIDTH, 2, dropout=0.0)
    model.load_state_dict(theta)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, weight_decay=1e-5)
    split = split_patients(bags.labels, config.seed, "a", range(2))
    rows = [row for row in bags.rows if row.patient in split.train]
    for epoch in (6, 7):
        for position in order_of([row.label for row in rows], config.seed, "a", epoch):
            bag = bags.bag(rows[position])
            assert isinstance(bag.target, int)
            loss = F.cross_entropy(model(bag.features).logits[None], torch.tensor([bag.target]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert result.n_samples == len(rows) == 16
    for name, tensor in model.state_dict().items():
        if name != "score.bias":  # softmax does not feel it: its gradient is rounding, of which Adam makes whole steps
            torch.testing.assert_close(result.update[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_counts_of_a_validation_give_its_auc() -> None:
    config = configuration(counts={"min_cell": 1, "score_depth": 12})
    trainer = BagTrainer(config, classified(1, 80), "a", "cpu")
    for number in range(3):
        result = trainer.train_round(trainer.model.state_dict(), 0.0, number)
    trainer.model.load_state_dict(result.update)
    rows = [row for row in trainer.bags.rows if row.owner in trainer.split.validation]
    with torch.no_grad():
        trainer.model.eval()
        scores = [float(trainer.model(trainer.bags.bag(row).features).logits.softmax(0)[1]) for row in rows]
    counts = ValidationCounts.model_validate(trainer.validate())
    table = score_tables([counts], config)[1]
    assert table.auc == pytest.approx(roc_auc_score([row.target for row in rows], scores), abs=table.tolerance or 0)


def test_with_a_least_count_the_auc_is_that_of_each_sites_patients() -> None:
    config = configuration(counts={"min_cell": 5})
    told, areas = {}, []
    for site, seed in (("a", 1), ("b", 2)):
        trainer = BagTrainer(config, classified(seed, 80), site, "cpu")
        told[site] = ValidationCounts.model_validate(trainer.validate())
        config.check_counts(None, told[site], len(trainer.train_rows))
        rows = [row for row in trainer.bags.rows if row.owner in trainer.split.validation]
        with torch.no_grad():
            scores = [float(trainer.model(trainer.bags.bag(row).features).logits.softmax(0)[1]) for row in rows]
        areas.append(roc_auc_score([row.target for row in rows], scores))
    found = FederatedValidation(config).update(0, {}, told)
    assert found is not None
    assert found.auc == pytest.approx(np.mean(areas))  # both sites have as many pairs
    with pytest.raises(ReportError, match=r"validation\.pairs: expected 6 counts, found none"):
        config.check_counts(None, told["a"].model_copy(update={"pairs": None}), None)


THREE = configuration(target={"classes": ["a", "b", "c"]}, counts={"min_cell": 2, "score_depth": 1})
HONEST = {
    "patients": 6,
    "confusion": [3, 0, 0, 1, 2, 0, 0, 0, 0],
    "scores": [[3, 0, 0, 3], [3, 0, 0, 3], [6, 0, 0, 0]],
    "pairs": [9, 0, 0, 8, 1, 0, 0, 0, 0],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"patients": 1 << 31}, "2147483648, with 20 training bags"),
        ({"confusion": [3, 0, 0, 1, 3, 0, 0, 0, 0]}, r"validation\.confusion: of 7 patients, expected 6"),
        ({"patients": 0, "confusion": [0] * 9}, r"scores of class 0: expected 0 patients that are not, and 0"),
        ({"scores": [[5, 0, 0, 3], [3, 0, 0, 3], [6, 0, 0, 0]]}, "scores of class 0: expected 3 patients that are not"),
        ({"scores": [[3, 0, 0, 3], [3, 0, 0, 3], [6, 0, 0, 2]]}, "scores of class 2: expected 6 .* and 0 that are"),
        ({"pairs": [1 << 31, 0, 0, 8, 1, 0, 0, 0, 0]}, "pairs of class 0: expected 9"),
        ({"pairs": [9, 0, 0, 8, 1, 0, 9, 0, 0]}, "pairs of class 2: expected 0"),
    ],
)
def test_classes_tables_have_to_be_of_the_same_patients(change: dict[str, Any], says: str) -> None:
    THREE.check_counts(None, ValidationCounts.model_validate(HONEST), 20)
    with pytest.raises(ReportError, match=says):
        THREE.check_counts(None, ValidationCounts.model_validate(HONEST | change), 20)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pairs": [1 << 31, 0, 0]}, "2147483648 pairs, and 5 patients make 10"),
        ({"patients": 0}, "10 pairs, and 0 patients make 0"),
        ({"patients": 21}, "21, with 20 training bags"),
        ({"scores": []}, r"validation\.scores: expected none"),
        ({"confusion": []}, r"validation\.confusion: expected no counts, found a table of 0"),
    ],
)
def test_a_site_weighs_as_many_pairs_as_its_patients_make(change: dict[str, Any], says: str) -> None:
    config, honest = configuration(target={"kind": "survival"}), {"patients": 5, "pairs": [5, 4, 1]}
    config.check_counts(None, ValidationCounts.model_validate(honest), 20)
    with pytest.raises(ReportError, match=says):
        config.check_counts(None, ValidationCounts.model_validate(honest | change), 20)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 20), (10, 13)])
def test_no_site_validates_more_patients_than_it_trains_on(sizes: tuple[int, int]) -> None:
    names = [f"{label}-{number}" for label, size in enumerate(sizes) for number in range(size)]
    split = split_patients({name: int(name[0]) for name in names}, 0, "a", range(2))
    assert len(split.validation) <= len(split.train)


def test_slides_of_a_patient_stay_together_and_are_validated_as_one() -> None:
    bags = [
        Bag(f"{name}-{slide}", name, torch.randn(4, WIDTH), number % 2)
        for number, name in enumerate(f"p{number}" for number in range(20))
        for slide in range(2)
    ]
    trainer = BagTrainer(configuration(), SiteBags.of(bags), "a", "cpu")
    assert len(trainer.train_rows) == 2 * len(trainer.split.train)
    assert sum(trainer.validate()["confusion"]) == len(trainer.split.validation)


def test_a_survey_counts_the_events_and_leaves_the_weights() -> None:
    config = configuration(target={"kind": "survival", "bins": 3}, counts={"min_cell": 4})
    bags, theta = survivors(0), initial_state(config)
    trainer = BagTrainer(config, bags, "a", "cpu")
    result = trainer.train_round(theta, 0.0, 0)
    assert all(torch.equal(result.update[name], theta[name]) for name in theta)
    events = sum(row.label for row in trainer.train_rows)
    assert result.events is not None
    assert sum(result.events) == events
    assert all(count == 0 or count >= 4 for count in result.events)
    config.check_counts(result.events, None, result.n_samples)
    with pytest.raises(ReportError, match=f"events: {events} of {events - 1} training bags"):
        config.check_counts(result.events, None, events - 1)
    assert event_table(result.events, config).grids[0].high == 4096.0
    with pytest.raises(TrainingError, match="brings no edges"):
        trainer.train_round(theta, 0.0, 1)


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        (None, "expected 2 edges in round 1"),
        ([5.0], "expected 2 edges in round 1"),
        ([5.0, 5.0], "ascending"),
        ([5.0, 101.0], r"101 is beyond target\.horizon 100"),
    ],
)
def test_a_server_sends_edges_that_the_survey_can_find(edges: list[float] | None, says: str) -> None:
    config = configuration(target={"kind": "survival", "bins": 3, "horizon": 100.0})
    config.check_edges(None, 0)
    config.check_edges([5.0, 99.0], 1)
    with pytest.raises(ReportError, match=says):
        config.check_edges(edges, 1)
    agreed = configuration(target={"kind": "survival", "bins": 3, "edges": [5.0, 200.0], "horizon": 100.0})
    agreed.check_edges(None, 1)


def test_survival_over_three_sites_learns_who_dies_early() -> None:
    config = configuration(
        target={"kind": "survival", "bins": 4},
        training={"epochs": 4, "learning_rate": 1e-3},
        counts={"min_cell": 1, "time_depth": 8},
    )
    trainers = {f"s{site}": BagTrainer(config, survivors(site, 60), f"s{site}", "cpu") for site in range(3)}
    simulation = Simulation(config, trainers)
    records = [simulation.run_round() for _ in range(7)]
    assert records[0].validation is None
    assert records[0].instability == 0.0
    pooled = [
        min(row.target.time, 4096.0)
        for trainer in trainers.values()
        for row in trainer.train_rows
        if isinstance(row.target, Outcome) and row.target.event
    ]
    edges = simulation.bin_edges
    assert edges is not None
    assert edges == pytest.approx(np.quantile(pooled, [0.25, 0.5, 0.75]), abs=3 * 4096 / 256)
    indices = [record.validation.c_index for record in records[1:] if record.validation]
    assert None not in indices
    assert max(value for value in indices if value) > 0.65 > 0.6 > (indices[0] or 0) - 0.3
    best = max(range(len(indices)), key=lambda number: indices[number] or 0)
    assert [bool(record.validation and record.validation.best) for record in records][1 + best]
    assert simulation.best.keys() == simulation.theta.keys()


def test_it_stops_when_no_round_is_better() -> None:
    config = configuration(stopping={"patience": 2, "min_rounds": 4}, training={"learning_rate": 1e-9})
    simulation = Simulation(config, {site: BagTrainer(config, classified(0), site, "cpu") for site in ("a", "b")})
    for number in range(4):
        assert not simulation.stopped
        record = simulation.run_round()
        assert record.validation is not None
        assert record.validation.best is (number == 0)
    assert simulation.stopped


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 28 / (28 + 16)), ("uniform", 0.5)])
def test_weights_of_the_mean(weighting: str, expected: float) -> None:
    config = configuration(weighting=weighting)
    trainers = {
        "a": BagTrainer(config, classified(0, 40), "a", "cpu"),
        "b": BagTrainer(config, classified(1), "b", "cpu"),
    }
    theta = initial_state(config)
    a, b = (BagTrainer(config, trainers[site].bags, site, "cpu").train_round(theta, 0.0, 0) for site in ("a", "b"))
    assert (a.n_samples, b.n_samples) == (28, 16)
    simulation = Simulation(config, trainers)
    simulation.run_round()
    for name, tensor in simulation.theta.items():
        torch.testing.assert_close(tensor, expected * a.update[name] + (1 - expected) * b.update[name])


def private(**sections: Any) -> HistoFLConfig:
    return configuration(
        privacy={"mode": "dp_sgd", "units_per_step": 8, "noise_multiplier": 1.0},
        training={"epochs": 1},
        **sections,
    )


def units_of(bags: SiteBags) -> dict[int, np.ndarray]:
    return {7 * position: np.array([position]) for position in range(len(bags.rows))}


def test_under_dp_sgd_nothing_is_told_and_the_steps_are_public() -> None:
    bags = classified(0, 40)
    trainer = PrivateBagTrainer(private(), bags, "a", units_of(bags), 30, "cpu")
    result = trainer.train_round(initial_state(private()), 0.0, 0)
    assert (result.n_samples, result.losses, result.validation, result.events) == (None, [], None, None)
    assert trainer.steps_per_round == 30 // 8
    assert any((result.update[name] != tensor).any() for name, tensor in initial_state(private()).items())


def test_a_patient_decides_about_nobody_elses_part_or_dropout() -> None:
    bags = classified(0, 40)
    fewer = SiteBags(bags.rows[1:], bags.read)
    config = private(model={"in_features": WIDTH, "dropout": 0.5})
    whole, without = (PrivateBagTrainer(config, given, "a", units_of(given), 30, "cpu") for given in (bags, fewer))
    gone = {bags.rows[0].owner}
    assert [part - gone for part in whole.split] == list(without.split)
    for trainer in (whole, without):
        trainer.model.train()
    row = without.train_rows[-1]
    losses = []
    for trainer, others in ((whole, 2), (without, 0)):
        targets = trainer._targets(())
        for position in range(others):  # drawn before it in one of the two
            trainer._unit_loss(position, targets, 5)
        losses.append(trainer._unit_loss(trainer.train_rows.index(row), targets, 5).item())
    assert losses[0] == losses[1]


def test_a_unit_of_two_bags_is_refused() -> None:
    bags = classified(0)
    units = {0: np.array([0, 1]), **{number: np.array([number]) for number in range(2, len(bags.rows))}}
    with pytest.raises(UnitsError, match="one bag a patient"):
        PrivateBagTrainer(private(), bags, "a", units, 30, "cpu")


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"target": {"kind": "survival"}, "privacy": {"mode": "dp_sgd"}}, "target.edges"),
        ({"training": {"balanced": True}, "privacy": {"mode": "dp_sgd"}}, "training.balanced"),
        ({"target": {"kind": "survival", "bins": 3, "edges": [5.0, 4.0]}}, "ascending"),
        ({"target": {"classes": ["a"]}}, "two different"),
    ],
)
def test_a_configuration_that_cannot_be_kept_is_refused(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        configuration(**sections)
