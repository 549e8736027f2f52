"""What the server remembers of the sites' privacy ledgers: the last head of each, over all experiments.

A site whose ledger, with everything beside it, was set back to an earlier day does not hold that head any more, and
would spend again what it has spent. The server sends the head with each task, and the site looks for it in its ledger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from fedad_components.files import alone_in, make_private_dir, write_atomic

FILE_NAME = "ledger_heads.json"
_HEAD = re.compile(r"[0-9a-f]{64}")


class LedgerHeadsError(ValueError):
    """The server's memory cannot be read; the message names the file and the fix."""


def read_heads(path: str | Path) -> dict[str, str]:
    """Site -> head; empty if no site has told one yet.

    Raises:
        LedgerHeadsError: if the file is not what :func:`remember_heads` writes.
    """
    path = Path(path)
    if not path.exists():
        return {}
    try:
        heads = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(head, str) and _HEAD.fullmatch(head) for head in heads.values()):
            raise ValueError("a value is no SHA-256")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise LedgerHeadsError(
            f"{path}: cannot be read ({error}): restore it from a backup. Without it, a site whose privacy ledger was "
            f"rolled back would go unnoticed"
        ) from None
    return dict(heads)


def remember_heads(path: str | Path, heads: Mapping[str, str]) -> None:
    """Add or replace the heads of some sites; jobs may do so at the same time."""
    path = Path(path)
    if not heads:
        return
    with alone_in(make_private_dir(path.parent)):
        write_atomic(path, json.dumps({**read_heads(path), **heads}, indent=1, sort_keys=True).encode("utf-8"))
