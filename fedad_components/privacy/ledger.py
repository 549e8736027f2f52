"""A site's privacy ledger: what each data set has spent, over all jobs and restarts; it can only grow.

One SQLite file. Each row holds the SHA-256 of its content and of the row before it; the first row is a random number,
so that a head reveals nothing. The head is also kept in the site's state, and the server has the one of each result: a
ledger that was deleted, edited or set back contradicts them, and everything is refused until the newest copy is back.
Reading changes nothing, but that it undoes the half of a commit that a killed process left.

A crash loses no charge: the row is committed before the head's file follows. Whoever writes next finds that file at
most one row behind, never ahead, and brings it up to date before anything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from fedad_components.config import NAME_PATTERN, Positive
from fedad_components.files import make_private_dir, write_atomic
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.claim import ACCOUNTANTS, PrivacyClaim, adjacencies
from fedad_components.privacy.site_file import cause, is_there

BUSY_SECONDS = 120.0
"""How long a charge waits for those of other processes."""
PROTECTED_MODE = "dp_sgd"
_START = "0" * 64
_SCHEMA = (
    "CREATE TABLE ledger (number INTEGER PRIMARY KEY, content TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)


class LedgerError(RuntimeError):
    """A ledger that cannot be trusted, or a charge that it cannot take; the message names the file, row and fix."""


class BudgetExceeded(LedgerError):
    """The round would pass the data set's budget; nothing was charged."""


Name = Annotated[str, Field(pattern=NAME_PATTERN)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Entry:
    """One round of training on one data set. The fields from ``unit`` on are those of dp_sgd, and None without it.

    Raises:
        ValueError: naming a field that is missing, of another type, or not a finite number above 0.
    """

    data_set: Name
    experiment: Name
    job_id: Annotated[str, Field(min_length=1, max_length=128)]
    round: Annotated[int, Field(ge=0)]
    mode: Literal["none", "dp_sgd", "weight_noise", "client_dp"]
    unit: Literal["patient", "bundle"] | None = None
    units: Annotated[int, Field(ge=1)] | None = None
    """Declared number of units."""
    key_fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the key that assigns patients to units: another key means other units."""
    noise_multiplier: Positive | None = None
    max_grad_norm: Positive | None = None
    sample_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None

    @model_validator(mode="after")
    def _protection(self) -> Entry:
        protection = [name for name in _PROTECTION if getattr(self, name) is not None]
        if self.mode != PROTECTED_MODE and protection:
            raise ValueError(
                f"{protection[0]}: given under privacy.mode {self.mode!r}, which has no guarantee to count"
            )
        if self.mode == PROTECTED_MODE and (missing := [name for name in _PROTECTION if name not in protection]):
            raise ValueError(f"{missing[0]}: missing under privacy.mode {self.mode!r}")
        return self

    @property
    def charge(self) -> Charge:
        """A dp_sgd entry as the accountants take it."""
        assert self.noise_multiplier
        assert self.sample_rate
        assert self.steps
        return Charge(self.noise_multiplier, self.sample_rate, self.steps)

    @property
    def partition(self) -> tuple[Any, ...]:
        """What decides which units there are."""
        return self.unit, self.units, self.key_fingerprint


_PROTECTION = (
    "unit",
    "units",
    "key_fingerprint",
    "noise_multiplier",
    "max_grad_norm",
    "sample_rate",
    "steps",
    "delta",
)


@plain_dataclass(frozen=True)
class Row:
    """An entry as it stands in the ledger."""

    number: int
    time: str
    """UTC, ISO 8601."""
    entry: Entry
    epsilon_unit: float | None
    """Of the whole data set after this entry, at its delta; None once a round ran without protection."""
    epsilon_record: float | None
    hash: str


def budget_text(name: str, budget: float, claim: PrivacyClaim) -> str:
    """A budget of the policy, ``max_epsilon`` or ``max_epsilon_record``, with what it is an epsilon of."""
    kind = "unit" if name == "max_epsilon" else "record"
    return f"epsilon = {budget:g} for {adjacencies(claim.unit)[kind]} (delta = {claim.delta:g}, {ACCOUNTANTS[kind]})"


class Ledger:
    """The ledger in ``path``, whose head is also kept in ``head_path``.

    Nothing is made before the first charge; until then it is empty.
    """

    def __init__(self, path: str | Path, head_path: str | Path) -> None:
        self.path, self.head_path = Path(path), Path(head_path)

    def charge(self, entry: Entry, *, max_epsilon: float | None, max_epsilon_record: float | None = None) -> Row:
        """Append an entry, to be called before its round is trained.

        Chain, head, units and budget are checked and the row is written in one transaction, so that two processes can't
        overspend.

        Args:
            entry: the round.
            max_epsilon: budget of the data set for adding or removing one unit, over everything it was ever charged.
            max_epsilon_record: budget for one record changed inside a unit.

        Raises:
            BudgetExceeded: with the figure that would be reached.
            LedgerError: the ledger cannot be trusted, the entry's units are not those that it has counted so far, or no
                epsilon can be computed.
        """
        with self._writing() as (connection, rows, head):
            earlier = [row.entry for row in rows if row.entry.data_set == entry.data_set]
            self._refuse_other_units(earlier, entry)
            epsilons = self._afford([*earlier, entry], max_epsilon, max_epsilon_record)
            number = len(rows) + 1
            content = {"time": _now(), **asdict(entry), "epsilon_unit": epsilons[0], "epsilon_record": epsilons[1]}
            row = _row(number, content, _append(connection, number, content, head))
        with self._writing():  # brings the head's file up to the row
            return row

    def entries(self, data_set: str | None = None) -> list[Row]:
        """All verified rows, or those of a data set, in order.

        Raises:
            LedgerError: as :meth:`charge`.
        """
        with self._files():
            told = self._told_head()  # first: a ledger is made before its head
            if not is_there(self.path):
                rows, _ = self._nothing(told)
            else:
                with self._open() as connection:
                    connection.execute("PRAGMA query_only = ON")
                    connection.execute("BEGIN")
                    rows, _ = self._verified(connection)
        return [row for row in rows if data_set in (None, row.entry.data_set)]

    def open_to_others(self) -> bool:
        """Whether other accounts may read or write the file, which no charge is written to then.

        Raises:
            LedgerError: as :meth:`charge`.
        """
        with self._files():
            return is_there(self.path) and bool(stat.S_IMODE(self.path.stat().st_mode) & 0o077)

    def head(self) -> str:
        """Hash of the last row; LedgerError if there is none, or the ledger cannot be trusted."""
        rows = self.entries()
        if not rows:
            raise LedgerError(f"{self.path}: empty: nothing was charged yet")
        return rows[-1].hash

    def contains(self, head: str) -> bool:
        """Whether a row has this hash: whether the ledger is at least as new as when it was told."""
        return any(row.hash == head for row in self.entries())

    def claim(self, data_set: str, experiment: str | None = None) -> PrivacyClaim | None:
        """What may be said about a data set, or one experiment on it, at the last round's delta; None if nothing may.

        Raises:
            LedgerError: as :meth:`charge`.
        """
        return self._claim([row.entry for row in self.entries(data_set) if experiment in (None, row.entry.experiment)])

    def _claim(self, entries: Sequence[Entry]) -> PrivacyClaim | None:
        if not entries or any(entry.mode != PROTECTED_MODE for entry in entries):
            return None
        last, charges = entries[-1], [entry.charge for entry in entries]
        assert last.delta
        steps = sum(charge.steps for charge in charges)
        try:
            return PrivacyClaim.model_validate(
                {
                    **{
                        name: getattr(last, name)
                        for name in ("unit", "units", "noise_multiplier", "sample_rate", "delta")
                    },
                    "steps": steps,
                    "epsilon_unit": epsilon_unit(charges, last.delta),
                    "epsilon_record": epsilon_record(charges, last.delta),
                }
            )
        except ValueError as error:  # the accountant's, or an epsilon that is no finite number above 0
            raise LedgerError(
                f"data set {last.data_set!r}: no epsilon can be computed for {steps} steps, the last ones at noise "
                f"multiplier {last.noise_multiplier:g} ({error}): change privacy.noise_multiplier, or plan fewer rounds"
            ) from None

    def _refuse_other_units(self, earlier: Sequence[Entry], entry: Entry) -> None:
        """Composition is proven for one division into units; the division of the first charge is kept for good."""
        protected = [known for known in earlier if known.mode == PROTECTED_MODE]
        if entry.mode == PROTECTED_MODE and protected and protected[-1].partition != entry.partition:
            old, new = (f"{e.units} units ({e.unit}, key {str(e.key_fingerprint)[:8]})" for e in (protected[-1], entry))
            raise LedgerError(
                f"{self.path}: data set {entry.data_set!r} was charged for {old}, and the job would divide it into "
                f"{new}: no epsilon holds across two divisions. Set catalogue.yaml, privacy.unit and the unit key as "
                f"they were, or register images that were never trained on under another id"
            )

    def _afford(
        self, entries: Sequence[Entry], max_epsilon: float | None, max_epsilon_record: float | None
    ) -> tuple[float | None, float | None]:
        """Both epsilons of a data set's entries, the last of which is to be charged; BudgetExceeded if one is too much.

        A round without protection passes every budget. Where no round was protected there is none to keep: whether such
        a job may train is the policy's ``required_mode``.
        """
        entry, unprotected = entries[-1], sum(known.mode != PROTECTED_MODE for known in entries)
        budgets = {"max_epsilon": max_epsilon, "max_epsilon_record": max_epsilon_record}
        where = f"data set {entry.data_set!r}: round {entry.round} of experiment {entry.experiment!r}"
        claim = self._claim(entries)
        if claim is None:
            if unprotected < len(entries) and any(budget is not None for budget in budgets.values()):
                raise BudgetExceeded(
                    f"{where} would stand beside rounds of another kind: {unprotected} of {len(entries)} without "
                    f"differential privacy, so that no epsilon holds for the data set and no budget can be kept. Set "
                    f"max_epsilon: null for it in policy.yaml if the site accepts that, or register images that were "
                    f"never trained on under another id"
                )
            return None, None
        reached = {
            "max_epsilon": claim.epsilon_unit,
            "max_epsilon_record": claim.epsilon_record or math.inf,
        }
        for name, budget in budgets.items():
            if budget is not None and not reached[name] <= budget:  # also where the budget is no number
                raise BudgetExceeded(
                    f"{where} would reach {claim}, and the site's {name} is {budget_text(name, budget, claim)}: "
                    f"nothing was charged or trained. Plan fewer rounds or more noise, or let the officer raise it in "
                    f"policy.yaml"
                )
        return claim.epsilon_unit, claim.epsilon_record

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, list[Row], str]]:
        """A transaction beside which nobody else writes: the connection, all rows and the head, verified.

        The head's file is up to date on entry, and is written nowhere else.
        """
        with self._files():
            told = self._told_head()
            if not is_there(self.path):
                self._nothing(told)
                make_private_dir(self.path.parent)
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            if self.open_to_others():
                raise LedgerError(f"{self.path}: others may read or write it: chmod 600 it")
            with self._open() as connection:
                # With the folder's entry: a commit must outlive a loss of power if the head's file does.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                if not _schema(connection):
                    self._nothing(self._told_head())
                    _create(connection)  # a transaction of its own: no head may exist before its ledger
                    connection.execute("COMMIT")
                    connection.execute("BEGIN IMMEDIATE")
                rows, head = self._verified(connection)
                if self._told_head() != (len(rows), head):
                    self._write_head(len(rows), head)
                yield connection, rows, head
                connection.execute("COMMIT")

    @contextlib.contextmanager
    def _files(self) -> Iterator[None]:
        """What the operating system says of ledger, head or a folder of theirs, as a LedgerError."""
        try:
            yield
        except OSError as error:
            raise LedgerError(f"{cause(self.path, error)}; no training on this site's data sets until then") from None

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The file's connection, with transactions begun and ended by hand; one that is left open is undone.

        Opened for writing also to read it: SQLite must undo what a process that was killed in its commit left in the
        file, and takes a file that this account may not write for reading alone.
        """
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                connection.text_factory = bytes  # an edited row may hold anything
                yield connection
        except sqlite3.OperationalError as error:
            raise LedgerError(f"{self.path}: cannot be used now ({error}): {self._lacking()}") from None
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"{self.path}: not a usable SQLite file ({error}): {_RESTORE}") from None

    def _lacking(self) -> str:
        """What keeps SQLite from a file that is there, and the fix."""
        path = self.path.resolve()
        journal = path.with_name(f"{path.name}-journal")
        needed = ((path, os.R_OK, "read"), (path, os.W_OK, "write"), (path.parent, os.W_OK | os.X_OK, "write in"))
        forbidden = next(
            (
                f"may not {verb} {place}"
                for place, mode, verb in needed
                if not os.access(place, mode, effective_ids=True)
            ),
            None,
        )
        if forbidden and journal.exists():
            return (
                f"a process was killed while it wrote, {journal.name} holds what undoes that, and this account "
                f"{forbidden}: run as the site's account, or copy both files to a folder of yours and chmod u+w them"
            )
        if forbidden:
            return f"this account {forbidden}: run as the site's account, or chmod u+rw the file and 700 its folder"
        return "there must be room on the disk, and other jobs' charges must be over"

    def _nothing(self, told: tuple[int, str] | None) -> tuple[list[Row], str]:
        """No rows, which a missing or empty ledger has only where there is no head either."""
        if told is not None:
            raise LedgerError(
                f"{self.path}: missing or emptied, and {self.head_path} says that it had rows: {_RESTORE}"
            )
        return [], _START

    def _verified(self, connection: sqlite3.Connection) -> tuple[list[Row], str]:
        """All rows and the head, if each row follows from the one before and the head's file agrees."""
        schema = _schema(connection)
        if not schema:
            return self._nothing(self._told_head())
        changed = LedgerError(f"{self.path}: its table or the triggers that protect it were changed: {_RESTORE}")
        if _SCHEMA[0].encode("ascii") not in schema:
            raise changed
        rows, hashes = [], [_START]
        found = connection.execute("SELECT number, content, hash FROM ledger ORDER BY number")
        for position, (number, content, digest) in enumerate(found):
            expected = _chained(hashes[-1], content) if isinstance(content, bytes) else ""
            if number != position or digest != expected.encode("ascii"):
                raise LedgerError(f"{self.path}: row {position} was edited, swapped or removed: {_RESTORE}")
            hashes.append(expected)
            if position:
                rows.append(self._parsed(position, content, expected))
        # Read last, in the same transaction: no row can have been added since, so the file is one behind at most.
        self._check_head(self._told_head(), hashes[1:])
        if schema != {statement.encode("ascii") for statement in _SCHEMA}:  # last: an edited row is the better answer
            raise changed
        return rows, hashes[-1]

    def _parsed(self, number: int, content: bytes, digest: str) -> Row:
        try:
            return _row(number, json.loads(content), digest)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise LedgerError(f"{self.path}: row {number} is no charge ({error}): {_RESTORE}") from None

    def _told_head(self) -> tuple[int, str] | None:
        """Number and hash of the last row, as the site's state has them."""
        if not is_there(self.head_path):
            return None
        try:
            content = json.loads(self.head_path.read_text(encoding="ascii"))
            number, digest = content["number"], content["hash"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LedgerError(f"{self.head_path}: not a ledger's head ({error}): {_RESTORE}") from None
        if type(number) is not int or not isinstance(digest, str):
            raise LedgerError(f"{self.head_path}: not a ledger's head (expected a whole number and a hash): {_RESTORE}")
        return number, digest

    def _check_head(self, told: tuple[int, str] | None, hashes: Sequence[str]) -> None:
        """``hashes`` are those of all rows, from number 0, which is no charge: a crash may come before its head."""
        last = len(hashes) - 1
        if last < 0:
            raise LedgerError(f"{self.path}: row 0 was removed: {_RESTORE}")
        if told is None:
            if last > 0:
                raise LedgerError(f"{self.head_path}: missing, and {self.path} has {last} rows: {_RESTORE}")
            return
        number, digest = told
        if not 0 <= number <= last:
            raise LedgerError(
                f"{self.path}: rolled back: it has {last} rows, and {self.head_path} says {number}: {_RESTORE}"
            )
        if hashes[number] != digest:
            raise LedgerError(f"{self.path}: row {number} is not the one that {self.head_path} saw: {_RESTORE}")
        if last - number > 1:
            raise LedgerError(
                f"{self.head_path}: set back: it says {number}, and {self.path} has {last} rows: {_RESTORE}"
            )

    def _write_head(self, number: int, digest: str) -> None:
        make_private_dir(self.head_path.parent)
        # Only the holder of the transaction writes here: any other temporary file is of a process that was killed.
        for leftover in self.head_path.parent.glob(f".{self.head_path.name}.*.tmp"):
            leftover.unlink(missing_ok=True)
        content = json.dumps({"number": number, "hash": digest}) + "\n"
        write_atomic(self.head_path, content.encode("ascii"))


_RESTORE = (
    "no training on this site's data sets until the newest copy of ledger and head is restored together from the backup"
)


def _schema(connection: sqlite3.Connection) -> set[bytes]:
    return {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}


def _create(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    _append(connection, 0, {"time": _now(), "nonce": secrets.token_hex(32)}, _START)


def _append(connection: sqlite3.Connection, number: int, content: dict[str, Any], head: str) -> str:
    """Write a row behind the head and return its hash."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    digest = _chained(head, text.encode("ascii"))
    connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (number, text, digest))
    return digest


def _row(number: int, content: dict[str, Any], digest: str) -> Row:
    fields = dict(content)
    time, unit, record = (fields.pop(name) for name in ("time", "epsilon_unit", "epsilon_record"))
    return Row(number, time, Entry(**fields), unit, record, digest)


def _chained(head: str, content: bytes) -> str:
    return hashlib.sha256(head.encode("ascii") + b"\n" + content).hexdigest()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")
