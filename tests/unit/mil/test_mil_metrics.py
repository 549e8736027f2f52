"""Survival and classification figures, central and federated, against the reference values and slow loops."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import add

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mil_reference import KIRC, SMALL, Patients, graded
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, roc_auc_score

from fedad_components.mil.bins import SurvivalError
from fedad_components.mil.counts import Counts, CountsError, Grid
from fedad_components.mil.federated_metrics import (
    ClassTables,
    Confusion,
    RiskSetTable,
    RiskTimeHistogram,
    ScoreHistogram,
    class_histograms,
    macro_auc,
)
from fedad_components.mil.metrics import bag_scores
from fedad_components.mil.survival_metrics import (
    PairCounts,
    c_index,
    cumulative_dynamic_auc,
    kaplan_meier,
    log_rank,
    log_rank_of,
    pair_counts,
)

TIME, EVENT, RISK = SMALL["time"], SMALL["event"], SMALL["risk"]
DAYS = Grid(-0.5, 8191.5, 13)
"""One cell a day."""


def by_site(patients: Patients) -> list[Patients]:
    return [patients.take(patients.site == site) for site in np.unique(patients.site)]


def draw(seed: int, n: int, levels: int = 12) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """Times, events, risks, with ties in all."""
    generator = np.random.default_rng(seed)
    times = generator.integers(0, levels, n).astype(float)
    return times, generator.random(n) < 0.6, generator.integers(0, levels, n).astype(float)


def slow_pairs(times: npt.NDArray, events: npt.NDArray, risks: npt.NDArray) -> list[int]:
    found = [0, 0, 0]
    for i, j in combinations(range(len(times)), 2):
        for first, second in ((i, j), (j, i)):
            tied_time = times[first] == times[second] and not events[second]
            if events[first] and (times[first] < times[second] or tied_time):
                difference = risks[first] - risks[second]
                found[0 if difference > 0 else 1 if difference < 0 else 2] += 1
    return found


def test_small_reference() -> None:
    assert c_index(TIME, EVENT, RISK) == pytest.approx(SMALL["cindex"], abs=1e-12)
    assert pair_counts(TIME, EVENT, RISK).counts.tolist() == [SMALL["concordant"], SMALL["discordant"], SMALL["tied"]]
    curve = kaplan_meier(TIME, EVENT)
    assert curve.times.tolist() == SMALL["km_t"]
    assert curve.survival.tolist() == pytest.approx(SMALL["km_S"], abs=1e-12)
    assert curve.at_risk.tolist() == [6, 5, 4, 3, 1]
    test = log_rank(TIME, EVENT, SMALL["group"])
    assert (test.chi2, test.p) == pytest.approx((SMALL["logrank_chi2"], SMALL["logrank_p"]), abs=1e-12)
    dynamic = cumulative_dynamic_auc(TIME, EVENT, RISK, SMALL["cdauc_times"])
    assert dynamic.auc.tolist() == pytest.approx(SMALL["cdauc"], abs=1e-12)
    assert dynamic.mean == pytest.approx(SMALL["cdauc_mean"], abs=1e-12)


def test_kidney_cancer_reference() -> None:
    patients = graded()
    days, events, grade = patients.days, patients.events, patients.grade
    assert pair_counts(days, events, grade).counts.tolist() == KIRC["grade_counts"]
    assert c_index(days, events, grade) == pytest.approx(KIRC["grade_cindex"], abs=1e-12)
    assert c_index(days, events, patients.stage) == pytest.approx(KIRC["stage_cindex_n527"], abs=1e-12)
    dynamic = cumulative_dynamic_auc(days, events, grade, KIRC["cdauc_days"])
    assert dynamic.auc.tolist() == pytest.approx(KIRC["cdauc_grade"], abs=1e-9)
    assert dynamic.mean == pytest.approx(KIRC["cdauc_mean"], abs=1e-9)
    test = log_rank(days, events, grade > np.median(grade))
    assert test.chi2 == pytest.approx(KIRC["logrank_grade>median"][0], abs=1e-9)
    assert test.p == pytest.approx(KIRC["logrank_grade>median"][1], rel=1e-3)


def test_the_sum_of_sites_pairs_gives_the_stratified_c_index() -> None:
    told = [pair_counts(site.days, site.events, site.grade) for site in by_site(graded())]
    assert reduce(add, told).c_index == pytest.approx(KIRC["stratified_by_site_cindex"], abs=1e-12)


def test_curves_and_log_rank_from_the_sum_of_tables() -> None:
    patients = graded()
    high = patients.grade > np.median(patients.grade)
    told = [RiskSetTable.of(s.days, s.events, s.grade > np.median(patients.grade), 2, DAYS) for s in by_site(patients)]
    total = reduce(add, told)
    assert total.log_rank() == pytest.approx(log_rank(patients.days, patients.events, high), rel=1e-9)
    for group in (0, 1):
        pooled = kaplan_meier(patients.days[high == group], patients.events[high == group])
        at = total.kaplan_meier(group).at(pooled.times + 0.5)
        assert at.tolist() == pytest.approx(pooled.survival.tolist(), abs=1e-12)


def test_coarse_cells_move_curves_and_log_rank_little() -> None:
    patients = graded()
    middle = np.median(patients.grade)
    high, grid = patients.grade > middle, Grid(0.0, 4608.0, 6)  # 64 cells of 72 days
    total = reduce(add, [RiskSetTable.of(s.days, s.events, s.grade > middle, 2, grid) for s in by_site(patients)])
    assert total.log_rank().chi2 == pytest.approx(log_rank(patients.days, patients.events, high).chi2, rel=0.02)
    for group in (0, 1):
        pooled = kaplan_meier(patients.days[high == group], patients.events[high == group])
        curve = total.kaplan_meier(group)
        # Until half are left; a curve's tail rests on a few patients.
        early = curve.at_risk > 20
        difference = curve.survival[early] - pooled.at(np.nextafter(curve.times[early], 0))
        assert difference.min() >= -1e-12  # the highest curve that the counts allow
        assert difference.max() < 0.01


def test_tables_with_a_least_count_hold_no_small_cell() -> None:
    patients, grid = graded(), Grid(0.0, 4608.0, 8)
    told = [RiskSetTable.of(s.days, s.events, s.grade > 2, 2, grid, least=5) for s in by_site(patients)]
    for table in told:
        assert table.counts[table.counts > 0].min() >= 5
    total = reduce(add, told)
    assert total.counts.sum() == len(patients.days)
    assert total.log_rank().chi2 == pytest.approx(
        log_rank(patients.days, patients.events, patients.grade > 2).chi2, rel=0.15
    )
    asked = np.arange(100.0, 2500.0, 50.0)
    for group in (0, 1):
        here = (patients.grade > 2) == group
        pooled = kaplan_meier(patients.days[here], patients.events[here])
        assert np.abs(total.kaplan_meier(group).at(asked) - pooled.at(asked)).max() < 0.15


@pytest.mark.parametrize("depths", [(4, 6), (8, 10)])
def test_c_index_over_all_pairs_from_the_sum_of_histograms(depths: tuple[int, int]) -> None:
    patients = graded()
    # Stage with age-like noise, so that risks lie everywhere in the grid.
    noise = np.random.default_rng(0).normal(0, 0.5, len(patients.days))
    risks = np.clip((patients.stage + noise) / 4 - 1.5, -1.5, 0)
    grids = Grid(-1.5, 0.0, depths[0]), Grid(0.0, 4608.0, depths[1])
    told = [
        RiskTimeHistogram.of(patients.days[here], patients.events[here], risks[here], *grids)
        for here in (patients.site == site for site in np.unique(patients.site))
    ]
    total, pooled = reduce(add, told), c_index(patients.days, patients.events, risks)
    low, high = total.bounds() or (np.nan, np.nan)
    assert low <= pooled <= high
    assert high - low < (0.15, 0.015)[depths[1] == 10]
    assert total.c_index == pytest.approx(pooled, abs=(0.01, 0.001)[depths[1] == 10])


@given(st.integers(0, 10_000), st.integers(2, 25))
@settings(max_examples=60, deadline=None)
def test_pairs_by_a_slow_loop(seed: int, n: int) -> None:
    times, events, risks = draw(seed, n)
    assert pair_counts(times, events, risks).counts.tolist() == slow_pairs(times, events, risks)
    histogram = RiskTimeHistogram.of(times, events, risks, Grid(0.0, 16.0, 4), Grid(0.0, 16.0, 4))
    # One value a cell: all is known but pairs of one time, which Harrell's index compares if one was censored.
    concordant, discordant, tied = slow_pairs(times * 2 + ~events, events, risks)
    if concordant + discordant + tied:
        exact = RiskTimeHistogram.of(times * 2 + ~events, events, risks, Grid(0.0, 16.0, 4), Grid(0.0, 32.0, 5))
        assert exact.c_index == pytest.approx((concordant + tied / 2) / (concordant + discordant + tied))
        assert exact.c_index == pytest.approx(c_index(times, events, risks))
        low, high = histogram.bounds() or (np.nan, np.nan)
        assert low - 1e-12 <= c_index(times, events, risks) <= high + 1e-12


@given(st.integers(0, 10_000), st.integers(6, 40), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_log_rank_and_curve_by_slow_loops(seed: int, n: int, groups: int) -> None:
    times, events, _ = draw(seed, n)
    of = np.arange(n) % groups
    survival, excess, covariance = 1.0, np.zeros(groups), np.zeros((groups, groups))
    curve = kaplan_meier(times, events)
    for t in np.unique(times):
        at_risk, died = times >= t, (times == t) & events
        survival *= 1 - died.sum() / at_risk.sum()
        assert curve.at(t) == pytest.approx(survival)
        share = np.array([(at_risk & (of == g)).sum() for g in range(groups)]) / at_risk.sum()
        excess += np.array([(died & (of == g)).sum() for g in range(groups)]) - died.sum() * share
        if at_risk.sum() > 1:
            factor = died.sum() * (at_risk.sum() - died.sum()) / (at_risk.sum() - 1)
            covariance += factor * (np.diag(share) - np.outer(share, share))
    if np.linalg.matrix_rank(covariance[1:, 1:]) == groups - 1:
        expected = excess[1:] @ np.linalg.solve(covariance[1:, 1:], excess[1:])
        assert log_rank(times, events, of).chi2 == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_log_rank_of_two_groups_is_the_closed_form() -> None:
    """Whatever the rounding: the groups' covariance is singular, and an inverse of its rounding would be noise."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        at_risk = generator.integers(1, 300, (2, 160)) // [[1], [generator.integers(1, 20)]] + 1
        died = generator.binomial(at_risk, 0.02)
        d, n = died.sum(axis=0), at_risk.sum(axis=0)
        excess = np.sum(died[0] - d * at_risk[0] / n)
        variance = np.sum(d * (n - d) * at_risk[0] * at_risk[1] / (n**2 * (n - 1.0)))
        assert log_rank_of(died, at_risk).chi2 == pytest.approx(excess**2 / variance, rel=1e-9)


def test_dynamic_auc_without_censoring_is_an_auc() -> None:
    times, _, risks = draw(3, 60)
    dynamic = cumulative_dynamic_auc(times, np.ones(60), risks, [2.0, 5.0])
    expected = [roc_auc_score(times <= t, risks) for t in (2.0, 5.0)]
    assert dynamic.auc.tolist() == pytest.approx(expected)


@given(st.integers(0, 10_000), st.integers(4, 8))
@settings(max_examples=30, deadline=None)
def test_auc_from_score_histograms(seed: int, depth: int) -> None:
    generator = np.random.default_rng(seed)
    grid, sites = Grid(0.0, 1.0, depth), np.arange(400) % 3
    positive = generator.random(400) < 0.4
    scores = np.where(positive, generator.beta(3, 2, 400), generator.beta(2, 3, 400))
    total = reduce(add, [ScoreHistogram.of(scores[sites == s], positive[sites == s], grid) for s in range(3)])
    error = abs((total.auc or 0) - roc_auc_score(positive, scores))
    assert error <= (total.tolerance or 0) + 1e-12
    assert error <= 1 / grid.cells


def test_macro_auc_of_three_classes_over_two_sites() -> None:
    generator = np.random.default_rng(0)
    true = generator.integers(0, 3, 200)
    probability = generator.dirichlet(np.ones(3), 200) + np.eye(3)[true] * 0.5
    probability /= probability.sum(axis=1, keepdims=True)
    told = [class_histograms(true[rows], probability[rows]) for rows in (slice(0, 50), slice(50, 200))]
    total = [first + second for first, second in zip(*told, strict=True)]
    assert macro_auc(total) == pytest.approx(roc_auc_score(true, probability, multi_class="ovr"), abs=1 / 1024)
    assert macro_auc(class_histograms(true[true < 2], probability[true < 2])) is None


def test_auc_with_a_least_count() -> None:
    generator = np.random.default_rng(0)
    positive = np.arange(300) % 2
    scores = np.where(positive == 1, generator.beta(3, 2, 300), generator.beta(2, 3, 300))
    told = [ScoreHistogram.of(scores[rows], positive[rows], least=5) for rows in np.split(np.arange(300), 3)]
    for histogram in told:
        assert histogram.counts[histogram.counts > 0].min() >= 5
    assert reduce(add, told).auc == pytest.approx(roc_auc_score(positive, scores), abs=0.05)


@given(st.integers(0, 10_000), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_confusion_is_scikit_learns(seed: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    true, predicted = generator.integers(0, classes, (2, 30))
    total = Confusion.of(true[:12], predicted[:12], classes) + Confusion.of(true[12:], predicted[12:], classes)
    assert total.error == pytest.approx((true != predicted).mean())
    if set(predicted) <= set(true):  # else scikit-learn warns
        assert total.balanced_accuracy == pytest.approx(balanced_accuracy_score(true, predicted))
    assert total.kappa == pytest.approx(cohen_kappa_score(true, predicted))


def test_central_scores_of_bags() -> None:
    probability = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7], [0.4, 0.3, 0.3]])
    true, classes = ["a", "b", "c", "c", "b"], ["a", "b", "c"]
    scores = bag_scores(true, probability, classes)
    predicted = ["a", "b", "b", "c", "a"]
    assert scores.error == pytest.approx(0.4)
    assert scores.balanced_accuracy == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert scores.kappa == pytest.approx(cohen_kappa_score(true, predicted))
    assert scores.auc == pytest.approx(roc_auc_score(true, probability, multi_class="ovr"))
    alone = bag_scores(["a", "a"], probability[[0, 4]], classes)
    assert (alone.auc, alone.kappa, alone.error) == (None, None, 0)


def test_nothing_is_told_of_few() -> None:
    assert pair_counts(TIME, EVENT, RISK, least=5).counts.tolist() == [0, 0, 0]
    assert pair_counts(TIME, EVENT, RISK, least=4).counts.sum() == 14
    few = ScoreHistogram.of([0.2, 0.4, 0.9], [0, 0, 1], least=2)
    assert few.counts.sum(axis=1).tolist() == [2, 0]
    assert (few.auc, few.tolerance) == (None, None)


def test_patients_of_a_rare_class_follow_from_no_table() -> None:
    """Of 7, 6 and 2 patients: nor by subtraction, as 8 'not of the first' less 6 of the second."""
    true = np.repeat([0, 1, 2], [7, 6, 2])
    probability = np.random.default_rng(0).dirichlet([1, 1, 1], len(true))
    told = ClassTables.of(true, probability, Grid(0.0, 1.0, 4), least=5)
    assert told.confusion.counts.sum(axis=1).tolist() == [7, 6, 0]
    assert [table.counts.sum(axis=1).tolist() for table in told.histograms] == [[6, 7], [7, 6], [13, 0]]
    assert [int(pairs.counts.sum()) for pairs in told.pairs] == [42, 42, 0]
    without = ClassTables.of(true[:13], probability[:13], Grid(0.0, 1.0, 4), least=5)
    for one, other in zip(told.histograms + told.pairs, without.histograms + without.pairs, strict=True):
        assert one.counts.tolist() == other.counts.tolist()
    assert told.pairs[0].c_index == pytest.approx(roc_auc_score(true[:13] == 0, probability[:13, 0]))


def test_without_pairs_there_is_no_figure() -> None:
    with pytest.raises(SurvivalError, match="no pair"):
        c_index([1.0, 2.0], [0, 0], [1.0, 2.0])
    assert PairCounts.of(0, 0, 0).c_index is None
    empty = RiskTimeHistogram.of([1.0, 2.0], [0, 0], [0.5, 0.5], Grid(0, 1, 2), Grid(0, 4, 2))
    assert (empty.c_index, empty.bounds()) == (None, None)
    nobody = Confusion.of([], [], 2)
    assert (nobody.error, nobody.balanced_accuracy, nobody.kappa) == (None, None, None)
    with pytest.raises(SurvivalError, match="two or more"):
        log_rank(TIME, EVENT, [1] * 6)


@pytest.mark.parametrize(
    ("at", "says"),
    [([], "ascending"), ([5.0, 4.0], "ascending"), ([1.0], "a death by then"), ([9.0], "a patient who lived longer")],
)
def test_times_at_which_there_is_no_auc(at: list[float], says: str) -> None:
    with pytest.raises(SurvivalError, match=says):
        cumulative_dynamic_auc(TIME, EVENT, RISK, at)


def test_a_death_after_all_others_were_censored_has_no_weight() -> None:
    with pytest.raises(SurvivalError, match="no weight"):
        cumulative_dynamic_auc([1.0, 5.0, 6.0], [1, 1, 0], [3.0, 2.0, 1.0], [2.0], censoring=([1.0, 3.0], [1, 0]))


def test_bad_risks_groups_and_scores() -> None:
    with pytest.raises(SurvivalError, match="risks"):
        c_index(TIME, EVENT, [float("nan")] * 6)
    with pytest.raises(SurvivalError, match="groups"):
        log_rank(TIME, EVENT, [0.5] * 6)
    with pytest.raises(SurvivalError, match="group 2: expected 0 to 1"):
        RiskSetTable.of(TIME, EVENT, [0, 1, 2, 0, 1, 2], 2, DAYS)
    with pytest.raises(CountsError, match="scores"):
        ScoreHistogram.of([-0.1], [1])
    with pytest.raises(CountsError, match="numbered 0 to 1"):
        Confusion.of([0, 2], [0, 1], 2)
    with pytest.raises(CountsError, match="cannot be added"):
        Confusion.of([0], [0], 2) + Confusion.of([0], [0], 3)


@pytest.mark.parametrize(
    "counts",
    [
        PairCounts.of(1, 2, 3),
        Confusion.of([0, 1], [1, 1], 2),
        ScoreHistogram.of([0.2, 0.7], [0, 1], Grid(0, 1, 2)),
        RiskSetTable.of(TIME, EVENT, SMALL["group"], 2, Grid(0, 16, 3)),
        RiskTimeHistogram.of(TIME, EVENT, RISK, Grid(0, 1, 2), Grid(0, 16, 3)),
    ],
    ids=lambda counts: type(counts).__name__,
)
def test_counts_travel_and_add(counts: Counts) -> None:
    sent = type(counts).from_dict(counts.as_dict())
    assert (sent + counts).counts.tolist() == (2 * counts.counts).tolist()
    assert sent.grids == counts.grids
