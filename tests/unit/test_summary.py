from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedad_components.config import FedADConfig
from fedad_components.demo.data import DemoData, Labelled, Unseen
from fedad_components.demo.summary import UNTRAINED, Summary, SummaryError, build_summary
from fedad_components.evaluation.probe import ProbeResult, linear_probe
from fedad_components.records import RoundRecord

SITES = ("north", "south", "east")
NOTHING = Labelled((), ())
DATA = DemoData(
    "embedded", {site: {} for site in SITES}, Unseen("west", "dab_above_median", "A stain.", NOTHING, NOTHING)
)
CONFIG = FedADConfig.parse({"seed": 7, "federation": {"rounds": 3}, "training": {"batch_size": 16}})


def round_record(number: int, participants: tuple[str, ...] = SITES, **changes: Any) -> RoundRecord:
    losses = {"total": 3.0 - number, "contrastive": 2.0, "alignment": 0.9, "orthogonality": 0.1}
    fields: dict[str, Any] = {
        "round": number,
        "participants": list(participants),
        "lambda_t": 0.1 + 0.05 * number,
        "lambda_next": 0.15 + 0.05 * number,
        "instability": 0.4 / (number + 1),
        "phase": "exploration",
        "losses": dict.fromkeys(participants, losses),
        "n_samples": {site: 100 + index for index, site in enumerate(participants)},
        "bytes": dict.fromkeys(participants, 1000),
        "seconds": 2.0,
    }
    return RoundRecord.model_validate({**fields, **changes})


def some_probe() -> ProbeResult:
    x = [[-2.0], [-1.0], [1.0], [2.0]]
    return linear_probe(x, ["low", "low", "high", "high"], x, ["low", "high", "high", "high"], DATA.unseen.label)


def summary(records: list[RoundRecord] | None = None, **changes: Any) -> Summary:
    arguments: dict[str, Any] = {
        "status": "FINISHED:COMPLETED",
        "job_id": "job-1",
        "data": DATA,
        "config": CONFIG,
        "probe": some_probe(),
        "wall_s": 61.5,
    }
    records = [round_record(0), round_record(1, ("north", "east")), round_record(2)] if records is None else records
    return build_summary(records, **{**arguments, **changes})


def test_json_has_what_scripts_read(tmp_path: Path) -> None:
    summary().write(tmp_path / "summary.json")
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["status"] == "FINISHED:COMPLETED"
    assert content["sites"] == ["north", "south", "east"]
    assert content["rounds"] == 3
    assert content["participants"] == [["north", "south", "east"], ["north", "east"], ["north", "south", "east"]]
    assert content["lambda_t"] == pytest.approx([0.1, 0.15, 0.2])
    assert content["instability"] == pytest.approx([0.4, 0.2, 0.4 / 3])
    assert content["losses"][1]["east"] == {
        "total": 2.0,
        "contrastive": 2.0,
        "alignment": 0.9,
        "orthogonality": 0.1,
    }
    assert content["bytes_sent"] == {"north": 3000, "south": 2000, "east": 3000}
    assert content["wall_s"] == 61.5
    probe = content["probe"]
    assert {"f1", "accuracy", "n_train", "n_test", "label"} <= set(probe)
    assert (probe["accuracy"], probe["n_train"], probe["n_test"], probe["label"]) == (0.75, 4, 4, "dab_above_median")
    assert content["privacy"]["mode"] == "none"
    assert "No differential privacy" in content["privacy"]["statement"]
    assert content["config_digest"] == CONFIG.digest()
    assert FedADConfig.parse(content["config"]) == CONFIG
    assert content["seed"] == 7
    assert set(content["versions"]) >= {"python", "fedad", "nvflare", "torch"}


def test_chance_of_the_contrastive_loss_is_that_of_the_batch() -> None:
    assert summary().contrastive_at_chance == pytest.approx(math.log(31))  # 2 views of 16 images, without itself


def test_a_refused_update_counts_its_bytes_but_not_its_site() -> None:
    refused = round_record(0, ("north",), refused={"south": "NaN"}, bytes={"north": 10, "south": 99})
    result = summary([refused])
    assert result.bytes_sent == {"north": 10, "south": 99, "east": 0}
    assert result.refused == [{"south": "NaN"}]
    assert result.n_samples == {"north": 100, "south": 0, "east": 0}


def test_a_failed_job_still_has_a_summary(tmp_path: Path) -> None:
    result = summary([], status="FAILED_TO_RUN", job_id=None, probe=None)
    result.write(tmp_path / "summary.json")
    assert Summary.load(tmp_path / "summary.json") == result
    assert (result.rounds, result.rounds_planned, result.probe) == (0, 3, None)


def test_it_says_when_lambda_did_not_adapt() -> None:
    steady = [round_record(number, instability=0.02) for number in range(3)]
    assert any("ATSA did not adapt" in note for note in summary(steady).notes)
    assert summary(notes=["mind this"]).notes == ["mind this"]  # Delta halves: exp(-k Delta) spans 0.14 to 0.51


def test_it_says_when_nothing_was_learnt() -> None:
    at_chance = {"total": 3.5, "contrastive": 3.4, "alignment": 0.1, "orthogonality": 0.0}  # ln 31 = 3.43
    records = [round_record(number, losses={"north": at_chance}) for number in range(3)]
    assert any("Almost nothing was learnt" in note and "3.43 is chance" in note for note in summary(records).notes)
    probe = summary().probe
    assert probe is not None
    worse = probe.compared_with(UNTRAINED, probe)
    assert any("no more than an untrained one" in note for note in summary(probe=worse).notes)
    better = worse.model_copy(update={"f1": 0.99})
    assert not any("untrained" in note for note in summary(probe=better).notes)


def test_round_trip(tmp_path: Path) -> None:
    summary().write(tmp_path / "summary.json")
    loaded = Summary.load(tmp_path / "summary.json")
    assert loaded.model_dump(exclude={"finished_at"}) == summary().model_dump(exclude={"finished_at"})


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(SummaryError, match="record of round 1 is missing: found that of round 2"):
        summary([round_record(0), round_record(2)])
    with pytest.raises(SummaryError, match="round 0 names sites that are not in this demo: stranger"):
        summary([round_record(0, ("north", "stranger"))])
    with pytest.raises(SummaryError, match=r"summary\.json: not a demo's summary"):
        Summary.load(tmp_path / "summary.json")
    (tmp_path / "summary.json").write_text('{"status": "x"}')
    with pytest.raises(SummaryError, match=r"summary\.json: not a demo's summary"):
        Summary.load(tmp_path / "summary.json")


CLAIM = {
    "unit": "bundle",
    "units": 16,
    "noise_multiplier": 1.0,
    "sample_rate": 0.25,
    "steps": 12,
    "delta": 1e-5,
    "epsilon_unit": 5.25,
    "epsilon_record": 9.75,
}
PRIVATE = FedADConfig.parse({"privacy": {"mode": "dp_sgd"}, "model": {"norm": "group"}, "federation": {"rounds": 1}})


def private_summary() -> Summary:
    """One round under dp_sgd, in which east's policy refused."""
    refusal = {"east": "the site reports EXECUTION_EXCEPTION (policy-refused: min_noise_multiplier)"}
    claims = dict.fromkeys(SITES[:2], CLAIM)
    record = round_record(0, SITES[:2], losses={}, n_samples={}, claims=claims, refused=refusal)
    return summary([record], config=PRIVATE)


def test_under_dp_sgd_it_states_the_guarantee_of_each_site_and_no_count() -> None:
    result = private_summary()
    assert result.privacy.mode == "dp_sgd"
    assert result.privacy.sites.keys() == {"north", "south"}
    assert result.privacy.sites["north"].epsilon_record == 9.75
    assert "adding or removing all images of one bundle" in result.privacy.statement
    assert result.n_samples == {}
    assert Summary.model_validate_json(result.model_dump_json()) == result
    assert summary().privacy.sites == {}
    assert "No differential privacy" in summary().privacy.statement
