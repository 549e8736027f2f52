from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedad_components.benchmark.results import ResultsError, Row
from fedad_components.benchmark.statistics import StatisticsError, compare, hedges, holm, paired, wilcoxon


def row(method: str, seed: int, f1: float, target: str = "t", protocol: str = "source") -> Row:
    return Row(
        method=method, seed=seed, target=target, protocol=protocol, transductive=False, metrics={"f1": f1}, steps=1,
        images=1, seconds=1.0, bytes=1,
    )  # fmt: skip


def test_holm_on_the_textbook_example() -> None:
    """Four hypotheses: .005 is multiplied by 4, .01 by 3, .03 by 2, and .04 may not fall below the one before it."""
    adjusted = holm({"h1": 0.01, "h2": 0.04, "h3": 0.03, "h4": 0.005})
    assert adjusted == pytest.approx({"h1": 0.03, "h2": 0.06, "h3": 0.06, "h4": 0.02})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def by_all_signs(d: list[float]) -> float:
    """Wilcoxon's p by its definition: the share of sign patterns whose rank sum is as far from its mean."""
    kept = [value for value in d if value != 0]
    ranks = stats.rankdata(np.abs(kept))
    sums = [
        sum(r * s for r, s in zip(ranks, signs, strict=True)) for signs in itertools.product((-1, 1), repeat=len(kept))
    ]
    seen = abs(sum(r * math.copysign(1, v) for r, v in zip(ranks, kept, strict=True)))
    return sum(abs(value) >= seen - 1e-9 for value in sums) / len(sums)


@pytest.mark.parametrize(
    "d", [[1.0, 2, 3, 4, 5], [1.0, -2, 3, 4, 5, 6, -7], [1.0, 1, 1, -1, 2, 2], [0.0, 1, -2, 2, 3], [0.5, 1]]
)
def test_wilcoxon_counts_signs(d: list[float]) -> None:
    assert wilcoxon(np.array(d)) == pytest.approx(by_all_signs(d))


@pytest.mark.parametrize("n", [3, 6, 10, 20])
def test_wilcoxon_without_ties_is_scipys_exact_test(n: int) -> None:
    d = np.random.default_rng(n).normal(0.3, 1, n)
    assert wilcoxon(d) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)


def test_equal_differences_tie_although_floats_do_not() -> None:
    """.3 - .2 and .2 - .1 are not the same float."""
    d = np.array([0.3 - 0.2, 0.2 - 0.1, -(0.9 - 0.8), 0.5 - 0.3])
    assert wilcoxon(d) == pytest.approx(by_all_signs([0.1, 0.1, -0.1, 0.2]))
    assert wilcoxon(np.zeros(4)) is None
    assert wilcoxon(np.array([0.0, 0.1, 0.0])) == by_all_signs([0.1]) == 1


def test_paired_figures_on_a_hand_example() -> None:
    """d = 2, 4, 6 hundredths: mean 4, sd 2, t = 4 / (2 / sqrt 3) = 2 sqrt 3 with 2 degrees of freedom."""
    found = paired("m", {0: 0.52, 1: 0.54, 2: 0.56}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert found.n == 3
    assert found.difference == pytest.approx(0.04)
    assert found.d_z == pytest.approx(2.0)
    t = 2 * math.sqrt(3)
    assert found.t_p == pytest.approx(1 - t / math.sqrt(t * t + 2))  # Student's distribution in closed form for 2
    assert found.wilcoxon_p == pytest.approx(0.25)
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == pytest.approx(
        (0.04 - 4.302653 * 0.02 / math.sqrt(3), 0.04 + 4.302653 * 0.02 / math.sqrt(3))
    )
    assert found.g_z == pytest.approx(2 / math.sqrt(math.pi))  # J(2) = Gamma(1) / Gamma(1/2)


def test_hedges_correction_is_close_to_its_usual_approximation() -> None:
    for n in (5, 10, 30):
        assert hedges(n) == pytest.approx(1 - 3 / (4 * (n - 1) - 1), abs=0.003)


def test_the_interval_agrees_with_the_test() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        a, b = ({seed: float(value) for seed, value in enumerate(rng.normal(centre, 0.1, 4))} for centre in (0.6, 0.5))
        found = paired("m", a, b)
        assert found.t_p == pytest.approx(stats.ttest_rel(list(a.values()), list(b.values())).pvalue)
        assert found.low is not None
        assert found.high is not None
        assert (found.t_p < 0.05) == (found.low > 0 or found.high < 0)


def test_what_the_pairs_do_not_suffice_for_is_said() -> None:
    one = paired("m", {0: 0.5, 1: 0.6}, {1: 0.5, 2: 0.5})
    assert (one.n, one.t_p, one.difference) == (1, None, None)
    assert "paired on the 1 that both have" in " ".join(one.notes)
    assert "no test" in " ".join(one.notes)
    same = paired("m", {0: 0.6, 1: 0.7, 2: 0.3}, {0: 0.5, 1: 0.6, 2: 0.2})
    assert same.difference == pytest.approx(0.1)
    assert (same.t_p, same.d_z) == (None, None)
    five, six = (
        paired("m", {s: 0.5 + 0.01 * s for s in range(1, n + 1)}, dict.fromkeys(range(1, n + 1), 0.5)) for n in (5, 6)
    )
    assert any("fewer than 6" in note for note in five.notes)
    assert five.wilcoxon_p == pytest.approx(0.0625)
    assert six.notes == ()
    assert six.wilcoxon_p == pytest.approx(0.03125)


def test_families_are_apart_and_corrected_within() -> None:
    rng = np.random.default_rng(0)
    rows = [
        row(method, seed, 0.5 + 0.02 * place + float(rng.normal(0, 0.02)), target)
        for target in ("t", "u")
        for place, method in enumerate(("base", "a", "b", "c"))
        for seed in range(4 if method == "a" else 6)
    ]
    families = compare(rows, "base", "f1")
    assert [(family.target, family.protocol) for family in families] == [("t", "source"), ("u", "source")]
    for family in families:
        assert [test.method for test in family.tests] == ["a", "b", "c"]
        assert [test.n for test in family.tests] == [4, 6, 6]
        raw = {test.method: test.t_p for test in family.tests}
        assert {test.method: test.t_p_holm for test in family.tests} == holm(raw)  # type: ignore[arg-type]


def test_wrong_questions_are_refused() -> None:
    rows = [row("a", 0, 0.5), row("b", 0, 0.6)]
    with pytest.raises(StatisticsError, match="expected one of a, b"):
        compare(rows, "c", "f1")
    with pytest.raises(StatisticsError, match="'auc': no row has it"):
        compare(rows, "a", "auc")
    with pytest.raises(StatisticsError, match="expected one of f1"):
        compare(rows, "a", "loss")
    with pytest.raises(ResultsError, match="seed 0"):
        compare([*rows, rows[0]], "a", "f1")
