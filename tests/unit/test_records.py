from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedad_components.records import Losses, RecordsError, RoundRecord, append_record, read_records


def record(number: int = 0, **changes: Any) -> RoundRecord:
    fields: dict[str, Any] = {
        "round": number,
        "participants": ["a", "b"],
        "refused": {"c": "not finite"},
        "lambda_t": 0.1,
        "lambda_next": 0.2,
        "instability": 0.05,
        "phase": "exploration",
        "losses": {"a": {"total": 3.0, "contrastive": 2.0, "alignment": 0.9, "orthogonality": 0.1}},
        "n_samples": {"a": 10, "b": 20},
        "bytes": {"a": 100, "b": 100, "c": 100},
        "seconds": 1.5,
    }
    return RoundRecord.model_validate({**fields, **changes})


def test_records_survive_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rounds.jsonl"
    for number in range(3):
        append_record(path, record(number))
    assert read_records(path) == [record(0), record(1), record(2)]
    assert len(path.read_text().splitlines()) == 3


def test_a_repeated_round_counts_once_by_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    for item in (record(0), record(1, instability=0.5), record(1, instability=0.25), record(2)):
        append_record(path, item)
    assert [item.instability for item in read_records(path)] == [0.05, 0.25, 0.05]


def test_half_a_line_of_a_crash_is_ignored_and_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    append_record(path, record(0))
    with open(path, "a") as file:
        file.write('{"round": 1, "partici')
    assert read_records(path) == [record(0)]
    append_record(path, record(1))
    assert read_records(path) == [record(0), record(1)]


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match=r"rounds\.jsonl: cannot be read"):
        read_records(tmp_path / "rounds.jsonl")
    (tmp_path / "rounds.jsonl").write_text(record(0).model_dump_json() + "\n{}\n")
    with pytest.raises(RecordsError, match=r"rounds\.jsonl, line 2: not a round's record"):
        read_records(tmp_path / "rounds.jsonl")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_site_s_word_need_not_be_finite_but_the_server_s_must(value: float, tmp_path: Path) -> None:
    losses = Losses(total=value, contrastive=1.0, alignment=1.0, orthogonality=1.0)
    assert losses.total is None
    append_record(tmp_path / "rounds.jsonl", record(losses={"a": losses}))
    assert read_records(tmp_path / "rounds.jsonl")[0].losses["a"].total is None
    with pytest.raises(ValidationError, match="instability"):
        record(instability=value)


ANY_LOSSES = {"total": 1.0, "contrastive": 1.0, "alignment": 1.0, "orthogonality": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"participants": ["a", "a", "b"]}, "named twice"),
        ({"refused": {"a": "late"}}, "both accepted and refused"),
        (
            {"losses": {"c": ANY_LOSSES}},
            "losses of sites that did not take part: .'c'",
        ),
        ({"n_samples": {"a": 1, "z": 1}}, "n_samples of sites that did not take part: .'z'"),
        ({"bytes": {"z": 1}}, "bytes of sites that did not take part: .'z'"),
        ({"n_samples": {"a": -1}}, "greater than or equal to 0"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        record(**changes)
