"""dp_sgd over mutual TLS: a strict site refuses, only noised weights leave, and the ledger outlives its client."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support import give_images, job_of, records_of, small_config, until

from fedad_components.config import FedADConfig
from fedad_components.demo.federation import Federation
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.ledger import Ledger

pytestmark = pytest.mark.federation

SITES = ["alpha", "beta", "gamma"]
UNITS, UNITS_PER_STEP, SIGMA, STEPS = 8, 2, 1.5, 4
EXPERIMENT = "private"
FIRST, SECOND = 10, 12
"""Rounds of the experiment after its first and its second job."""
FEDAD = str(Path(sys.executable).parent / "fedad")


def private_config(rounds: int, experiment: str = EXPERIMENT) -> FedADConfig:
    return small_config(
        experiment,
        rounds,
        model={"norm": "group"},
        privacy={"mode": "dp_sgd", "noise_multiplier": SIGMA, "units_per_step": UNITS_PER_STEP, "unit_size": 4},
        federation={"min_sites": 1, "wait_after_quorum": 10},
    )


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("privacy")
    with Federation(folder / "federation", SITES) as running:
        give_images(running, folder / "images")
        for site in SITES:
            catalogue = running.site_paths(site).catalogue
            content = yaml.safe_load(catalogue.read_text())
            content["data_sets"]["images"]["units"] = UNITS
            catalogue.write_text(yaml.safe_dump(content))
        write_policy(running, "gamma", min_noise_multiplier=4.0)
        running.start()
        yield running
        running.stop()
        assert running.processes() == []


def write_policy(federation: Federation, site: str, **rules: float) -> None:
    federation.set_policy(site, privacy=rules)


def ledger_of(federation: Federation, site: str) -> Ledger:
    paths = federation.site_paths(site)
    return Ledger(paths.ledger, paths.ledger_head)


def expected(rounds: int) -> tuple[float, float]:
    """Both epsilons of so many charged rounds, from the accountants alone."""
    charge = [Charge(SIGMA, UNITS_PER_STEP / UNITS, STEPS * rounds)]
    return epsilon_unit(charge, 1e-5), epsilon_record(charge, 1e-5)


def test_a_killed_client_continues_its_sum(federation: Federation, tmp_path: Path) -> None:
    job_id = federation.submit(job_of(private_config(FIRST), tmp_path / "first"))
    until(lambda: len(records_of(federation, EXPERIMENT)) >= 4, 240, "four rounds")
    federation.kill_site("beta")
    try:
        charged = len(ledger_of(federation, "beta").entries())  # a round that was under way counts: it was charged
        # FLARE may call a job abnormal that has lost a client; its rounds are what counts.
        assert federation.wait(job_id, timeout=400).startswith("FINISHED")
        assert len(records_of(federation, EXPERIMENT)) == FIRST
    finally:
        federation.start_site("beta")
        federation.wait_ready()
    assert charged >= 4
    assert len(ledger_of(federation, "alpha").entries()) == FIRST

    job_id = federation.submit(job_of(private_config(SECOND), tmp_path / "second"))
    assert federation.wait(job_id, timeout=300) == "FINISHED:COMPLETED"
    last = records_of(federation, EXPERIMENT)[-1]
    assert last.round == SECOND - 1
    for site, rounds in {"alpha": SECOND, "beta": charged + SECOND - FIRST}.items():
        assert len(ledger_of(federation, site).entries()) == rounds
        claim = last.claims[site]
        assert (claim.unit, claim.units, claim.delta, claim.steps) == ("bundle", UNITS, 1e-5, STEPS * rounds)
        assert (claim.epsilon_unit, claim.epsilon_record) == pytest.approx(expected(rounds), rel=1e-6)
        assert last.ledger_heads[site] == ledger_of(federation, site).head()


def test_nothing_but_weights_and_public_figures_left(federation: Federation) -> None:
    records = records_of(federation, EXPERIMENT)
    assert len(records) == SECOND
    for record in records:
        assert record.n_samples == {}
        assert record.losses == {}
        assert record.claims.keys() == set(record.participants)
        assert "alpha" in record.participants
        assert record.refused["gamma"] == "the site reports EXECUTION_EXCEPTION (policy-refused: min_noise_multiplier)"
    assert ledger_of(federation, "gamma").entries() == []


def test_the_ledger_is_private_and_verifies(federation: Federation) -> None:
    paths = federation.site_paths("alpha")
    for private in (paths.ledger, paths.ledger_head, paths.unit_key):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.ledger.parent.stat().st_mode) == 0o700
    head = records_of(federation, EXPERIMENT)[-1].ledger_heads["alpha"]
    command = [FEDAD, "privacy", "ledger", "verify", "--kit", str(federation.kit("alpha"))]
    assert subprocess.run([*command, "--head", head], capture_output=True, timeout=60, check=False).returncode == 0
    wrong = subprocess.run([*command, "--head", "0" * 64], capture_output=True, timeout=60, check=False)
    assert wrong.returncode == 1


def test_a_rolled_back_ledger_and_a_spent_budget_are_refused(federation: Federation, tmp_path: Path) -> None:
    """The whole state of a site is set back, ledger and head alike: the server knows better, in any experiment.

    Not the compliance log, which would be noticed before, at the site.
    """
    paths = federation.site_paths("alpha")
    set_back = [folder for folder in paths.root.iterdir() if folder != paths.audit and folder.is_dir()]
    for folder in set_back:
        shutil.copytree(folder, tmp_path / "backup" / folder.name)
    job_id = federation.submit(job_of(private_config(SECOND + 1), tmp_path / "third"))
    assert federation.wait(job_id, timeout=240) == "FINISHED:COMPLETED"
    for folder in set_back:
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup" / folder.name, folder)
    write_policy(federation, "beta", max_epsilon=0.5)

    job_id = federation.submit(job_of(private_config(1, "another"), tmp_path / "fourth"))
    assert federation.wait(job_id, timeout=240) != "FINISHED:COMPLETED"
    log = "".join(path.read_text() for path in federation.download(job_id, tmp_path / "result").rglob("log.txt"))
    assert "alpha: the site reports EXECUTION_EXCEPTION (ledger-refused)" in log
    assert "beta: the site reports EXECUTION_EXCEPTION (budget-exhausted)" in log
    assert "rolled back" in federation.site_log("alpha", job_id)
