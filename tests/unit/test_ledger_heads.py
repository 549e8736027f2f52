"""What the server remembers of the sites' ledgers, over experiments and at the same time."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from fedad_components.ledger_heads import LedgerHeadsError, read_heads, remember_heads


def head(number: int) -> str:
    return f"{number:064x}"


def remember(path: Path, site: int) -> None:
    for number in range(20):
        remember_heads(path, {f"site-{site}": head(number)})


def test_the_last_head_of_each_site_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "server" / "ledger_heads.json"
    assert read_heads(path) == {}
    remember_heads(path, {})
    assert not path.exists()
    remember_heads(path, {"north": head(1), "south": head(2)})
    remember_heads(path, {"north": head(3)})
    assert read_heads(path) == {"north": head(3), "south": head(2)}
    assert path.stat().st_mode & 0o777 == 0o600


def test_jobs_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger_heads.json"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.starmap(remember, [(path, site) for site in range(4)])
    assert read_heads(path) == {f"site-{site}": head(19) for site in range(4)}


@pytest.mark.parametrize("content", ["", "[]", '{"north": "x"}', '{"north": 3}', "[" * 100_000])
def test_a_damaged_memory_is_never_taken_for_an_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger_heads.json"
    path.write_text(content)
    with pytest.raises(LedgerHeadsError, match=r"ledger_heads\.json: cannot be read .*restore it"):
        read_heads(path)
    with pytest.raises(LedgerHeadsError):
        remember_heads(path, {"north": head(1)})
