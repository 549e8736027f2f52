"""The ledger adds up, refuses at the budget, and notices whatever is done to it."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.config import NAME_PATTERN
from fedad_components.flare.site import SitePaths
from fedad_components.privacy import ledger as module
from fedad_components.privacy.accountant import AccountantError, Charge, epsilon_record, epsilon_unit
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

EXACT = {"sample_rate": 1.0, "noise_multiplier": 20.0}
"""Without subsampling the accountants are closed forms, and quick."""


def entry(number: int = 0, **change: Any) -> Entry:
    values = {"data_set": "images", "experiment": "e", "job_id": "j", "round": number, "mode": "dp_sgd", **PROTECTION}
    return Entry(**{**values, **change})


def plain(mode: str = "none") -> Entry:
    return Entry("images", "e", "j", 0, mode)  # type: ignore[arg-type]


def test_no_experiment_can_take_the_heads_name(tmp_path: Path) -> None:
    paths = SitePaths(tmp_path)
    assert paths.ledger_head.parent == paths.state
    assert not re.fullmatch(NAME_PATTERN, paths.ledger_head.name)


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
        BudgetExceeded, match=r"round 3 .* epsilon = [\d.]+ for adding or removing one bundle \(delta = 1e-05, PRV"
    ) as refused:
        ledger.charge(entry(3), max_epsilon=budget)
    assert f"{epsilon_unit([Charge(2.0, 0.1, 40)], 1e-5):.2f}" in str(refused.value)
    stated = f"max_epsilon is epsilon = {budget:g} for adding or removing one bundle (delta = 1e-05, PRV accountant)"
    assert stated in str(refused.value)
    assert ledger.head() == before
    with pytest.raises(BudgetExceeded, match="max_epsilon_record"):
        ledger.charge(entry(3), max_epsilon=None, max_epsilon_record=budget)
    ledger.charge(entry(3, data_set="other"), max_epsilon=budget)


@pytest.mark.parametrize("mode", ["none", "weight_noise", "client_dp"])
def test_a_round_without_protection_ends_every_claim(ledger: Ledger, mode: str) -> None:
    charge(ledger, experiment="private", **EXACT)
    with pytest.raises(BudgetExceeded, match="1 of 2 without differential privacy"):
        ledger.charge(plain(mode), max_epsilon=10.0)
    ledger.charge(plain(mode), max_epsilon=None)
    assert ledger.claim("images") is None
    assert ledger.claim("images", "private") is not None  # what that experiment sent is what it was
    with pytest.raises(BudgetExceeded, match="1 of 3 without differential privacy"):
        ledger.charge(entry(1, **EXACT), max_epsilon=None, max_epsilon_record=10.0)
    assert ledger.charge(entry(1, **EXACT), max_epsilon=None).epsilon_unit is None


def test_where_nothing_was_protected_there_is_no_budget_to_keep(ledger: Ledger) -> None:
    for _ in range(2):
        assert ledger.charge(plain(), max_epsilon=1.0).epsilon_unit is None
    assert ledger.claim("images") is None


def test_a_budget_that_is_no_number_lets_nothing_through(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded):
        ledger.charge(entry(**EXACT), max_epsilon=float("nan"))


@pytest.mark.parametrize("answer", [0.0, -1.0, float("inf"), float("nan"), AccountantError("too many steps")])
def test_without_a_sound_epsilon_nothing_is_charged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, answer: float | AccountantError
) -> None:
    def answers(charges: Sequence[Charge], delta: float) -> float:
        if isinstance(answer, AccountantError):
            raise answer
        return answer

    monkeypatch.setattr(module, "epsilon_unit", answers)
    with pytest.raises(LedgerError, match=r"(?s)no epsilon can be computed .*noise_multiplier"):
        ledger.charge(entry(**EXACT), max_epsilon=None)
    assert ledger.entries() == []


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from([2.0, 3.5]), st.integers(1, 50)),
        min_size=1,
        max_size=8,
    )
)
def test_the_sum_is_the_accountants_on_all_charges(rounds: list[tuple[str, str, float, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "privacy" / "ledger.sqlite", Path(folder) / "state" / "head.json")
        spent: dict[str, list[Charge]] = {}
        for number, (data_set, experiment, sigma, steps) in enumerate(rounds):
            spent.setdefault(data_set, []).append(Charge(sigma, 1.0, steps))
            values = {"data_set": data_set, "experiment": experiment, "noise_multiplier": sigma, "steps": steps}
            row = ledger.charge(entry(number, **{**EXACT, **values}), max_epsilon=None)
            expected = epsilon_unit(spent[data_set], 1e-5), epsilon_record(spent[data_set], 1e-5)
            assert (row.epsilon_unit, row.epsilon_record) == expected
        assert [row.number for row in ledger.entries()] == list(range(1, len(rounds) + 1))


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


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


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
    "row 0": lambda ledger: edit(ledger, "DELETE FROM ledger"),
    "was edited": lambda ledger: edit(ledger, "UPDATE ledger SET content = 'ä' WHERE number = 1"),
    "row 3": lambda ledger: edit(ledger, "UPDATE ledger SET content = 7 WHERE number = 3"),
    "triggers": lambda ledger: edit(ledger),
    "missing or emptied": lambda ledger: ledger.path.unlink(),
    "emptied": lambda ledger: ledger.path.write_bytes(b""),
    "says that it had rows": lambda ledger: edit(ledger, "DROP TABLE ledger"),
    "not a usable SQLite file|was edited": lambda ledger: os.truncate(ledger.path, 5000),
    "not a usable SQLite file": lambda ledger: ledger.path.write_bytes(b"x" * 4096),
    "missing, and .* has 3 rows": lambda ledger: ledger.head_path.unlink(),
    "not a ledger's head": lambda ledger: ledger.head_path.write_text("{}"),
    "expected a whole number and a hash": lambda ledger: ledger.head_path.write_text('{"number": 1e999, "hash": "a"}'),
    "not a ledger's head .*recursion": lambda ledger: ledger.head_path.write_text("[" * 100_000),
    "a folder where a file is expected: move it away": lambda ledger: become_a_folder(ledger.path),
    "head.json: a folder where": lambda ledger: become_a_folder(ledger.head_path),
    "a link to a file that is missing": lambda ledger: (
        ledger.path.rename(ledger.path.with_name("l")) and (ledger.path.symlink_to("elsewhere"))
    ),
    "privacy/ledger.sqlite: Not a directory": lambda ledger: (
        shutil.rmtree(ledger.path.parent),
        ledger.path.parent.write_bytes(b""),
    ),
    "is not the one that": lambda ledger: ledger.head_path.write_text(json.dumps({"number": 3, "hash": "0" * 64})),
}


@pytest.mark.parametrize("cause", TAMPERED)
def test_a_ledger_that_was_touched_is_refused(ledger: Ledger, cause: str) -> None:
    charge(ledger, 3)
    TAMPERED[cause](ledger)
    for use in (ledger.entries, ledger.head, lambda: ledger.charge(entry(3), max_epsilon=None)):
        with pytest.raises(LedgerError, match=cause):
            use()  # type: ignore[operator]


def test_another_sites_head_and_an_older_one_are_refused(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "other" / "ledger.sqlite", tmp_path / "other" / "head.json")
    charge(other, 2, **EXACT)
    charge(ledger, 2, **EXACT)
    older = ledger.head_path.read_bytes()
    own, foreign = ledger.head(), other.head_path.read_bytes()
    charge(ledger, 2, **EXACT)
    for content, cause in ((foreign, "is not the one that"), (older, "set back: it says 2, .* has 4 rows")):
        ledger.head_path.write_bytes(content)
        with pytest.raises(LedgerError, match=cause):
            ledger.entries()
        with pytest.raises(LedgerError, match=cause):
            ledger.charge(entry(4, **EXACT), max_epsilon=None)
    assert own != other.head()  # the same charges: a head reveals nothing about them


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


def charge_and_die(path: Path, head: Path, calls: int, before: bool) -> None:
    """Charge a round in a process that is killed at the so-manieth writing of the head's file."""
    write, seen = module.write_atomic, 0

    def killed(*arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if not before:
            write(*arguments)
        if seen == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        if before:
            write(*arguments)

    module.write_atomic = killed
    Ledger(path, head).charge(entry(**EXACT), max_epsilon=None)


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_kill_around_the_heads_file_loses_no_charge(ledger: Ledger, rounds: int, before: bool, calls: int) -> None:
    """The first charge writes the head of the empty ledger and then its own, the later ones only their own."""
    charge(ledger, rounds, **EXACT)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=charge_and_die, args=(ledger.path, ledger.head_path, calls, before))
    process.start()
    process.join(60)
    dies = calls == 1 or rounds == 0
    assert process.exitcode == (-signal.SIGKILL if dies else 0)
    charged = rounds + (0 if rounds == 0 and calls == 1 else 1)
    assert len(ledger.entries()) == charged
    charge(ledger, 2, **EXACT)
    assert json.loads(ledger.head_path.read_text()) == {"number": charged + 2, "hash": ledger.head()}


def test_a_kill_in_the_midst_of_a_charge_leaves_none(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    charge(ledger, 2, **EXACT)
    append = module._append

    def dies(*arguments: Any) -> str:
        append(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr(module, "_append", dies)
    process = multiprocessing.get_context("fork").Process(
        target=ledger.charge, args=(entry(2, **EXACT),), kwargs={"max_epsilon": None}
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(ledger.entries()) == 2
    monkeypatch.undo()
    charge(ledger, 1, **EXACT)
    assert len(ledger.entries()) == 3


def die_in_commit(path: Path) -> None:
    """Be killed after SQLite has begun to write a transaction into the file: the journal that undoes it stays."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # so that the pages of the transaction go to the file at once
    connection.execute("BEGIN IMMEDIATE")
    for number in range(100, 400):
        connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (number, "x" * 500, "y"))
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_commit(ledger: Ledger) -> Path:
    """Leave a hot journal, and return its path."""
    before = ledger.path.stat().st_size
    process = multiprocessing.get_context("fork").Process(target=die_in_commit, args=(ledger.path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    journal = ledger.path.with_name(f"{ledger.path.name}-journal")
    assert journal.stat().st_size
    assert ledger.path.stat().st_size > before
    return journal


@pytest.mark.parametrize("use", ["entries", "contains", "claim", "show", "verify", "charge"])
def test_whoever_comes_first_undoes_a_commit_that_was_killed(ledger: Ledger, tmp_path: Path, use: str) -> None:
    charge(ledger, 3, **EXACT)
    rows, content = ledger.entries(), ledger.path.read_bytes()
    journal = kill_in_commit(ledger)
    if use == "entries":
        assert ledger.entries() == rows
    elif use == "contains":
        assert ledger.contains(rows[-1].hash)
    elif use == "claim":
        assert ledger.claim("images") is not None
    elif use == "charge":
        assert ledger.charge(entry(3, **EXACT), max_epsilon=None).number == 4
        rows = [*rows, ledger.entries()[-1]]
    else:
        assert run(use, "--kit", str(tmp_path)).exit_code == 0
    assert not journal.exists()
    assert ledger.entries() == rows
    assert use == "charge" or ledger.path.read_bytes() == content


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder of the account that the test runs as, which is not root: root may read and write everything."""
    with tempfile.TemporaryDirectory() as folder:
        root, nobody = os.geteuid() == 0, 65534
        if root:
            os.chown(folder, nobody, nobody)
            os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)
            for path in Path(folder).rglob("*"):
                path.chmod(0o700)


def test_a_copy_that_may_not_be_written_is_read_unless_it_needs_undoing(nobodys_folder: Path) -> None:
    ledger = Ledger(nobodys_folder / "privacy" / "ledger.sqlite", nobodys_folder / "state" / "head.json")
    charge(ledger, 2, **EXACT)
    rows = ledger.entries()
    ledger.path.chmod(0o400)
    ledger.path.parent.chmod(0o500)
    assert ledger.entries() == rows
    with pytest.raises(LedgerError, match=r"this account may not write .*ledger\.sqlite: .*chmod u\+rw"):
        charge(ledger, 1, **EXACT)
    ledger.path.chmod(0o600)
    with pytest.raises(LedgerError, match=r"this account may not write in .*privacy: .*700 its folder"):
        charge(ledger, 1, **EXACT)
    ledger.path.parent.chmod(0o700)
    kill_in_commit(ledger)
    ledger.path.chmod(0o400)
    ledger.path.parent.chmod(0o500)
    with pytest.raises(LedgerError, match=r"was killed .*ledger\.sqlite-journal .*copy both files .*chmod u\+w"):
        ledger.entries()
    copy = Ledger(nobodys_folder / "copy" / "ledger.sqlite", ledger.head_path)
    shutil.copytree(ledger.path.parent, copy.path.parent)
    copy.path.parent.chmod(0o700)
    for path in copy.path.parent.iterdir():
        path.chmod(0o600)
    assert copy.entries() == rows


@pytest.mark.parametrize("closed", ["ledger", "head", "folder"])
def test_what_this_account_may_not_open_is_named(nobodys_folder: Path, closed: str) -> None:
    ledger = Ledger(nobodys_folder / "privacy" / "ledger.sqlite", nobodys_folder / "state" / "head.json")
    charge(ledger, 1, **EXACT)
    path = {"ledger": ledger.path, "head": ledger.head_path, "folder": ledger.path.parent}[closed]
    path.chmod(0)
    for use in (ledger.entries, lambda: ledger.charge(entry(1, **EXACT), max_epsilon=None)):
        with pytest.raises(LedgerError, match=r"may not read .*ledger\.sqlite|Permission denied .*run as the owner"):
            use()  # type: ignore[operator]
    path.chmod(0o700)


def test_the_next_charge_clears_what_a_killed_one_left(ledger: Ledger) -> None:
    charge(ledger, **EXACT)
    leftover = ledger.head_path.with_name(f".{ledger.head_path.name}.123.tmp")
    other = ledger.head_path.with_name(".another.123.tmp")
    for path in (leftover, other):
        path.write_text("{")
    ledger.entries()
    assert leftover.exists()
    charge(ledger, **EXACT)
    assert not leftover.exists()
    assert other.exists()


def test_reading_changes_nothing_and_everything_is_private(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> dict[Path, tuple[int, int, bytes]]:
        found = (path for path in tmp_path.rglob("*") if path.is_file())
        return {path: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    assert ledger.entries() == []
    assert ledger.claim("images") is None
    assert not ledger.path.exists()
    append, journals = module._append, []

    def looked_at(*arguments: Any) -> str:
        digest = append(*arguments)
        journals.extend(stat.S_IMODE(path.stat().st_mode) for path in ledger.path.parent.glob("*-journal"))
        return digest

    monkeypatch.setattr(module, "_append", looked_at)
    umask = os.umask(0)
    charge(ledger, 2, **EXACT)
    os.umask(umask)
    assert journals
    assert {stat.S_IMODE(content[0]) for content in files().values()} | set(journals) == {0o600}
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700
    for path in (ledger.path, ledger.head_path):
        path.chmod(0o400)
    ledger.path.parent.chmod(0o500)
    before = files()
    ledger.entries(), ledger.head(), ledger.claim("images"), ledger.contains("0")
    assert files() == before


def test_a_ledger_that_others_may_write_is_not_charged(ledger: Ledger) -> None:
    charge(ledger, **EXACT)
    ledger.path.chmod(0o660)
    with pytest.raises(LedgerError, match="chmod 600"):
        ledger.charge(entry(1, **EXACT), max_epsilon=None)


def test_the_table_itself_is_append_only(ledger: Ledger) -> None:
    charge(ledger)
    with sqlite3.connect(ledger.path) as connection:
        for statement in ("UPDATE ledger SET hash = ''", "DELETE FROM ledger"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)


def spend(path: Path, head: Path, budget: float, done: Any) -> None:
    charged = 0
    for number in range(10):
        try:
            Ledger(path, head).charge(entry(number, **EXACT), max_epsilon=budget)
            charged += 1
        except BudgetExceeded:
            pass
    done.put(charged)


def test_concurrent_jobs_cannot_overspend(ledger: Ledger) -> None:
    budget = epsilon_unit([Charge(20.0, 1.0, 130)], 1e-5)
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    processes = [context.Process(target=spend, args=(ledger.path, ledger.head_path, budget, done)) for _ in range(4)]
    for process in processes:
        process.start()
    charged = [done.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    assert sum(charged) == len(ledger.entries()) == 13
    assert ledger.claim("images").epsilon_unit <= budget  # type: ignore[union-attr]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["privacy", "ledger", *arguments])


def test_the_command_shows_and_verifies(ledger: Ledger, tmp_path: Path) -> None:
    assert "nothing was charged" in run("show", "--kit", str(tmp_path)).stdout
    charge(ledger, 2)
    shown = run("show", "--kit", str(tmp_path)).stdout
    assert "adding or removing one bundle (delta = 1e-05, PRV accountant)" in shown
    assert "spent of epsilon = 10 for adding or removing one bundle (delta = 1e-05, PRV accountant)" in shown
    absent = run("show", "--kit", str(tmp_path), "--data-set", "nosuch")
    assert absent.exit_code == 1
    assert "'nosuch': expected one of images" in absent.stderr
    content = json.loads(run("show", "--kit", str(tmp_path), "--json").stdout)
    total, row = content["data_sets"]["images"]["claim"], content["rows"][-1]
    assert total["steps"] == 20
    for holder in (total, row):
        assert holder["adjacency_unit"] == "adding or removing one bundle"
        assert holder["accountant_record"] == "replace-one PRV accountant"
    assert row["epsilon_unit"] == total["epsilon_unit"]
    verified = run("verify", "--kit", str(tmp_path), "--head", ledger.head(), "--json")
    assert json.loads(verified.stdout) == {"valid": True, "rows": 2, "head": ledger.head()}
    assert run("verify", "--kit", str(tmp_path), "--head", "0" * 64).exit_code == 1
    assert verified.stderr == ""
    ledger.path.chmod(0o644)
    exposed = run("verify", "--kit", str(tmp_path))
    assert exposed.exit_code == 0
    assert "others may read or write it" in exposed.stderr
    TAMPERED["edited"](ledger)
    failed = run("verify", "--kit", str(tmp_path))
    assert failed.exit_code == 1
    assert "row 2" in failed.stderr
    assert run("show", "--kit", str(tmp_path / "nowhere")).exit_code == 1
