"""`fedad audit verify`: its answers, its exit codes, and nothing of a log's text that could drive a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parties import Federation
from typer.testing import CliRunner, Result

from fedad_components.audit.event import Kind
from fedad_components.audit.log import AuditLog
from fedad_components.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", "verify", *map(str, arguments)], terminal_width=200)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    federation = Federation(tmp_path_factory.mktemp("cli") / "logs")
    federation.round(0)
    federation.close()
    federation.root()
    return federation


def test_verified(federation: Federation) -> None:
    result = run(federation.folder, "--root-ca", federation.root())
    assert result.exit_code == 0
    assert "Verified" in result.output
    assert "'server', 'site-a', 'site-b'" in result.output
    assert "--root-ca" not in result.output


def test_without_a_root_it_says_so(federation: Federation) -> None:
    result = run(federation.folder)
    assert result.exit_code == 0
    assert "certificates in the logs only" in result.output


def test_json(federation: Federation) -> None:
    answer = json.loads(run(federation.folder, "--root-ca", federation.root(), "--json").stdout)
    assert answer["verified"] is True
    assert answer["findings"] == answer["warnings"] == []
    assert (len(answer["files"]), answer["root_checked"]) == (3, True)
    assert answer["events"] == sum(len(file.read_bytes().splitlines()) for file in federation.folder.glob("*/*.jsonl"))


def test_tampered(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "site-a", "site-a")
    for _ in range(3):
        log.write(Kind.COMMAND, durable=False)
    file = tmp_path / "site-a" / "audit-000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[2])
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "missing_lines" in result.output
    assert "Not verified" in result.output
    answer = json.loads(run(tmp_path, "--json").stdout)
    (finding,) = answer["findings"]
    assert finding == {
        "file": str(file),
        "line": 2,
        "kind": "missing_lines",
        "detail": "event 1 is missing before it",
    }


def test_unusable(tmp_path: Path, federation: Federation) -> None:
    for arguments in ([tmp_path], [tmp_path / "absent"], [federation.folder, "--root-ca", tmp_path / "absent"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert str(tmp_path) in result.output.replace("\n", "")


def test_texts_of_a_log_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Names and unknown fields with escape sequences, as a forger would write them."""
    nasty = "\x1b[2J\x1b[31msite\n[E:"
    folder = tmp_path / "\x1b[2J\x1b[1A"
    log = AuditLog(folder, nasty)
    log.write(Kind.COMMAND, job_id=nasty, round=0, peer=nasty)
    log.write(Kind.AGGREGATED, job_id=nasty, round=0, participants={nasty: 1})
    log.write(Kind.LOG_TORN, reason=nasty)
    with (folder / "audit-000001.jsonl").open("ab") as file:
        file.write(b'{"\\u001b[2J":1,"v":1}\n')
    for arguments in ([tmp_path], [tmp_path, "--json"]):
        result = run(*arguments)
        assert result.exit_code == 1
        assert "\x1b[2J" not in result.output
        assert "\n[E:" not in result.output


def test_a_folders_name_does_not_reach_the_terminal_in_an_error(tmp_path: Path) -> None:
    """As it may come out of somebody's archive."""
    folder = tmp_path / "\x1b[2J\u202e"
    folder.mkdir()
    result = run(folder)
    assert result.exit_code == 2
    assert "\\x1b[2J\\u202e: no log there" in result.output.replace("\n", "")
