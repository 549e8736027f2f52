"""`fedad audit query` and `fedad audit export`, and that reading a live log is an event of it."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
from audit_events import ACTOR, NASTY, every_kind, nasty_event
from authority import Authority
from typer.testing import CliRunner, Result

from fedad_components.audit.access import live_kit
from fedad_components.audit.event import Event, Kind
from fedad_components.audit.log import AuditLog
from fedad_components.audit.reading import read
from fedad_components.cli import app


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copied log with an event of each kind."""
    folder = tmp_path / "copies" / "hospital-a"
    folder.mkdir(parents=True)
    (folder / "audit-000001.jsonl").write_bytes(b"".join(event.line() + b"\n" for event in every_kind()))
    return folder


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """The log of a running site, in its kit."""
    kit = tmp_path / "hospital-a"
    authority = Authority(tmp_path)
    (kit / "startup").mkdir(parents=True)
    for source, name in zip(authority.issue("hospital-a"), ("client.crt", "client.key"), strict=True):
        shutil.move(source, kit / "startup" / name)
    folder = kit / "local" / "fedad" / "audit"
    AuditLog(folder, "hospital-a").write(Kind.SYSTEM_STARTED)
    return folder


def events(folder: Path) -> list[Event]:
    return [located.event for located in read([folder])]


def test_the_table_names_what_was_asked_for(copy: Path) -> None:
    result = run("query", copy, "--outcome", "refused", "--user", ACTOR["name"])
    assert result.exit_code == 0, result.output
    assert "abort_job" in result.stdout
    assert "1 events" in result.stdout
    assert "job_submitted" not in result.stdout
    assert result.stderr == "note: reading copies is not logged: 1 of the logs\n"


def test_json_prints_the_lines_as_they_stand(copy: Path) -> None:
    result = run("query", copy, "--json", "--event", "result_sent", "--event", "task_sent")
    sent = [event for event in every_kind() if event.event in (Kind.RESULT_SENT, Kind.TASK_SENT)]
    assert result.stdout_bytes == b"".join(event.line() + b"\n" for event in sent)


def test_several_logs_are_one_story(copy: Path) -> None:
    late, early = every_kind()[0], every_kind()[0].model_copy(update={"time": "2029-01-01T00:00:00.000000Z"})
    for name, event in (("a", late), ("b", early)):
        (copy / name).mkdir()
        (copy / name / "audit-000001.jsonl").write_bytes(event.line() + b"\n")
    result = run("query", copy / "a", copy / "b", "--json")
    assert [json.loads(line)["time"] for line in result.stdout.splitlines()] == [early.time, late.time]


def test_nothing_in_a_log_reaches_the_terminal_as_a_command(copy: Path) -> None:
    (copy / "audit-000001.jsonl").write_bytes(nasty_event().line() + b"\n")
    result = run("query", copy)
    assert result.exit_code == 0
    assert "1 events" in result.stdout
    said = set(result.stdout) & {c for c in NASTY if not c.isprintable()}
    assert said == {"\n"}
    assert not [line for line in result.stdout.splitlines() if line.startswith("[E:")]


def test_a_line_that_is_no_event_is_named_and_the_rest_shown(copy: Path) -> None:
    file = copy / "audit-000001.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[3] = json.dumps({**json.loads(lines[3]), "\x1b[31m": 1}).encode()
    file.write_bytes(b"\n".join(lines))
    result = run("query", copy, "--event", "command")
    assert result.exit_code == 3
    assert "1 events" in result.stdout
    assert "audit-000001.jsonl:4" in result.stderr
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["query", "nowhere"], "nowhere: there is no such file or folder"),
        (["query", "LOG", "--since", "yesterday"], "'yesterday' is no RFC 3339 time"),
        (["export", "LOG", "--format", "fhir"], "either --out FILE or --collector HOST:PORT"),
        (["export", "LOG", "--format", "fhir", "--out", "x", "--collector", "a:1"], "either --out FILE or"),
        (["export", "LOG", "--format", "fhir", "--collector", "a:1", "--ca", "x"], "takes --format syslog, not fhir"),
        (["export", "LOG", "--format", "syslog", "--collector", "a:1"], "needs --ca FILE"),
        (["export", "LOG", "--format", "csv", "--out", "x", "--key", "k"], "--key: only with --collector"),
        (["export", "LOG", "--format", "syslog", "--collector", "a:b:c", "--ca", "x"], "expected HOST:PORT"),
        (["export", "LOG", "--format", "syslog", "--collector", "a:1", "--ca", "absent"], "absent: no certificates"),
        (["export", "LOG", "--format", "csv", "--out", "absent/x"], "absent: there is no such folder"),
        (["export", "LOG", "--format", "csv", "--out", "LOG/x"], "in the folder of a log"),
        (["export", "LOG", "--format", "csv", "--out", "LOG/audit-000001.jsonl"], "exists; choose another name"),
    ],
)
def test_what_cannot_be_done_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(copy.parent)
    before = (copy / "audit-000001.jsonl").read_bytes()
    result = run(*(option.replace("LOG", "hospital-a") for option in options))
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stdout == ""
    assert (copy / "audit-000001.jsonl").read_bytes() == before


@pytest.mark.parametrize("form", ["fhir", "atna", "syslog", "csv"])
def test_every_format_holds_every_event(copy: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "export"
    result = run("export", copy, "--format", form, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{len(Kind)} events to {out}\n"
    content = out.read_bytes()
    found = {
        "fhir": lambda: len(json.loads(content)["entry"]),
        "atna": lambda: content.count(b"</AuditMessage>"),
        "syslog": lambda: len(content.split(b"\n")[:-1]),
        "csv": lambda: len(list(csv.DictReader(content.decode().split("\r\n")))),
    }
    assert found[form]() == len(Kind)
    assert out.stat().st_mode & 0o777 == 0o600


def test_syslog_may_carry_audit_messages(copy: Path, tmp_path: Path) -> None:
    run("export", copy, "--format", "syslog", "--message", "atna", "--out", tmp_path / "export")
    assert (tmp_path / "export").read_bytes().count(b"<AuditMessage>") == len(Kind)


def test_reading_a_live_log_is_an_event_of_it(live: Path) -> None:
    result = run("query", live, "--json")
    assert result.exit_code == 0, result.output
    assert "copies" not in result.stderr
    *_, last = events(live)
    assert (last.event, last.site, last.command) == (Kind.LOG_READ, "hospital-a", "audit query")
    assert last.actor is not None
    assert last.actor.role == "account of the operating system"
    assert json.loads(result.stdout.splitlines()[-1])["event"] == "log_read"


def test_exporting_a_live_log_is_an_event_of_it(live: Path, tmp_path: Path) -> None:
    assert run("export", live, "--format", "csv", "--out", tmp_path / "a.csv").exit_code == 0
    *_, last = events(live)
    assert (last.event, last.outcome.value, last.reason) == (Kind.LOG_EXPORTED, "success", "as csv")
    assert b"log_exported" in (tmp_path / "a.csv").read_bytes()


def test_an_export_that_breaks_off_says_so_in_the_log(live: Path, tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    ca = Authority(tmp_path / "ca").root
    result = run("export", live, "--format", "syslog", "--collector", "127.0.0.1:1", "--ca", ca)
    assert result.exit_code == 1
    assert "collector 127.0.0.1:1" in result.stderr
    assert [(event.event, event.outcome.value) for event in events(live)[-2:]] == [
        (Kind.LOG_EXPORTED, "success"),
        (Kind.LOG_EXPORTED, "failed"),
    ]


def test_what_cannot_be_logged_is_not_read(live: Path, tmp_path: Path) -> None:
    """The chain's end is broken: the log refuses another event, and so the command shows nothing of it."""
    file = live / "audit-000001.jsonl"
    file.write_bytes(
        file.read_bytes().replace(b"system_started", b"system_stopped").replace(b'"seq":0', b'"seq":5') * 2
    )
    for words in (("query", live, "--json"), ("export", live, "--format", "csv", "--out", tmp_path / "a.csv")):
        result = run(*words)
        assert result.exit_code == 1
        assert result.stdout == ""
    assert not (tmp_path / "a.csv").exists()


def test_a_copy_has_no_kit(live: Path, tmp_path: Path) -> None:
    assert live_kit(live) == live.parents[2]
    os.rename(live.parents[2] / "startup", tmp_path / "elsewhere")
    assert live_kit(live) is None
    assert live_kit(tmp_path) is None
