"""Counts of patients that travel beside an update, held against each other from both ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from parties import Federation

from fedad_components.audit.findings import Finding, FindingKind
from fedad_components.audit.verify import verify

EVENTS, VALIDATION, OTHER = "ab" * 32, "cd" * 32, "ef" * 32
SENT = {"events": EVENTS, "validation": VALIDATION}


def findings(folder: Path, received: dict[str, str] | None, *logs: str) -> list[Finding]:
    """What is found where site-a sent :data:`SENT` in round 1 and the server wrote down ``received``."""
    federation = Federation(folder / "logs")
    federation.round(0)
    federation.round(1, counts=SENT, received=received)
    federation.close()
    return verify([federation.folder / log for log in logs] or [federation.folder], federation.root()).findings


def test_counts_that_are_the_same_at_both_ends_verify(tmp_path: Path) -> None:
    assert findings(tmp_path, SENT) == []


@pytest.mark.parametrize(
    ("received", "told"),
    [
        (SENT | {"validation": OTHER}, "'validation': sent cdcdcdcdcdcd…, received efefefefefef…"),
        ({"events": EVENTS}, "'validation': sent cdcdcdcdcdcd…, received none"),
        (SENT | {"scores": OTHER}, "'scores': sent none, received efefefefefef…"),
        ({}, "'events': sent abababababab…, received none; 'validation': sent cdcdcdcdcdcd…, received none"),
    ],
)
def test_a_count_that_differs_is_named_with_its_site_and_round(
    tmp_path: Path, received: dict[str, str], told: str
) -> None:
    (finding,) = findings(tmp_path, received)
    assert (finding.kind, Path(finding.file).parent.name) == (FindingKind.COUNTS_DIFFER, "server")
    assert "of round 1, job 'job-1' of 'site-a'" in finding.detail
    assert finding.detail.endswith(told)


def test_without_the_sites_log_nothing_can_be_compared(tmp_path: Path) -> None:
    assert findings(tmp_path, {}, "server", "site-b") == []
