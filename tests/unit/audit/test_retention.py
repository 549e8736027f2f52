"""Old files go only when they are archived, at a cut that is signed, and what stays verifies at every moment."""

from __future__ import annotations

import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from parties import DAY, Authority, Federation, now, write_kit
from typer.testing import CliRunner, Result

from fedad_components.audit import retention
from fedad_components.audit.checkpoint import write_checkpoint
from fedad_components.audit.event import Kind, Outcome, rfc3339
from fedad_components.audit.log import AuditLog
from fedad_components.audit.reading import log_files, read
from fedad_components.audit.retention import HOLD, RetentionError, apply, log_folder, plan
from fedad_components.audit.verify import verify
from fedad_components.cli import app

NOW = now()
OLD, LATER = rfc3339(NOW - 800 * DAY), rfc3339(NOW - 10 * DAY)
"""The test authority's root is good for both."""


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose log has four files: two are old, the first with a torn line, the others young."""
    authority = Authority()
    signer = authority.leaf("site-a", begins=NOW - 890 * DAY)
    folder = write_kit(tmp_path / "kit", signer, "client", authority.pem)
    log = AuditLog(folder / "local" / "fedad" / "audit", "site-a", file_bytes=3000)
    monkeypatch.setattr("fedad_components.audit.log.now", lambda: OLD)
    log.write(Kind.SYSTEM_STARTED, certificate=signer.certificate)
    with log_files(log.folder)[-1].open("ab") as file:
        file.write(b'{"torn')
    while len(log_files(log.folder)) < 4:
        log.write(Kind.COMMAND, command="show_stats")
        write_checkpoint(log, signer)
        if len(log_files(log.folder)) == 3 and log_files(log.folder)[-1].stat().st_size > 3000:
            monkeypatch.setattr("fedad_components.audit.log.now", lambda: LATER)
    return folder


def folder_of(kit: Path) -> Path:
    return log_folder(kit)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def events(folder: Path) -> list[Any]:
    return [located.event for located in read([folder])]


def test_a_dry_run_changes_nothing(kit: Path) -> None:
    folder = folder_of(kit)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    planned = plan(folder, NOW, 1)
    assert [file.path.name for file in planned.files] == [f"audit-00000{n}.jsonl" for n in (1, 2)]
    assert planned.files[0].torn == (folder / "torn-1.bin",)
    assert OLD < planned.limit < LATER
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_stays_verifies_and_so_does_the_whole(kit: Path, tmp_path: Path) -> None:
    folder, archive = folder_of(kit), tmp_path / "archive"
    root = kit / "startup" / "rootCA.pem"
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    apply(plan(folder, NOW, 1), archive)
    assert names(folder) == ["audit-000003.jsonl", "audit-000004.jsonl"]
    assert names(archive) == ["audit-000001.jsonl", "audit-000002.jsonl", "torn-1.bin"]
    assert all((archive / name).read_bytes() == whole[name] for name in names(archive))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in archive.iterdir())
    result = verify([folder], root)
    assert result.findings == []
    assert result.warnings == []
    cuts = [event for event in events(folder) if event.event is Kind.LOG_CUT]
    last = [
        located for name in ("audit-000001.jsonl", "audit-000002.jsonl") for located in [*read([archive / name])][-1:]
    ]
    assert [(cut.checkpoint.seq, cut.checkpoint.root) for cut in cuts] == [(one.event.seq, one.hash) for one in last]
    assert all(str(tmp_path) not in cut.line().decode() for cut in cuts)
    together = tmp_path / "together"
    shutil.copytree(folder, together)
    for path in archive.iterdir():
        shutil.copy(path, together)
    assert verify([together], root).findings == []


def test_a_beginning_without_its_cut_is_found(kit: Path, tmp_path: Path) -> None:
    folder = folder_of(kit)
    (folder / "audit-000001.jsonl").unlink()
    assert "missing_file" in [finding.kind.value for finding in verify([folder]).findings]
    with pytest.raises(RetentionError, match=r"missing_file, and \d findings more: a log that does not verify"):
        plan(folder, NOW, 1)


@pytest.mark.parametrize("crash", range(11))
def test_a_crash_anywhere_leaves_a_log_that_verifies_and_can_go_on(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    folder, archive = folder_of(kit), tmp_path / "archive"
    planned, steps = plan(folder, NOW, 1), iter(range(100))

    def failing(step: Any) -> Any:
        def then(*arguments: Any, **options: Any) -> Any:
            if next(steps) == crash:
                raise OSError(28, "No space left on device")
            return step(*arguments, **options)

        return then

    with monkeypatch.context() as patch:
        patch.setattr(retention, "_copy", failing(retention._copy))
        patch.setattr(retention, "_cut", failing(retention._cut))
        patch.setattr(Path, "unlink", failing(Path.unlink))
        with pytest.raises(OSError, match="No space"):
            apply(planned, archive)
    assert verify([folder]).findings == []
    apply(plan(folder, NOW, 1), archive)
    assert names(folder)[0] == "audit-000003.jsonl"
    assert verify([folder]).findings == []


def test_the_last_file_and_what_is_young_stay(kit: Path) -> None:
    folder = folder_of(kit)
    last, young = log_files(folder)[-1], log_files(folder)[-2]
    far = datetime(2090, 1, 1, tzinfo=timezone.utc)
    assert last not in {file.path for file in plan(folder, far).files}
    assert young in {file.path for file in plan(folder, far).files}
    assert plan(folder, NOW, years=2).files == plan(folder, NOW, years=1).files != ()
    assert plan(folder, NOW).files == plan(folder, NOW, years=6).files == ()
    leap = datetime(2044, 2, 29, tzinfo=timezone.utc)
    assert plan(folder, leap, years=3).limit == "2041-02-28T00:00:00.000000Z"
    with pytest.raises(RetentionError, match="years = 0: expected at least 1"):
        plan(folder, NOW, years=0)


def test_a_legal_hold_stops_it(kit: Path, tmp_path: Path) -> None:
    folder = folder_of(kit)
    planned = plan(folder, NOW, 1)
    before = names(folder)
    (folder / HOLD).write_text("case 7 O 12/40\n")
    assert plan(folder, NOW, 1).hold == "case 7 O 12/40"
    for one in (planned, plan(folder, NOW, 1)):
        with pytest.raises(RetentionError, match=r"retention\.hold: a legal hold"):
            apply(one, tmp_path / "archive")
    assert names(folder) == sorted([*before, HOLD])
    (folder / HOLD).write_text("")
    assert plan(folder, NOW, 1).hold == "no reason given"
    assert verify([folder]).findings == []


def test_a_copy_is_not_cut(kit: Path, tmp_path: Path) -> None:
    shutil.copytree(folder_of(kit), tmp_path / "copy")
    with pytest.raises(RetentionError, match="only the party itself"):
        apply(plan(tmp_path / "copy", NOW, 1), tmp_path / "archive")


@pytest.mark.parametrize("place", ["inside", "another"])
def test_an_archive_that_would_lose_something_is_refused(kit: Path, tmp_path: Path, place: str) -> None:
    folder = folder_of(kit)
    before = names(folder)
    archive = folder / "archive" if place == "inside" else tmp_path / "archive"
    if place == "another":
        archive.mkdir()
        (archive / "audit-000001.jsonl").write_text("of another party")
    with pytest.raises(RetentionError, match="own folder" if place == "inside" else "another file of that name"):
        apply(plan(folder, NOW, 1), archive)
    assert names(folder) == before


def test_a_file_that_changes_meanwhile_stays(kit: Path, tmp_path: Path) -> None:
    folder = folder_of(kit)
    planned = plan(folder, NOW, 1)
    with (folder / "audit-000001.jsonl").open("ab") as file:
        file.write(b"x")
    with pytest.raises(RetentionError, match="changed meanwhile"):
        apply(planned, tmp_path / "archive")
    assert (folder / "audit-000001.jsonl").exists()


def test_the_writer_goes_on_after_the_cut(kit: Path, tmp_path: Path) -> None:
    folder = folder_of(kit)
    running = AuditLog(folder, "site-a")
    running.write(Kind.COMMAND, command="before")
    apply(plan(folder, NOW, 1), tmp_path / "archive")
    running.write(Kind.COMMAND, Outcome.REFUSED, command="after")
    AuditLog(folder, "site-a").write(Kind.SYSTEM_STOPPED)
    assert [event.event.value for event in events(folder)][-2:] == ["command", "system_stopped"]
    assert verify([folder]).findings == []


def test_others_still_agree_with_a_log_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's log still has the updates whose sending was removed at the site, and the site's checkpoints."""
    monkeypatch.setattr("fedad_components.audit.log.now", lambda: OLD)
    federation = Federation(tmp_path / "logs", kinds=("ec", "ec", "ec"), file_bytes=4000)
    for number in range(6):
        federation.round(number)
    federation.close()
    kit = write_kit(tmp_path / "kit", federation.signers["site-a"], "client", federation.authority.pem)
    folder = kit / "local" / "fedad" / "audit"
    folder.parent.mkdir(parents=True)
    os.replace(federation.folder / "site-a", folder)
    monkeypatch.setattr("fedad_components.audit.log.now", lambda: rfc3339(NOW))
    apply(plan(folder, NOW, 1), tmp_path / "archive")
    assert len(log_files(tmp_path / "archive")) > 1
    result = verify([federation.folder, folder], federation.root())
    assert result.sites == ["server", "site-a", "site-b"]
    assert result.findings == []


def test_the_command_shows_then_archives(kit: Path, tmp_path: Path) -> None:
    folder = folder_of(kit)
    before = names(folder)
    kept = run("retention", kit)
    assert kept.exit_code == 0, kept.output
    assert "0 files are older" in kept.stdout
    shown = run("retention", kit, "--years", "1")
    assert "2 files are older than" in shown.stdout
    assert "as a whole; 2 files stay" in shown.stdout
    assert "Nothing was changed" in shown.stdout
    assert names(folder) == before
    done = run("retention", folder, "--years", "1", "--archive", tmp_path / "archive", "--apply")
    assert done.exit_code == 0, done.output
    assert names(tmp_path / "archive") == ["audit-000001.jsonl", "audit-000002.jsonl", "torn-1.bin"]


def test_the_command_says_why_not(kit: Path, tmp_path: Path) -> None:
    folder = folder_of(kit)
    before = names(folder)
    missing = run("retention", kit, "--years", "1", "--apply")
    assert missing.exit_code == 1
    assert "--apply needs --archive DIR" in missing.stderr
    (folder / HOLD).write_text("case 7\x1b[31m")
    held = run("retention", kit, "--years", "1", "--apply", "--archive", tmp_path / "archive")
    assert held.exit_code == 1
    assert "legal hold, nothing will be removed: case 7\\x1b[31m" in held.stderr
    assert "no log there" in run("retention", tmp_path / "kit" / "startup").stderr
    assert run("retention", kit, "--years", "0").exit_code == 2
    assert names(folder) == sorted([*before, HOLD])
