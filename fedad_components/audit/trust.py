"""Signed checkpoints under verification: is it the party's signature, and what do peers hold against a log?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fedad_components.audit.checkpoint import signature_holds
from fedad_components.audit.event import EventError, Kind, Outcome, SignedCheckpoint, moment, parse
from fedad_components.audit.findings import FindingKind
from fedad_components.audit.keys import check_certificate
from fedad_components.audit.reading import read_lines

_SIGNED = (Kind.PEER_CHECKPOINT, Kind.CHECKPOINT, Kind.LOG_CUT)
_SIGNED_MARK = re.compile(f'"event":"(?:{"|".join(kind.value for kind in _SIGNED)})"'.encode())


class Flaw(NamedTuple):
    """What is wrong with a signature."""

    kind: FindingKind
    detail: str


class Claim(NamedTuple):
    """A signed checkpoint of a log, and who keeps it: a peer, or another copy of the party's own log."""

    root: str
    holder: str
    path: Path
    line: int


class Trust:
    """Whom to believe.

    Args:
        root: the consortium's root certificate, PEM; None to believe each certificate.
    """

    def __init__(self, root: str | None) -> None:
        self.root = root
        self._flaws = lru_cache(maxsize=4096)(self._check)

    def flaws(self, checkpoint: SignedCheckpoint) -> list[Flaw]:
        """Why a checkpoint does not hold; empty if it does."""
        return self._flaws(checkpoint)

    def _check(self, checkpoint: SignedCheckpoint) -> list[Flaw]:
        if not signature_holds(checkpoint):
            return [Flaw(FindingKind.BAD_SIGNATURE, f"{checkpoint.site!r} did not sign this checkpoint")]
        if self.root is None:
            return []
        problems = check_certificate(checkpoint.certificate, self.root, moment(checkpoint.time), checkpoint.site)
        kinds = {True: FindingKind.EXPIRED_CERTIFICATE, False: FindingKind.WRONG_KEY}
        return [Flaw(kinds[problem.expired], f"the signer's certificate: {problem.detail}") for problem in problems]

    def claims(self, files: Iterable[Path]) -> dict[str, dict[int, list[Claim]]]:
        """Of each party, by event number: what it signed, wherever it is kept. Flawed checkpoints are no evidence.

        Raises:
            ReadError: if a file cannot be read.
        """
        found: dict[str, dict[int, list[Claim]]] = defaultdict(lambda: defaultdict(list))
        for file in files:
            for line in read_lines(file):
                if not _SIGNED_MARK.search(line.content):
                    continue
                try:
                    event, _ = parse(line.content)
                except EventError:
                    continue  # found again, and told, when its own log is verified
                held = event.checkpoint
                kept = event.event in _SIGNED and event.outcome is Outcome.SUCCESS
                if kept and held and not self.flaws(held):
                    found[held.site][held.seq].append(Claim(held.root, event.site, file, line.line))
        return found
