"""The ledger adds up, refuses at the budget, and notices whatever is done to it."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.flare.site import SitePaths
from fedad_components.privacy import ledger as module
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.ledger import BudgetExceeded, Entry, Ledger, LedgerError

PROTECTION: dict[str, Any] = {
    "unit": "bundle",
    "units": 100,
    "key_fingerprint": "ab" * 32,
    "noise_multiplier": 2.0,
    "max_grad_norm": 1.0,
    "sample_rate": 0.1,
    "steps": 10,
    "delta": 1e-5,
}


def entry(number: int = 0, **change: Any) -> Entry:
    values = {"data_set": "images", "experiment": "e", "job_id": "j", "round": number, "mode": "dp_sgd", **PROTECTION}
    return Entry(**{**values, **change})


def plain(mode: str = "none") -> Entry:
    return Entry("images", "e", "j", 0, mode)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    paths = SitePaths.of_kit(tmp_path).create()
    return Ledger(paths.ledger, paths.ledger_head)


def charge(ledger: Ledger, count: int = 1, **change: Any) -> None:
    start = len(ledger.entries())
    for number in range(start, start + count):
        ledger.charge(entry(number, **change), max_epsilon=None)


def test_two_jobs_on_one_data_set_compose(ledger: Ledger) -> None:
    charge(ledger, 3, job_id="first", experiment="one")
    charge(ledger, 2, job_id="second", experiment="two", noise_multiplier=1.5)
    charge(ledger, 4, data_set="other")
    both = [Charge(2.0, 0.1, 30), Charge(1.5, 0.1, 20)]
    claim = ledger.claim("images")
    assert claim is not None
    assert (claim.epsilon_unit, claim.epsilon_record) == (epsilon_unit(both, 1e-5), epsilon_record(both, 1e-5))
    last = ledger.entries("images")[-1]
    assert (last.epsilon_unit, last.epsilon_record) == (claim.epsilon_unit, claim.epsilon_record)
    one = ledger.claim("images", "one")
    assert one is not None
    assert one.epsilon_unit == epsilon_unit([Charge(2.0, 0.1, 30)], 1e-5)
    assert one.steps == 30
    assert ledger.claim("images", "absent") is None


def test_the_budget_is_kept_to_the_round(ledger: Ledger) -> None:
    budget = epsilon_unit([Charge(2.0, 0.1, 30)], 1e-5)
    for number in range(3):
        ledger.charge(entry(number), max_epsilon=budget)
    before = ledger.head()
    with pytest.raises(
        BudgetExceeded, match=r"round 3 .* epsilon = [\d.]+ \(adding or removing one bundle, PRV"
    ) as refused:
        ledger.charge(entry(3), max_epsilon=budget)
    assert f"{epsilon_unit([Charge(2.0, 0.1, 40)], 1e-5):.3f}" in str(refused.value)
    assert ledger.head() == before
    with pytest.raises(BudgetExceeded, match="max_epsilon_record"):
        ledger.charge(entry(3), max_epsilon=None, max_epsilon_record=budget)
    ledger.charge(entry(3, data_set="other"), max_epsilon=budget)


def test_a_round_without_protection_ends_every_claim(ledger: Ledger) -> None:
    charge(ledger)
    ledger.charge(plain(), max_epsilon=10.0)  # the policy decides whether it may run; here it is written down
    assert ledger.claim("images") is None
    with pytest.raises(BudgetExceeded, match="1 earlier rounds ran without differential privacy"):
        ledger.charge(entry(1), max_epsilon=10.0)
    assert ledger.charge(entry(1), max_epsilon=None).epsilon_unit is None
    assert ledger.claim("other") is None


@pytest.mark.parametrize("change", [{"units": 99}, {"unit": "patient"}, {"key_fingerprint": "cd" * 32}])
def test_no_sum_runs_over_two_divisions_into_units(ledger: Ledger, change: dict[str, Any]) -> None:
    charge(ledger)
    with pytest.raises(LedgerError, match="no epsilon holds across two divisions"):
        ledger.charge(entry(1, **change), max_epsilon=None)


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm", "sample_rate", "steps", "delta", "units"])
@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), None])
def test_impossible_numbers_are_no_entry(name: str, bad: object) -> None:
    with pytest.raises(ValueError, match=name):
        entry(**{name: bad})
    with pytest.raises(ValueError, match="noise_multiplier"):
        Entry("images", "e", "j", 0, "weight_noise", noise_multiplier=1.0)


def edit(ledger: Ledger, *statements: str) -> None:
    with sqlite3.connect(ledger.path) as connection:
        for trigger in ("no_update", "no_delete"):
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)


TAMPERED: dict[str, Callable[[Ledger], Any]] = {
    "edited": lambda ledger: edit(
        ledger, "UPDATE ledger SET content = replace(content, '2.0', '9.0') WHERE number = 2"
    ),
    "removed": lambda ledger: edit(ledger, "DELETE FROM ledger WHERE number = 2"),
    "rolled back": lambda ledger: edit(ledger, "DELETE FROM ledger WHERE number = 3"),
    "swapped": lambda ledger: edit(
        ledger,
        "UPDATE ledger SET number = 9 WHERE number = 1",
        "UPDATE ledger SET number = 1 WHERE number = 2",
        "UPDATE ledger SET number = 2 WHERE number = 9",
    ),
    "missing": lambda ledger: ledger.path.unlink(),
    "not a usable SQLite file": lambda ledger: ledger.path.write_bytes(b"x" * 4096),
    "not a ledger's head": lambda ledger: ledger.head_path.write_text("{}"),
    "is not the one that": lambda ledger: ledger.head_path.write_text(json.dumps({"number": 3, "hash": "0" * 64})),
}


@pytest.mark.parametrize("cause", TAMPERED)
def test_a_ledger_that_was_touched_is_refused(ledger: Ledger, cause: str) -> None:
    charge(ledger, 3)
    TAMPERED[cause](ledger)
    for use in (ledger.entries, ledger.head, lambda: ledger.charge(entry(3), max_epsilon=None)):
        with pytest.raises(LedgerError, match=cause):
            use()  # type: ignore[operator]


def test_a_missing_head_is_refused_once_there_are_rows(ledger: Ledger) -> None:
    charge(ledger, 3)
    ledger.head_path.unlink()
    with pytest.raises(LedgerError, match="missing, and .* has 3 rows"):
        ledger.charge(entry(3), max_epsilon=None)


def test_an_older_copy_is_refused_and_the_server_knows_when_all_of_it_is_old(ledger: Ledger, tmp_path: Path) -> None:
    charge(ledger, 2)
    old = shutil.copy(ledger.path, tmp_path / "ledger"), shutil.copy(ledger.head_path, tmp_path / "head")
    charge(ledger)
    told = ledger.head()
    assert ledger.contains(told)
    shutil.copy(old[0], ledger.path)
    with pytest.raises(LedgerError, match="rolled back"):
        ledger.entries()
    shutil.copy(old[1], ledger.head_path)
    assert len(ledger.entries()) == 2
    assert not ledger.contains(told)


def test_a_crash_between_row_and_head_loses_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    for number in range(2):  # at the first row there is no head at all yet
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_atomic", crash)
            with pytest.raises(KeyboardInterrupt):
                ledger.charge(entry(2 * number), max_epsilon=None)
        assert len(ledger.entries()) == 2 * number + 1
        ledger.charge(entry(2 * number + 1), max_epsilon=None)
    assert ledger.claim("images").steps == 40  # type: ignore[union-attr]


def test_reading_changes_nothing_and_everything_is_private(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.entries() == []
    assert ledger.claim("images") is None
    assert not ledger.path.exists()
    charge(ledger, 2)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (ledger.path, ledger.head_path)] == [0o600, 0o600]
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    ledger.entries(), ledger.head(), ledger.claim("images"), ledger.contains("0")
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_the_table_itself_is_append_only(ledger: Ledger) -> None:
    charge(ledger)
    with sqlite3.connect(ledger.path) as connection:
        for statement in ("UPDATE ledger SET hash = ''", "DELETE FROM ledger"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)


def spend(path: Path, head: Path, budget: float, done: Any) -> None:
    charged = 0
    for number in range(6):
        try:
            Ledger(path, head).charge(entry(number), max_epsilon=budget)
            charged += 1
        except BudgetExceeded:
            pass
    done.put(charged)


@pytest.mark.slow
def test_concurrent_jobs_cannot_overspend(ledger: Ledger) -> None:
    budget = epsilon_unit([Charge(2.0, 0.1, 50)], 1e-5)
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    processes = [context.Process(target=spend, args=(ledger.path, ledger.head_path, budget, done)) for _ in range(3)]
    for process in processes:
        process.start()
    charged = [done.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
    assert sum(charged) == len(ledger.entries()) == 5
    assert ledger.claim("images").epsilon_unit <= budget  # type: ignore[union-attr]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["privacy", "ledger", *arguments])


def test_the_command_shows_and_verifies(ledger: Ledger, tmp_path: Path) -> None:
    assert "nothing was charged" in run("show", "--kit", str(tmp_path)).stdout
    charge(ledger, 2)
    shown = run("show", "--kit", str(tmp_path)).stdout
    assert "adding or removing one bundle (delta = 1e-05, PRV accountant)" in shown
    assert "max_epsilon = 10" in shown
    content = json.loads(run("show", "--kit", str(tmp_path), "--json").stdout)
    assert content["data_sets"]["images"]["claim"]["steps"] == 20
    verified = run("verify", "--kit", str(tmp_path), "--head", ledger.head(), "--json")
    assert json.loads(verified.stdout) == {"valid": True, "rows": 2, "head": ledger.head()}
    assert run("verify", "--kit", str(tmp_path), "--head", "0" * 64).exit_code == 1
    TAMPERED["edited"](ledger)
    failed = run("verify", "--kit", str(tmp_path))
    assert failed.exit_code == 1
    assert "row 2" in failed.stderr
    assert run("show", "--kit", str(tmp_path / "nowhere")).exit_code == 1
