"""The report: every fact comes from an event, whose absence is said, and no text in a log is more than text."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from audit_events import NASTY
from eventful import DIGEST, JOB, eventful, privacy
from pages import Page
from parties import Federation, now, slow_chain
from typer.testing import CliRunner, Result

from fedad_components.audit.event import Kind, Outcome
from fedad_components.audit.history import History, read_history
from fedad_components.audit.reading import read
from fedad_components.audit.report import make_report, render
from fedad_components.cli import app


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return eventful(tmp_path_factory.mktemp("eventful") / "logs")


def page_of(*paths: Path, root: Path | None = None) -> Page:
    return Page(render(make_report(paths, root, now())))


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


def test_the_page_says_what_happened(federation: Federation) -> None:
    page = page_of(federation.folder, root=federation.root())
    assert "verified: nothing is wrong" in page.text
    assert "lead@example.org, lead, Hospital A" in page.text
    assert "chest at site-a: 5216 images" in page.text
    assert "FINISHED:COMPLETED" in page.text
    assert any(row[1:4] == ["site-a", "success", "reviewer"] and row[-1] == "approved" for row in page.rows)
    assert any(row[1:3] == ["3", "server"] and "connection_refused" in row[4] for row in page.rows)
    assert any("abort_job" in row[4] and row[5] == "member@example.org" for row in page.rows if len(row) == 8)
    assert any(row[1:3] == ["site-a", "policy file"] and row[-1] == "policy_changed" for row in page.rows)
    assert any(row[3:7] == ["site-b", "log_read", "auditor", "audit query"] for row in page.rows)


def test_what_left_is_what_the_sites_logs_say(federation: Federation) -> None:
    """Against the lines themselves, read without our code."""
    sent = []
    for site in federation.SITES:
        for event in slow_chain([federation.file(site)]):
            if event["event"] == "result_sent" and event["outcome"] == "success":
                payload = event["payload"]
                sent.append([str(event["round"]), site, str(payload["tensors"]), payload["sha256"]])
    page = page_of(federation.folder)
    shown = [[row[0], row[1], row[3], row[6]] for row in page.rows if row[-1] == "accepted"]
    assert len(sent) == 4
    assert sorted(shown) == sorted(sent)


def test_epsilon_is_that_of_the_last_charge_and_of_nothing_else(federation: Federation) -> None:
    page = page_of(federation.folder)
    budgets = [row[:10] for row in page.rows if len(row) == 11 and row[2] == "dp_sgd"]
    row = ["chest", "dp_sgd", "patient", "1e-05", "2"]
    assert budgets == [["site-a", *row, "0", "0", "1", "8"], ["site-b", *row, "1", "0", "1", "8"]]


def test_without_charges_there_is_no_epsilon(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "logs", kinds=("ec", "ec", "ec"))
    federation.round(0)
    event = privacy(1.0, 2.0)
    federation.write("site-a", Kind.RESULT_SENT, job_id="job-1", round=1, privacy=event)
    federation.close()
    page = page_of(federation.folder)
    assert "no ε can be stated" in page.text
    assert "site-a, job job-1" in page.text
    assert not any(cell == "dp_sgd" for row in page.rows for cell in row)


def test_a_charge_without_an_epsilon_states_none(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "logs", kinds=("ec", "ec", "ec"))
    cost = {"mode": "weight_noise", "data_set": "chest"}
    federation.write("site-a", Kind.LEDGER_CHARGED, data_set="chest", privacy=cost, **JOB)
    over = privacy(7.9, 8.5)
    federation.write("site-b", Kind.LEDGER_CHARGED, data_set="chest", privacy=over, **JOB)
    page = page_of(federation.folder)
    assert any(row[2] == "weight_noise" and row[8] == "none stated" for row in page.rows if len(row) == 11)
    assert "An ε is above its budget" in page.text


def test_a_certificate_is_named_from_sixty_days_before_its_end(federation: Federation) -> None:
    for days, ended in ((10, False), (40, True)):
        at = now() + timedelta(days=days)
        page = Page(render(make_report([federation.folder], None, at)))
        rows = [row for row in page.rows if row[0] == "site-b" and row[1] == "CN=project"]
        assert len(rows) == 1, "the certificate in use, and not the one before"
        assert (rows[0][4] == "ended") == ended
        assert "within 60 days: 1" in page.text
    early = Page(render(make_report([federation.folder], None, now() - timedelta(days=41))))
    assert "None ends within 60 days" in early.text


@pytest.mark.parametrize("given", ["server", "site-a"])
def test_a_party_without_a_log_is_named(federation: Federation, given: str) -> None:
    page = page_of(federation.folder / given)
    missing = {"server": "site-a, site-b", "site-a": "server"}[given]
    assert f"No log was given of: {missing}." in page.text
    assert "No root certificate was given" in page.text
    assert ("No log of a server" in page.text) == (given != "server")
    words = {"server": "accepted; the site's log was not given", "site-a": "the server's log was not given"}
    assert sum(row[-1] == words[given] for row in page.rows) == {"server": 4, "site-a": 2}[given]


def test_what_only_one_end_knows_is_marked(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "logs", kinds=("ec", "ec", "ec"))
    federation.round(0, counted=("site-a", "site-b"), sent=("site-a",))
    federation.round(1, counted=("site-a",), sent=("site-a", "site-b"))
    federation.close()
    page = page_of(federation.folder)
    assert "NOT verified" in page.text
    said = {(row[0], row[1]): row[-1] for row in page.rows if len(row) == 9}
    assert said["0", "site-b"] == "accepted; not in the site's log"
    assert said["1", "site-b"] == "not in the server's log"


def test_findings_stand_at_the_top_with_their_line(federation: Federation, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(federation.folder, copy)
    file = copy / "site-a" / "audit-000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"success", b"failed")
    lines[5] = b"nonsense\n"
    file.write_bytes(b"".join(lines))
    report = make_report([copy], None, now())
    page = Page(render(report))
    assert not report.verification.verified
    for finding in report.verification.findings:
        assert [finding.file, str(finding.line or "–"), finding.kind.value, finding.detail] in page.rows
    assert page.text.index("NOT verified") < page.text.index("What ran")
    assert "Lines that are no events: 1." in page.text


def test_nothing_in_a_log_becomes_part_of_the_page(federation: Federation) -> None:
    html = render(make_report([federation.folder], federation.root(), now()))
    page = Page(html)
    assert "forged" in page.text
    assert "\\u202e" in page.text, "a change of direction is shown, not obeyed"
    assert not set(html) & {c for c in NASTY if not c.isprintable() and c != "\n"}
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "a", "form", "svg"}
    assert {name for _, attributes in page.tags for name in attributes} <= {
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "class",
    }
    assert not re.search(r"url\(|@import|https?:", html)


def test_every_table_repeats_its_head_on_paper(federation: Federation) -> None:
    html = render(make_report([federation.folder], None, now()))
    assert html.count("<table>") == html.count("<thead>") == html.count("<tbody>")
    assert "thead { display: table-header-group; }" in html
    assert "size: A4" in html


def test_a_long_table_says_how_much_is_left_out(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedad_components.audit.report.MOST_ROWS", 2)
    report = make_report([federation.folder], None, now())
    page = Page(render(report))
    assert f"{len(report.history.changes) - 2} more rows are not shown here" in page.text
    assert sum(row[-1] == "system_started" for row in page.rows) == 2


def test_history_counts_every_event(federation: Federation) -> None:
    history = read_history([federation.folder])
    assert {site: party.events for site, party in history.parties.items()} == {
        site: len(slow_chain([federation.file(site)])) for site in ("server", *federation.SITES)
    }
    refused = [one for one in read([federation.folder]) if one.event.outcome is not Outcome.SUCCESS]
    assert sum(row.count for row in history.refusals.values()) == len(refused) == 5
    assert history.servers == {"server"}
    assert history.without_log == []
    assert History().left == []


def test_the_command_writes_once_and_says_whether_it_holds(federation: Federation, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run("report", federation.folder, "--root-ca", federation.root(), "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out}: verified\n"
    assert out.stat().st_mode & 0o777 == 0o600
    again = run("report", federation.folder, "--out", out)
    assert (again.exit_code, again.stdout) == (2, "")
    assert "exists; choose another name" in again.stderr
    inside = run("report", federation.folder, "--out", federation.folder / "site-a" / "x.html")
    assert "in the folder of a log" in inside.stderr


def test_the_command_says_what_does_not_hold(federation: Federation, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(federation.folder / "site-a", copy)
    file = copy / "audit-000001.jsonl"
    file.write_bytes(file.read_bytes().replace(DIGEST.encode(), b"ac" * 32))
    result = run("report", copy, "--out", tmp_path / "report.html")
    assert result.exit_code == 1
    assert "NOT verified" in result.stdout
    assert (tmp_path / "report.html").exists()
    assert run("report", tmp_path / "nowhere", "--out", tmp_path / "b.html").exit_code == 2
