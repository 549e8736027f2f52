"""The meta of tasks and results is strict."""

from __future__ import annotations

import pytest

from fedad_components.config import FedADConfig
from fedad_components.wire import (
    Reason,
    ResultMeta,
    TaskMeta,
    WireError,
    parse_meta,
    parse_reason,
    parse_result_meta,
    parse_rule,
    shown,
    site_key,
)

PLAIN = FedADConfig.parse({})
PRIVATE = FedADConfig.parse({"privacy": {"mode": "dp_sgd", "units_per_step": 4}, "model": {"norm": "group"}})
RESULT = {
    "config_digest": PLAIN.digest(),
    "round": 3,
    "n_samples": 5,
    "losses": {"total": 1.0, "contrastive": 0.5, "alignment": 0.3, "orthogonality": 0.2},
}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_samples": -4}, "n_samples"),
        ({"n_samples": 2.5}, "n_samples"),
        ({"n_samples": True}, "n_samples"),
        ({"n_samples": float("nan")}, "n_samples"),
        ({"round": "3"}, "round"),
        ({"patient": "DOE^JANE"}, "patient"),
        ({"config_digest": "abc"}, "config_digest"),
        ({"losses": {**RESULT["losses"], "per_image": [1.0]}}, "losses.per_image"),
    ],
)
def test_meta_of_a_result_is_strict(change: dict, key: str) -> None:
    with pytest.raises(WireError, match=key.replace(".", r"\.")):
        parse_meta(ResultMeta, {**RESULT, **change})


CLAIM = {
    "unit": "bundle",
    "units": 16,
    "noise_multiplier": 2.0,
    "sample_rate": 0.25,
    "steps": 4,
    "delta": 1e-5,
    "epsilon_unit": 1.4,  # computed: 1.369 and 2.079
    "epsilon_record": 2.1,
}
PROTECTED = {"config_digest": PRIVATE.digest(), "round": 3, "claim": CLAIM, "ledger_head": "a" * 64}


def test_each_mode_has_its_own_meta() -> None:
    assert parse_result_meta(RESULT, PLAIN, ResultMeta).n_samples == 5
    parsed = parse_result_meta(PROTECTED, PRIVATE, ResultMeta)
    assert parsed.claim is not None
    assert parsed.claim.epsilon_unit == 1.4
    assert parsed.n_samples is parsed.losses is None


@pytest.mark.parametrize(
    ("config", "meta", "key"),
    [
        (PLAIN, {**RESULT, "n_samples": None}, "n_samples: missing"),
        (PLAIN, {**RESULT, "losses": None}, "losses: missing"),
        (PLAIN, {**RESULT, "claim": CLAIM}, "claim: unexpected"),
        (PLAIN, {**RESULT, "config_digest": "0" * 64}, "config_digest"),
        (PRIVATE, {**PROTECTED, "n_samples": 5}, "n_samples: unexpected"),
        (PRIVATE, {**PROTECTED, "losses": RESULT["losses"]}, "losses: unexpected"),
        (PRIVATE, {**PROTECTED, "claim": None}, "claim: missing"),
        (PRIVATE, {**PROTECTED, "ledger_head": None}, "ledger_head: missing"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "epsilon_unit": float("nan")}}, "claim.epsilon_unit"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "unit": "patient"}}, "claim.unit"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "delta": 1e-2}}, "claim.delta"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "noise_multiplier": 20.0}}, "claim.noise_multiplier"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "epsilon_unit": 1e-9}}, "claim.epsilon_unit: '1e-09'"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "epsilon_unit": 1.3}}, "claim.epsilon_unit: '1.3'"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "epsilon_record": 2.0}}, "claim.epsilon_record: '2.0'"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "epsilon_record": None}}, "claim.epsilon_record: 'None'"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "sample_rate": 0.24}}, "claim.sample_rate: 0.24, below"),
        (PRIVATE, {**PROTECTED, "claim": {**CLAIM, "units": 3}}, "claim: no epsilon can be computed"),
        (PRIVATE, {**PROTECTED, "ledger_head": "patient DOE^JANE"}, "ledger_head"),
    ],
)
def test_a_result_says_what_its_mode_allows_and_no_more(config: FedADConfig, meta: dict, key: str) -> None:
    with pytest.raises(WireError, match=key.replace(".", r"\.")):
        parse_result_meta(meta, config, ResultMeta)


def test_a_rule_is_of_the_vocabulary_and_a_site_key_is_no_name() -> None:
    assert parse_rule("max_epsilon") is not None
    assert [parse_rule(value) for value in ("DOE^JANE", None, 3, ["max_epsilon"])] == [None] * 4
    assert "hospital" not in site_key("e", "hospital")
    assert site_key("e", "hospital") != site_key("f", "hospital")


def test_what_the_other_side_names_cannot_forge_a_line_or_fill_the_log() -> None:
    keys = {f"2026-11-30 ERROR forged\n{number}" + "x" * 10_000: 1 for number in range(1000)}
    with pytest.raises(WireError, match="and 995 more") as refused:
        parse_meta(ResultMeta, {**RESULT, **keys})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert shown("bn1.bias") == "'bn1.bias'"


@pytest.mark.parametrize("lambda_t", [float("nan"), float("inf"), -0.1, "0.5"])
def test_a_task_with_an_impossible_lambda_is_refused(lambda_t: object) -> None:
    with pytest.raises(WireError, match="lambda_t"):
        parse_meta(TaskMeta, {"experiment": "e", "config_digest": "0" * 64, "round": 0, "lambda_t": lambda_t})


def test_a_reason_is_of_the_vocabulary() -> None:
    assert parse_reason("worker-died") is Reason.WORKER_DIED
    assert [parse_reason(value) for value in ("DOE^JANE", None, 3, ["worker-died"])] == [None] * 4
