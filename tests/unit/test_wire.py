"""The meta of tasks and results is strict."""

from __future__ import annotations

import pytest

from fedad_components.wire import Reason, ResultMeta, TaskMeta, WireError, parse_meta, parse_reason, shown

RESULT = {
    "config_digest": "0" * 64,
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


def test_meta_of_a_result_needs_its_sample_count() -> None:
    meta = {key: value for key, value in RESULT.items() if key != "n_samples"}
    with pytest.raises(WireError, match="'n_samples': Field required"):
        parse_meta(ResultMeta, meta)
    assert parse_meta(ResultMeta, RESULT).n_samples == 5


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
