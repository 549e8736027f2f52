"""Each rule refuses the job below it, by its name, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedad_components.config import FedADConfig
from fedad_components.flare.site import SiteError, SitePolicy
from fedad_components.mil.config import HistoFLConfig
from fedad_components.privacy.policy import PolicyRefused, PrivacyRules, Rule, check_patients

TEMPLATE = Path(__file__).parents[3] / "provisioning" / "site" / "policy.yaml"


def job(**privacy: Any) -> FedADConfig:
    return FedADConfig.parse({"model": {"norm": "group"}, "privacy": {"mode": "dp_sgd", **privacy}})


def hospital_job(**privacy: Any) -> FedADConfig:
    return FedADConfig.parse(
        {
            "model": {"norm": "group"},
            "privacy": {"mode": "client_dp", **privacy},
            "federation": {"update": "difference"},
        }
    )


def policy(tmp_path: Path, text: str) -> SitePolicy:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return SitePolicy.load(path)


@pytest.mark.parametrize(
    ("rules", "config", "rule"),
    [
        ("privacy: {required_mode: dp_sgd}", FedADConfig.parse({}), Rule.REQUIRED_MODE),
        ("privacy: {required_mode: dp_sgd}", job(mode="weight_noise"), Rule.REQUIRED_MODE),
        ("data_sets: {images: {required_mode: dp_sgd}}", FedADConfig.parse({}), Rule.REQUIRED_MODE),
        ("privacy: {min_noise_multiplier: 2.5}", job(noise_multiplier=2.4), Rule.MIN_NOISE_MULTIPLIER),
        ("{}", job(noise_multiplier=0.9), Rule.MIN_NOISE_MULTIPLIER),
        ("{}", hospital_job(noise_multiplier=0.9), Rule.MIN_NOISE_MULTIPLIER),
        ("privacy: {max_delta: 1.0e-6}", job(delta=1e-5), Rule.MAX_DELTA),
        ("privacy: {max_delta: 1.0e-6}", hospital_job(delta=1e-5), Rule.MAX_DELTA),
        ("{}", FedADConfig.parse({"loss": {"head": "aggregated"}}), Rule.ALLOW_AGGREGATED_HEAD),
        ("allow_shared_spectra: true", FedADConfig.parse({"method": "feddg"}), Rule.ALLOW_AGGREGATED_HEAD),
        ("allow_aggregated_head: true", FedADConfig.parse({"method": "feddg"}), Rule.ALLOW_SHARED_SPECTRA),
        ("{}", job(negatives="public", public_data_set="scans"), Rule.PUBLIC_DATA_SETS),
        ("{}", HistoFLConfig.parse({"counts": {"min_cell": 4}}), Rule.MIN_CELL_COUNT),
        ("privacy: {min_cell_count: 6}", HistoFLConfig.parse({}), Rule.MIN_CELL_COUNT),
        ("public_data_sets: [other]", job(negatives="public", public_data_set="scans"), Rule.PUBLIC_DATA_SETS),
    ],
)
def test_a_job_below_a_rule_is_refused_by_its_name(tmp_path: Path, rules: str, config: FedADConfig, rule: Rule) -> None:
    with pytest.raises(PolicyRefused, match=rule.value) as refused:
        policy(tmp_path, rules).check(config)
    assert refused.value.rule is rule


@pytest.mark.parametrize(
    ("rules", "config"),
    [
        ("{}", FedADConfig.parse({})),
        ("{}", job()),
        ("privacy: {required_mode: dp_sgd, min_noise_multiplier: 2.0, max_delta: 1.0e-5}", job()),
        ("data_sets: {others: {required_mode: dp_sgd}}", FedADConfig.parse({})),
        ("{privacy: {min_noise_multiplier: 4}, data_sets: {images: {min_noise_multiplier: 0.5}}}", job()),
        ("privacy: {max_delta: 1e-5}", job()),  # without a point, YAML reads text
        ("public_data_sets: [scans]", job(negatives="public", public_data_set="scans")),
        ("allow_aggregated_head: true", FedADConfig.parse({"loss": {"head": "aggregated"}})),
        ("{allow_aggregated_head: true, allow_shared_spectra: true}", FedADConfig.parse({"method": "feddg"})),
    ],
)
def test_a_job_that_meets_the_rules_may_train(tmp_path: Path, rules: str, config: FedADConfig) -> None:
    policy(tmp_path, rules).check(config)


def test_a_data_sets_rules_stand_over_the_sites(tmp_path: Path) -> None:
    both = policy(tmp_path, "{privacy: {max_epsilon: 8}, data_sets: {a: {max_epsilon: 2}, b: {min_patients: 5}}}")
    assert [both.rules(name).max_epsilon for name in ("a", "b", "c")] == [2, 8, 8]
    assert both.rules("b").min_patients == 5


def test_too_few_patients_are_refused() -> None:
    check_patients(5, PrivacyRules(min_patients=5))
    with pytest.raises(PolicyRefused, match="at least 5 patients, the data set has 4"):
        check_patients(4, PrivacyRules(min_patients=5))


@pytest.mark.parametrize(
    "text",
    [
        "privacy: {max_epsilon: .nan}",
        "privacy: {max_epsilon: 0}",
        "privacy: {min_noise_multiplier: -1}",
        "privacy: {max_delta: 1}",
        "privacy: {maximum: 1}",
        "privacy: {required_mode: dp}",
        "data_sets: {images: {max_epsilon: -1}}",
        "data_sets: {images: {epsilon: 1}}",
        "privacy: {max_epsilon: true}",
        "privacy: {min_patients: true}",
        "privacy: {max_epsilon: 3, max_epsilon: 30}",
        "public_data_sets: scans",
        "privacy: {max_epsilon: !!float x}",
        "privacy: {min_patients: !!int x}",
        "allow_aggregated_head: !!bool x",
        "privacy: {max_epsilon: 2020-13-45}",
        f"privacy: {{max_epsilon: {'9' * 5000}}}",
        f"privacy: {{max_epsilon: 0x{'f' * 5000}}}",
        "data_sets: " + "[" * 5000,
        "{privacy: &p {max_epsilon: 30}, data_sets: {images: *p}}",
        "privacy: {<<: {max_epsilon: 30}}",
        "a: &a [x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b, *b, *b]",
        "# " + "x" * 100_000,
    ],
)
def test_a_policy_is_never_guessed(tmp_path: Path, text: str) -> None:
    with pytest.raises(SiteError, match=r"policy\.yaml"):
        policy(tmp_path, text)


@pytest.mark.parametrize("number", ["1:30", "1:30.5", "010", "0x10", "0b11", "1_0", ".inf", "+.5e"])
def test_a_number_that_yaml_reads_as_another_is_refused(tmp_path: Path, number: str) -> None:
    with pytest.raises(SiteError, match=r"max_epsilon|number in decimals"):
        policy(tmp_path, f"privacy: {{max_epsilon: {number}}}")


@pytest.mark.parametrize(("text", "value"), [("8", 8.0), ("8.5", 8.5), ("+.5", 0.5), ("1.0e+1", 10.0), ("1e1", 10.0)])
def test_decimals_are_read_as_written(tmp_path: Path, text: str, value: float) -> None:
    assert policy(tmp_path, f"privacy: {{max_epsilon: {text}}}").privacy.max_epsilon == value


@pytest.mark.parametrize("text", ["", "# nothing\n", "null", "false", "0", "[]", "''", "privacy"])
def test_only_a_missing_file_stands_for_the_defaults(tmp_path: Path, text: str) -> None:
    with pytest.raises(SiteError, match="delete the file to have the defaults"):
        policy(tmp_path, text)
    assert SitePolicy.load(tmp_path / "absent.yaml") == policy(tmp_path, "{}") == SitePolicy()


def test_what_is_no_file_is_no_absent_policy(tmp_path: Path) -> None:
    path, target = tmp_path / "policy.yaml", tmp_path / "target.yaml"
    path.symlink_to(target)
    with pytest.raises(SiteError, match=r"policy\.yaml: a link to a file that is missing"):
        SitePolicy.load(path)
    target.write_text("allow_aggregated_head: true")
    assert SitePolicy.load(path).allow_aggregated_head
    with pytest.raises(SiteError, match="a folder where a file is expected"):
        SitePolicy.load(tmp_path)
    with pytest.raises(SiteError, match="Not a directory"):
        SitePolicy.load(target / "policy.yaml")


def test_the_template_shows_the_defaults() -> None:
    assert SitePolicy.load(TEMPLATE) == SitePolicy()
    text = TEMPLATE.read_text()
    for name in (*PrivacyRules.model_fields, *SitePolicy.model_fields, *(rule.value for rule in Rule)):
        assert f"{name}:" in text
