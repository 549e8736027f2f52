from __future__ import annotations

import statistics

import numpy as np
import pytest
from mil_reference import KIRC, SMALL, graded
from sklearn.metrics import auc

from fedad_components.mil.bins import SurvivalError
from fedad_components.mil.counts import Grid
from fedad_components.mil.evaluate import ALL_SITES, EvaluationError, over_sites, table
from fedad_components.mil.evaluate_classes import ClassCounts, Classified, Roc
from fedad_components.mil.evaluate_survival import (
    SurvivalCounts,
    Survived,
    group_names,
    risk_cuts,
    risk_cuts_of_counts,
    risk_groups,
)
from fedad_components.mil.federated_metrics import Confusion, RiskSetTable, RiskTimeHistogram, class_histograms
from fedad_components.mil.figures import mean_sensitivity
from fedad_components.mil.metrics import bag_scores
from fedad_components.mil.survival_metrics import PairCounts
from fedad_components.over_seeds import Estimate

TIMES, EVENTS = np.array(SMALL["time"]), np.array(SMALL["event"], dtype=bool)


def classified(
    seed: int = 0, site: str = "north", n: int = 60, classes: int = 3, method: str = "central"
) -> Classified:
    generator = np.random.default_rng([seed, len(site), n])
    true = generator.integers(0, classes, n)
    scores = np.exp(np.eye(classes)[true] + generator.normal(size=(n, classes)))
    return Classified(method, site, seed, true, scores / scores.sum(axis=1, keepdims=True))


def survived(seed: int = 0, site: str = "north", n: int = 50) -> Survived:
    generator = np.random.default_rng([seed, len(site), n])
    risks = -4 * generator.random(n)
    times = np.ceil(generator.exponential(20, n) * np.exp(-risks - 2))
    return Survived("central", site, seed, times, generator.random(n) < 0.6, risks, (-2.5, -1.5))


def test_curves_have_the_references_steps() -> None:
    """One group holds all patients, the other none."""
    found = Survived("central", "north", 0, TIMES, EVENTS, np.array(SMALL["risk"]), (10.0,)).groups()
    low, high = found.curves
    assert high is None
    assert found.log_rank is None
    assert low is not None
    assert low.times.tolist() == SMALL["km_t"]
    assert low.survival == pytest.approx(SMALL["km_S"])


def test_log_rank_and_c_index_are_the_references() -> None:
    groups = np.array(SMALL["group"], dtype=float)
    found = Survived("central", "north", 0, TIMES, EVENTS, groups, (0.5,)).groups()
    assert found.log_rank is not None
    assert found.log_rank.chi2 == pytest.approx(SMALL["logrank_chi2"])
    assert found.log_rank.p == pytest.approx(SMALL["logrank_p"])
    run = Survived("central", "north", 0, TIMES, EVENTS, np.array(SMALL["risk"]), (0.4,))
    assert run.scores() == {"c-index": pytest.approx(SMALL["cindex"])}


def test_groups_above_the_median_of_kidney_cancer() -> None:
    patients = graded()
    cuts = risk_cuts(patients.grade)
    found = Survived("central", "all", 0, patients.days, patients.events, patients.grade, cuts).groups()
    chi2, p = KIRC["logrank_grade>median"]
    assert found.log_rank is not None
    assert found.log_rank.chi2 == pytest.approx(chi2)
    assert found.log_rank.p == pytest.approx(p, rel=0.01)


def test_numbers_at_risk_are_counted() -> None:
    run = survived()
    groups = risk_groups(run.risks, run.cuts)
    at = np.array([0, 1, 12, 12.5, 24, 1e6])
    slow = [[int(((run.times >= t) & (groups == group)).sum()) for t in at] for group in range(3)]
    assert run.groups().at_risk(at).tolist() == slow
    grid = Grid(0.0, 64.0, 4)
    counts = SurvivalCounts(
        "central", "north", 0, PairCounts.of(1, 0, 0), RiskSetTable.of(run.times, run.events, groups, 3, grid), "cut"
    )
    at_edges = [[int(((run.times >= t) & (groups == group)).sum()) for t in (0, 4, 24)] for group in range(3)]
    assert counts.groups().at_risk([0, 4, 24]).tolist() == at_edges
    assert counts.groups().at_risk([5.9]).tolist() == counts.groups().at_risk([4]).tolist()


def test_counts_on_a_grid_that_tells_all_times_apart_give_the_patients_figures() -> None:
    run = survived()
    time_grid, risk_grid = Grid(0.0, 1024.0, 10), Grid(-4.0, 0.0, 6)
    assert run.times.max() < 1024
    pairs = RiskTimeHistogram.of(run.times, run.events, run.risks, risk_grid, time_grid)
    counts = SurvivalCounts(
        "central",
        "north",
        0,
        pairs,
        RiskSetTable.of(run.times, run.events, risk_groups(run.risks, run.cuts), 3, time_grid),
        "cut",
    )
    exact, binned = run.groups(), counts.groups()
    assert counts.patients == run.patients
    assert counts.scores()["c-index"] == pytest.approx(run.scores()["c-index"], abs=0.03)
    assert exact.log_rank is not None
    assert binned.log_rank is not None
    assert binned.log_rank.p == pytest.approx(exact.log_rank.p)
    for a, b in zip(exact.curves, binned.curves, strict=True):
        assert a is not None
        assert b is not None
        assert b.at(a.times + 1) == pytest.approx(a.survival)


def test_cuts_are_quantiles_of_training_risks() -> None:
    risks = -4 * np.random.default_rng(0).random(301)
    assert risk_cuts(risks) == (np.median(risks),)
    assert risk_cuts(risks, 4) == pytest.approx(np.quantile(risks, [0.25, 0.5, 0.75]))
    assert np.bincount(risk_groups(risks[:300], risk_cuts(risks[:300], 3))).tolist() == [100, 100, 100]
    grid = Grid(-4.0, 0.0, 5)
    table_of_sites = RiskTimeHistogram.of(np.ones(301), np.ones(301), risks, grid, Grid(0.0, 2.0, 1))
    for cut, exact in zip(risk_cuts_of_counts(table_of_sites, 4), risk_cuts(risks, 4), strict=True):
        assert 0 <= cut - exact <= grid.width
        assert cut in grid.edges
    assert group_names(2) == ("low risk", "high risk")
    assert len(group_names(5)) == 5


@pytest.mark.parametrize(
    ("risks", "groups"), [([], 2), ([1.0, np.nan], 2), ([1.0, 2.0], 1), ([1.0, 1.0, 1.0, 1.0, 2.0], 3)]
)
def test_cuts_that_cannot_be_made_are_refused(risks: list[float], groups: int) -> None:
    with pytest.raises(SurvivalError, match="expected"):
        risk_cuts(risks, groups)


def test_scores_are_those_of_the_whole() -> None:
    run = classified()
    expected = bag_scores([str(c) for c in run.true], run.probability, ["0", "1", "2"])
    assert run.scores() == {
        "AUC": pytest.approx(expected.auc),
        "balanced accuracy": pytest.approx(expected.balanced_accuracy),
        "error": pytest.approx(expected.error),
        "κ": pytest.approx(expected.kappa),
    }
    counts = ClassCounts(
        "central", "north", 0, run.confusion, tuple(class_histograms(run.true, run.probability, Grid(0.0, 1.0, 5)))
    )
    for roc, binned, histogram in zip(run.rocs(), counts.rocs(), counts.histograms, strict=True):
        assert roc is not None
        assert binned is not None
        assert auc(binned.false_positive_rate, binned.true_positive_rate) == pytest.approx(binned.auc)
        assert (binned.false_positive_rate[[0, -1]].tolist(), binned.true_positive_rate[[0, -1]].tolist()) == (
            [0, 1],
            [0, 1],
        )
        assert abs(binned.auc - roc.auc) <= histogram.tolerance
    assert counts.scores()["error"] == run.scores()["error"]


def test_a_class_that_does_not_occur_has_no_auc() -> None:
    run = Classified("central", "north", 0, np.array([0, 0, 1]), np.eye(3)[[0, 1, 1]])
    assert [roc is None for roc in run.rocs()] == [False, False, True]
    assert run.scores()["AUC"] is None
    assert run.scores()["balanced accuracy"] == 0.75
    empty = ClassCounts("central", "north", 0, Confusion.of([], [], 2), tuple(class_histograms([], np.zeros((0, 2)))))
    assert set(empty.scores().values()) == {None}


def test_all_sites_are_their_patients_together() -> None:
    north, south = classified(site="north", n=40), classified(site="southern", n=7)
    (whole,) = over_sites([north, south])
    pooled = np.concatenate([north.probability, south.probability])
    assert (whole.site, whole.patients) == (ALL_SITES, 47)
    assert whole.scores() == Classified("", "", 0, np.concatenate([north.true, south.true]), pooled).scores()
    parts = [survived(site="north"), survived(site="southern", n=9)]
    (risks,) = over_sites(parts)
    assert risks.groups().at_risk([0]).sum() == 59
    assert risks.cuts == parts[0].cuts


def test_what_cannot_be_added_up_is_refused() -> None:
    run = classified()
    counts = ClassCounts("central", "south", 0, run.confusion, tuple(class_histograms(run.true, run.probability)))
    with pytest.raises(EvaluationError, match="central, north, seed 0: comes twice"):
        table([run, run])
    with pytest.raises(EvaluationError, match=r"central, south, seed 0.*Classified and ClassCounts"):
        table([run, counts])  # type: ignore[list-item]
    first = survived()
    other = Survived("central", "south", 0, first.times, first.events, first.risks, (-1.0,))
    with pytest.raises(EvaluationError, match="cut at"):
        table([first, other])


@pytest.mark.parametrize(
    ("true", "probability"),
    [([], np.zeros((0, 2))), ([0, 1], np.ones((3, 2))), ([0, 2], np.ones((2, 2))), ([0, 1], np.full((2, 2), np.nan))],
)
def test_bad_predictions_are_refused_by_name(true: list[int], probability: np.ndarray) -> None:
    with pytest.raises(EvaluationError, match="central, north, seed 3"):
        Classified("central", "north", 3, np.array(true, dtype=np.int64), probability)
    with pytest.raises(EvaluationError, match="central, north, seed 3"):
        Survived("central", "north", 3, np.array(true, float), np.array(true) > 0, probability[:, 0], ())


def test_the_table_has_means_over_seeds_by_site_and_of_all() -> None:
    runs = [classified(seed, site, n) for seed in range(3) for site, n in (("north", 40), ("southern", 20))]
    rows = table(runs)
    assert [(row.site, row.seeds, row.patients) for row in rows] == [
        ("north", 3, 40),
        ("southern", 3, 20),
        (ALL_SITES, 3, 60),
    ]
    errors = [run.scores()["error"] for run in runs if run.site == "north"]
    found = rows[0].scores["error"]
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(errors))  # type: ignore[arg-type]
    assert found.sd == pytest.approx(statistics.stdev(errors))  # type: ignore[type-var]
    assert [row.site for row in table([classified()])] == ["north"]


def test_a_score_that_some_seeds_lack_says_in_how_many_it_is() -> None:
    assert Estimate.of_defined([None, None]) is None
    assert Estimate.of_defined([0.5, None, 0.7]) == (pytest.approx(0.6), pytest.approx(0.1414, abs=1e-4), 2)
    assert str(Estimate.of([0.5])) == "0.500"
    assert str(Estimate.of([0.5, 0.7])) == "0.600 ± 0.141"


def test_curves_of_seeds_are_averaged_upwards() -> None:
    step = Roc(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.6, 1.0]), 0.8)
    line = Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.5)
    mean = mean_sensitivity([step, line])
    assert mean[[0, 200, 400]] == pytest.approx([0.3, 0.65, 1.0])
