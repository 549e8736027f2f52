"""A site's privacy ledger: what each data set has spent, over all jobs and restarts; it can only grow.

One SQLite file. Each row holds the SHA-256 of its content and of the row before it; the first row is a random number,
so that a head reveals nothing. The head is also kept in the site's state, and the server has the one of each result: a
ledger that was deleted, edited or set back contradicts them, and everything is refused until the newest copy is back.
Reading changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from fedad_components.files import FileLock, LockedError, make_private_dir, write_atomic
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.claim import PrivacyClaim

LOCK_SECONDS = 60.0
PROTECTED_MODE = "dp_sgd"
_START = "0" * 64
_SCHEMA = """
CREATE TABLE ledger (number INTEGER PRIMARY KEY, content TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


class LedgerError(RuntimeError):
    """A ledger that cannot be trusted, or a charge that it cannot take; the message names the file, row and fix."""


class BudgetExceeded(LedgerError):
    """The round would pass the data set's budget; nothing was charged."""


@dataclass(frozen=True)
class Entry:
    """One round of training on one data set. The fields from ``unit`` on are those of dp_sgd, and None without it.

    Raises:
        ValueError: naming a field that is missing, or not a finite number above 0.
    """

    data_set: str
    experiment: str
    job_id: str
    round: int
    mode: Literal["none", "dp_sgd", "weight_noise", "client_dp"]
    unit: Literal["patient", "bundle"] | None = None
    units: int | None = None
    """Declared number of units."""
    key_fingerprint: str | None = None
    """Of the key that assigns patients to units: another key means other units."""
    noise_multiplier: float | None = None
    max_grad_norm: float | None = None
    sample_rate: float | None = None
    steps: int | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        protection = {name: value for name, value in asdict(self).items() if name in _PROTECTION}
        if self.mode != PROTECTED_MODE:
            if given := [name for name, value in protection.items() if value is not None]:
                raise ValueError(f"{given[0]}: given under privacy.mode {self.mode!r}, which has no guarantee to count")
            return
        if missing := [name for name, value in protection.items() if value is None]:
            raise ValueError(f"{missing[0]}: missing under privacy.mode {self.mode!r}")
        _ = self.charge
        for name in ("max_grad_norm", "delta", "units"):
            value = protection[name]
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} = {value!r}: expected a finite number above 0")
        if not self.delta < 1:  # type: ignore[operator]
            raise ValueError(f"delta = {self.delta!r}: expected a number below 1")

    @property
    def charge(self) -> Charge:
        """The entry as the accountants take it; ValueError as for a Charge."""
        return Charge(self.noise_multiplier, self.sample_rate, self.steps)  # type: ignore[arg-type]

    @property
    def partition(self) -> tuple[Any, ...]:
        """What decides which units there are."""
        return self.unit, self.units, self.key_fingerprint


_PROTECTION = frozenset(
    {"unit", "units", "key_fingerprint", "noise_multiplier", "max_grad_norm", "sample_rate", "steps", "delta"}
)


@dataclass(frozen=True)
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


class Ledger:
    """The ledger in ``path``, whose head is also kept in ``head_path``.

    Nothing is made before the first charge; until then it is empty.
    """

    def __init__(self, path: str | Path, head_path: str | Path) -> None:
        self.path, self.head_path = Path(path), Path(head_path)

    def charge(self, entry: Entry, *, max_epsilon: float | None, max_epsilon_record: float | None = None) -> Row:
        """Append an entry, to be called before its round is trained.

        Chain, head, units and budget are checked and the row is written under one lock: two processes can't overspend.

        Args:
            entry: the round.
            max_epsilon: budget of the data set for adding or removing one unit, over everything it was ever charged.
            max_epsilon_record: budget for one record changed inside a unit.

        Raises:
            BudgetExceeded: with the figure that would be reached.
            LedgerError: the ledger cannot be trusted, or the entry's units are not those that it has counted so far.
        """
        with self._exclusive() as connection:
            head_before = self._told_head()
            rows = self._verified(connection, head_before)
            self._refuse_behind(rows, head_before)
            self._refuse_other_units(rows, entry)
            epsilons = self._afford(rows, entry, max_epsilon, max_epsilon_record)
            number = len(rows) + 1
            content = {"time": _now(), **asdict(entry), "epsilon_unit": epsilons[0], "epsilon_record": epsilons[1]}
            head = rows[-1].hash if rows else self._genesis(connection)
            text = _canonical(content)
            digest = _chained(head, text)
            connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (number, text, digest))
            connection.commit()
            # After the ledger: a crash in between leaves the head one row behind, which is healed; a head that is ahead
            # of its ledger means that a row was lost.
            self._write_head(number, digest)
        return _row(number, content, digest)

    def entries(self, data_set: str | None = None) -> list[Row]:
        """All verified rows, or those of a data set, in order; changes nothing.

        Raises:
            LedgerError: as :meth:`charge`.
        """
        head = self._told_head()  # before the rows: a charge under way may add to both
        with self._reading() as connection:
            rows = self._verified(connection, head) if connection else self._nothing()
        return [row for row in rows if data_set in (None, row.entry.data_set)]

    def head(self) -> str:
        """Hash of the last row; LedgerError if there is none, or the ledger cannot be trusted."""
        rows = self.entries()
        if not rows:
            raise LedgerError(f"{self.path}: empty: nothing was charged yet")
        return rows[-1].hash

    def contains(self, head: str) -> bool:
        """Whether a row has this hash: whether the ledger is at least as new as when it was told."""
        return any(secrets.compare_digest(row.hash, head) for row in self.entries())

    def claim(self, data_set: str, experiment: str | None = None) -> PrivacyClaim | None:
        """What may be said about a data set, or about one experiment on it; None if nothing may.

        Raises:
            LedgerError: as :meth:`charge`.
        """
        entries = [row.entry for row in self.entries(data_set) if experiment in (None, row.entry.experiment)]
        if not entries or any(entry.mode != PROTECTED_MODE for entry in entries):
            return None
        last, charges = entries[-1], [entry.charge for entry in entries]
        delta = max(entry.delta for entry in entries if entry.delta is not None)
        return PrivacyClaim.model_validate(
            {
                **{name: getattr(last, name) for name in ("unit", "units", "noise_multiplier", "sample_rate")},
                "steps": sum(charge.steps for charge in charges),
                "delta": delta,
                "epsilon_unit": epsilon_unit(charges, delta),
                "epsilon_record": epsilon_record(charges, delta),
            }
        )

    # -- what a charge checks -----------------------------------------------------------------------------------------

    def _refuse_other_units(self, rows: Sequence[Row], entry: Entry) -> None:
        earlier = [
            row.entry for row in rows if row.entry.data_set == entry.data_set and row.entry.mode == PROTECTED_MODE
        ]
        if entry.mode == PROTECTED_MODE and earlier and earlier[-1].partition != entry.partition:
            old, new = (f"{e.units} units ({e.unit}, key {str(e.key_fingerprint)[:8]})" for e in (earlier[-1], entry))
            raise LedgerError(
                f"{self.path}: data set {entry.data_set!r} was charged for {old}, and the job would divide it into "
                f"{new}: no epsilon holds across two divisions. Set catalogue.yaml, privacy.unit and the unit key as "
                f"they were, or register images that were never trained on under another id"
            )

    def _afford(
        self, rows: Sequence[Row], entry: Entry, max_epsilon: float | None, max_epsilon_record: float | None
    ) -> tuple[float | None, float | None]:
        """Both epsilons of the data set after the entry; BudgetExceeded if one passes its budget."""
        before = [row.entry for row in rows if row.entry.data_set == entry.data_set]
        if entry.mode != PROTECTED_MODE:
            return None, None
        if unprotected := sum(earlier.mode != PROTECTED_MODE for earlier in before):
            if max_epsilon is not None or max_epsilon_record is not None:
                raise BudgetExceeded(
                    f"data set {entry.data_set!r}: {unprotected} earlier rounds ran without differential privacy, so "
                    f"that no epsilon holds for it and no budget can be kept. Set max_epsilon: null for it in "
                    f"policy.yaml if the site accepts that, or register images that were never trained on under "
                    f"another id"
                )
            return None, None
        charges = [earlier.charge for earlier in (*before, entry)]
        delta = entry.delta
        assert delta is not None
        reached = epsilon_unit(charges, delta), epsilon_record(charges, delta)
        for name, value, budget, adjacency in (
            ("max_epsilon", reached[0], max_epsilon, f"adding or removing one {entry.unit}, PRV accountant"),
            ("max_epsilon_record", reached[1], max_epsilon_record, "one record changed, replace-one PRV accountant"),
        ):
            if budget is not None and not value <= budget:
                raise BudgetExceeded(
                    f"data set {entry.data_set!r}: round {entry.round} of experiment {entry.experiment!r} would reach "
                    f"epsilon = {value:.3f} ({adjacency}, delta = {delta:g}), and the site's {name} is {budget:g}: nothing "
                    f"was charged or trained"
                )
        return reached

    # -- the file -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        """The open ledger, which nobody else writes meanwhile; made if neither it nor a head exists."""
        make_private_dir(self.path.parent)
        lock = FileLock(self.head_path.with_name("ledger.lock"))
        try:
            lock.acquire(wait=LOCK_SECONDS)
        except LockedError as error:
            raise LedgerError(f"{self.path}: another job has charged it for {LOCK_SECONDS:.0f} s: {error}") from None
        try:
            if not self.path.exists():
                self._nothing()
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                fresh = True
            else:
                fresh = self.path.stat().st_size == 0 and not self.head_path.exists()
            with self._guarded(), contextlib.closing(sqlite3.connect(self.path, timeout=LOCK_SECONDS)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                if fresh:
                    connection.executescript(_SCHEMA)
                yield connection
        finally:
            lock.release()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        if not self.path.exists():
            yield None
            return
        with (
            self._guarded(),
            contextlib.closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as connection,
        ):
            yield connection

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: not a usable SQLite file ({error}): {_RESTORE}") from None

    def _nothing(self) -> list[Row]:
        """No rows, which a missing ledger has only where there is no head either."""
        if self.head_path.exists():
            raise LedgerError(f"{self.path}: missing, and {self.head_path} says that it had rows: {_RESTORE}")
        return []

    def _genesis(self, connection: sqlite3.Connection) -> str:
        content = _canonical({"time": _now(), "nonce": secrets.token_hex(32)})
        digest = _chained(_START, content)
        connection.execute("INSERT INTO ledger VALUES (0, ?, ?)", (content, digest))
        return digest

    def _verified(self, connection: sqlite3.Connection, told: tuple[int, str] | None) -> list[Row]:
        """All rows, if each follows from the one before and the head is among them."""
        found = connection.execute("SELECT number, content, hash FROM ledger ORDER BY number").fetchall()
        head, rows = _START, []
        for position, (number, content, digest) in enumerate(found):
            if number != position or _chained(head, content) != digest:
                raise LedgerError(f"{self.path}: row {position} was edited, swapped or removed: {_RESTORE}")
            head = digest
            if position:
                rows.append(self._parsed(position, content, digest))
        if told is not None:
            self._check_head(*told, [digest for _, _, digest in found])
        return rows

    def _parsed(self, number: int, content: str, digest: str) -> Row:
        try:
            return _row(number, json.loads(content), digest)
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"{self.path}: row {number} is no charge ({error}): {_RESTORE}") from None

    def _told_head(self) -> tuple[int, str] | None:
        """Number and hash of the last row, as the site's state has them."""
        if not self.head_path.exists():
            return None
        try:
            content = json.loads(self.head_path.read_text(encoding="ascii"))
            return int(content["number"]), str(content["hash"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{self.head_path}: not a ledger's head ({error}): {_RESTORE}") from None

    def _check_head(self, number: int, digest: str, hashes: Sequence[str]) -> None:
        last = len(hashes) - 1
        if not 1 <= number <= last:
            raise LedgerError(
                f"{self.path}: rolled back: it has {max(last, 0)} rows, and {self.head_path} says {number}: {_RESTORE}"
            )
        if hashes[number] != digest:
            raise LedgerError(f"{self.path}: row {number} is not the one that {self.head_path} saw: {_RESTORE}")

    def _refuse_behind(self, rows: Sequence[Row], told: tuple[int, str] | None) -> None:
        """A crash leaves the head at most one row behind; more means that it was removed or set back."""
        number = told[0] if told else 0
        if len(rows) - number > 1:
            raise LedgerError(
                f"{self.head_path}: {'says row ' + str(number) if told else 'missing'}, and {self.path} has {len(rows)} "
                f"rows: {_RESTORE}"
            )

    def _write_head(self, number: int, digest: str) -> None:
        make_private_dir(self.head_path.parent)
        content = json.dumps({"number": number, "hash": digest}) + "\n"
        write_atomic(self.head_path, content.encode("ascii"))


_RESTORE = (
    "no training on this site's data sets until the newest copy of ledger and head is restored together from the backup"
)


def _row(number: int, content: dict[str, Any], digest: str) -> Row:
    fields = dict(content)
    time, unit, record = (fields.pop(name) for name in ("time", "epsilon_unit", "epsilon_record"))
    return Row(number, time, Entry(**fields), unit, record, digest)


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _chained(head: str, content: str) -> str:
    return hashlib.sha256(f"{head}\n{content}".encode("ascii")).hexdigest()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")
