"""Every kind of tampering on logs that the real writer wrote, with real certificates; each is found and named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from parties import DAY, Authority, Federation, now, slow_chain

from fedad_components.audit import log as log_module
from fedad_components.audit.checkpoint import accept_peer, sign, write_checkpoint
from fedad_components.audit.event import FIRST_PREV, Kind, Outcome, canonical, line_hash, rfc3339
from fedad_components.audit.findings import FindingKind, Verification
from fedad_components.audit.keys import Signer
from fedad_components.audit.log import AuditLog
from fedad_components.audit.payload import describe
from fedad_components.audit.reading import find_files, log_files
from fedad_components.audit.verify import VerifyError, verify

ROUNDS = 3


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    federation = Federation(tmp_path_factory.mktemp("pristine") / "logs", ("rsa", "ec", "ed25519"), file_bytes=5000)
    for number in range(ROUNDS):
        federation.round(number)
    federation.close()
    federation.root()
    return federation


@pytest.fixture
def logs(pristine: Federation, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(pristine.folder, tmp_path / "logs"))


class Check:
    """Verifies and compares findings."""

    def __init__(self, logs: Path, root: Path) -> None:
        self.logs, self.root = logs, root

    def __call__(self, *paths: Path) -> Verification:
        return verify(paths or [self.logs], self.root)

    def kinds(self, *paths: Path) -> set[str]:
        result = self(*paths)
        assert result.verified == (not result.findings)
        return {finding.kind.value for finding in result.findings}

    def places(self, kind: FindingKind) -> list[tuple[str, int]]:
        return [
            (Path(finding.file).relative_to(self.logs).as_posix(), finding.line)
            for finding in self().findings
            if finding.kind is kind
        ]


@pytest.fixture
def check(logs: Path, pristine: Federation) -> Check:
    return Check(logs, pristine.folder.parent / "rootCA.pem")


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def edit(file: Path, change: Callable[[list[bytes]], Any]) -> None:
    lines = lines_of(file)
    change(lines)
    file.write_bytes(b"".join(lines))


def line_number(file: Path, kind: Kind) -> int:
    """Of the first event of that kind, from 0."""
    return next(number for number, line in enumerate(lines_of(file)) if f'"event":"{kind.value}"'.encode() in line)


def rechain(folder: Path, change: Callable[[list[dict[str, Any]]], Any], signer: Signer, from_event: int = 0) -> None:
    """A self-consistent forgery: ``change`` the events, number and chain them anew, sign the checkpoints anew."""
    files = log_files(folder)
    events = [json.loads(line) for file in files for line in lines_of(file)]
    change(events)
    prev, lines = FIRST_PREV, []
    for seq, event in enumerate(events):
        event.update(seq=seq, prev=prev)
        if event["event"] == "checkpoint" and seq >= from_event:
            event["checkpoint"] = sign(signer, event["site"], seq - 1, prev, event["time"]).model_dump()
        if event["event"] in ("system_started",):
            event["certificate"] = signer.certificate
        line = canonical(event)
        prev = line_hash(line)
        lines.append(line + b"\n")
    for file in files:
        file.unlink()
    rotations = [0, *(n + 1 for n, event in enumerate(events) if event["event"] == "log_rotated"), len(lines)]
    for number, (begin, end) in enumerate(pairwise(rotations), 1):
        (folder / f"audit-{number:06d}.jsonl").write_bytes(b"".join(lines[begin:end]))


def test_what_was_written_verifies(check: Check, logs: Path) -> None:
    result = check()
    assert result.verified
    assert (result.findings, result.warnings) == ([], [])
    events = {site: slow_chain(log_files(logs / site)) for site in ("server", "site-a", "site-b")}
    assert result.events == sum(map(len, events.values()))
    assert result.sites == list(events)
    assert result.checkpoints == sum(e["event"] == "checkpoint" for log in events.values() for e in log)
    assert result.files == [str(file) for file in find_files([logs])]
    assert len(result.files) > 5
    assert verify([logs]).verified
    assert not verify([logs]).root_checked


def test_a_changed_value(check: Check, logs: Path) -> None:
    file = logs / "server/audit-000001.jsonl"
    number = line_number(file, Kind.TASK_SENT)

    def change(lines: list[bytes]) -> None:
        lines[number] = lines[number].replace(b'"job_id":"job-1"', b'"job_id":"job-2"')

    edit(file, change)
    assert check.places(FindingKind.CHANGED_LINE) == [("server/audit-000001.jsonl", number + 1)]


def test_a_changed_byte_that_leaves_no_event(check: Check, logs: Path) -> None:
    edit(logs / "site-a/audit-000001.jsonl", lambda lines: lines.__setitem__(2, lines[2].replace(b":", b"; ", 1)))
    assert check.places(FindingKind.CHANGED_LINE) == [("site-a/audit-000001.jsonl", 3)]
    assert check.kinds() == {"changed_line"}


def test_a_changed_line_and_the_rest_chained_anew(check: Check, logs: Path, pristine: Federation) -> None:
    """By the party itself, with its own key: its peers hold what it signed."""
    rechain(logs / "site-a", lambda events: events[1].update(job_id="job-2"), pristine.signers["site-a"])
    assert {"peer_checkpoint_mismatch"} <= check.kinds() <= {"peer_checkpoint_mismatch", "update_never_sent"}
    assert verify([logs / "site-a"], check.root).verified  # alone, nothing contradicts it


@pytest.mark.parametrize("line", [0, 1, 3, 5])
def test_a_removed_line(check: Check, logs: Path, line: int) -> None:
    edit(logs / "server/audit-000001.jsonl", lambda lines: lines.pop(line))
    assert check.places(FindingKind.MISSING_LINES) == [("server/audit-000001.jsonl", line + 1)]
    assert check.kinds() <= {"missing_lines", "update_never_sent", "update_not_recorded"}


@pytest.mark.parametrize("other", [3, 4, 6])
def test_swapped_lines(check: Check, logs: Path, other: int) -> None:
    def swap(lines: list[bytes]) -> None:
        lines[2], lines[other] = lines[other], lines[2]

    edit(logs / "server/audit-000001.jsonl", swap)
    assert "swapped_lines" in check.kinds()
    assert "missing_lines" not in check.kinds()


@pytest.mark.parametrize("at", [3, 6])
def test_a_repeated_line(check: Check, logs: Path, at: int) -> None:
    edit(logs / "server/audit-000001.jsonl", lambda lines: lines.insert(at, lines[2]))
    assert check.places(FindingKind.REPEATED_LINE) == [("server/audit-000001.jsonl", at + 1)]
    assert check.kinds() == {"repeated_line"}


def test_another_partys_line(check: Check, logs: Path) -> None:
    foreign = lines_of(logs / "site-b/audit-000001.jsonl")[1]
    edit(logs / "site-a/audit-000001.jsonl", lambda lines: lines.__setitem__(1, foreign))
    assert check.places(FindingKind.FOREIGN_LINE) == [("site-a/audit-000001.jsonl", 2)]


@pytest.mark.parametrize("events", [1, 2, 3, 4])
def test_a_cut_tail(tmp_path: Path, events: int) -> None:
    """The server holds a checkpoint of all but the last three events: the checkpoint itself, the stop, and another."""
    federation = federation_of(tmp_path)
    file = federation.file("site-a")
    edit(file, lambda lines: lines.__delitem__(slice(-events, None)))
    if events < 4:
        assert found(federation) == []
        warnings = {warning.kind for warning in verify([file]).warnings}
        assert warnings == {FindingKind.LOG_NOT_GIVEN, *([] if events == 2 else [FindingKind.UNSIGNED_TAIL])}
    else:
        assert (FindingKind.CUT_TAIL, "site-a", len(lines_of(file))) in found(federation)


def test_a_cut_at_a_rotation(check: Check, logs: Path) -> None:
    files = log_files(logs / "server")
    files[-1].unlink()
    assert (f"server/{files[-2].name}", len(lines_of(files[-2]))) in check.places(FindingKind.CUT_TAIL)


def test_a_cut_file_in_the_middle(check: Check, logs: Path) -> None:
    files = log_files(logs / "server")
    edit(files[0], lambda lines: lines.__delitem__(slice(-2, None)))
    assert (f"server/{files[1].name}", 0) in check.places(FindingKind.CUT_TAIL)
    assert (f"server/{files[1].name}", 1) in check.places(FindingKind.MISSING_LINES)


@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_file(check: Check, logs: Path, index: int) -> None:
    files = log_files(logs / "server")
    assert len(files) > 2
    files[index].unlink()
    assert check.places(FindingKind.MISSING_FILE) == [(f"server/{files[index + 1].name}", 0)]


@pytest.mark.parametrize("index", [0, 1])
def test_a_replaced_file(check: Check, logs: Path, index: int, tmp_path: Path, pristine: Federation) -> None:
    """One that is sound in itself: from another run of the same party."""
    other = Federation(tmp_path / "other", file_bytes=5000)
    other.signers, other.authority = pristine.signers, pristine.authority
    for number in range(ROUNDS):
        other.round(number + 10)
    shutil.copy(log_files(other.folder / "server")[index], log_files(logs / "server")[index])
    assert {"replaced_file"} <= check.kinds()


def test_a_replaced_log_signed_with_another_key(check: Check, logs: Path) -> None:
    """All files of a site, sound in themselves; its key is not under the root, and its peers hold other checkpoints."""
    rogue = Authority().leaf("site-a")
    rechain(logs / "site-a", lambda events: events[1].update(job_id="job-2"), rogue)
    assert {"wrong_key", "peer_checkpoint_mismatch"} <= check.kinds()
    assert verify([logs / "site-a"]).verified  # without root and peers nothing shows
    assert {finding.kind for finding in verify([logs]).findings} >= {FindingKind.PEER_CHECKPOINT_MISMATCH}


def test_a_key_of_another_party(check: Check, logs: Path, pristine: Federation) -> None:
    rechain(logs / "site-a", lambda events: None, pristine.signers["site-b"])
    assert "wrong_key" in check.kinds(logs / "site-a")


def test_a_key_that_changes_in_the_middle(logs: Path, tmp_path: Path) -> None:
    federation = Federation(tmp_path / "new")
    log, old = federation.logs["site-a"], federation.signers["site-a"]
    new = federation.authority.leaf("site-a")
    write_checkpoint(log, old)
    write_checkpoint(log, new)
    assert [f.kind for f in verify([log.folder], federation.root()).findings] == [FindingKind.WRONG_KEY]
    log.write(Kind.CERTIFICATE_CHANGED, certificate=old.certificate)
    write_checkpoint(log, old)
    assert len(verify([log.folder], federation.root()).findings) == 1


def test_a_bad_signature(check: Check, logs: Path, pristine: Federation) -> None:
    """The log is chained anew, with the right certificate and somebody else's signatures."""
    rogue = Authority().leaf("site-a")
    rogue.certificate = pristine.signers["site-a"].certificate
    rechain(logs / "site-a", lambda events: None, rogue)
    assert "bad_signature" in check.kinds(logs / "site-a")


@pytest.mark.parametrize("days", [(-9, -8), (8, 9)])
def test_a_certificate_that_was_not_valid_then(tmp_path: Path, days: tuple[int, int]) -> None:
    authority = Authority()
    log = AuditLog(tmp_path / "log", "site-a")
    log.write(Kind.SYSTEM_STARTED)
    signer = authority.leaf("site-a", begins=now() + days[0] * DAY, ends=now() + days[1] * DAY)
    write_checkpoint(log, signer)
    (finding,) = verify([log.folder], authority.write_root(tmp_path)).findings
    assert (finding.kind, finding.line) == (FindingKind.EXPIRED_CERTIFICATE, 2)


def test_a_certificate_that_expired_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    log = AuditLog(tmp_path / "log", "site-a")
    signer = authority.leaf("site-a", begins=now() - 9 * DAY, ends=now() - 7 * DAY)
    monkeypatch.setattr(log_module, "now", lambda: rfc3339(now() - 8 * DAY))
    log.write(Kind.SYSTEM_STARTED)
    write_checkpoint(log, signer)
    assert verify([log.folder], authority.write_root(tmp_path)).verified


def test_a_clock_that_goes_back(check: Check, logs: Path, pristine: Federation) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        events[2]["time"] = "2020-01-01T00:00:00.000000Z"

    rechain(logs / "site-a", change, pristine.signers["site-a"])
    assert ("site-a/audit-000001.jsonl", 3) in check.places(FindingKind.CLOCK_BACK)


def test_a_clock_that_goes_back_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "log", "site-a")
    log.write(Kind.SYSTEM_STARTED)
    monkeypatch.setattr(log_module, "now", lambda: rfc3339(now() - DAY))
    log.write(Kind.COMMAND)
    assert verify([log.folder]).verified


def test_a_checkpoint_of_another_place(check: Check, logs: Path) -> None:
    """Copied, with its good signature, to where it is not true."""
    file = logs / "server/audit-000001.jsonl"
    number = line_number(file, Kind.CHECKPOINT)
    copied = json.loads(lines_of(file)[number])["checkpoint"]

    def change(lines: list[bytes]) -> None:
        event = json.loads(lines[-1])
        lines[-1] = rfc8785.dumps({**event, "event": "checkpoint", "checkpoint": copied}) + b"\n"

    edit(log_files(logs / "server")[-1], change)
    assert "checkpoint_mismatch" in check.kinds()


def test_a_peers_checkpoint_that_was_changed(check: Check, logs: Path, pristine: Federation) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        next(event for event in events if event["event"] == "peer_checkpoint")["checkpoint"]["seq"] += 1

    rechain(logs / "site-a", change, pristine.signers["site-a"])
    assert "bad_signature" in check.kinds()


def test_two_stories_for_two_peers(check: Check, logs: Path, pristine: Federation) -> None:
    """The server signs a second version of its log for site-b; its own log is not there."""

    def change(events: list[dict[str, Any]]) -> None:
        event = next(event for event in events if event["event"] == "peer_checkpoint")
        event["checkpoint"] = sign(
            pristine.signers["server"], "server", event["checkpoint"]["seq"], "ab" * 32, event["checkpoint"]["time"]
        ).model_dump()

    rechain(logs / "site-b", change, pristine.signers["site-b"])
    assert "peer_checkpoint_mismatch" in check.kinds(logs / "site-a", logs / "site-b")
    assert "peer_checkpoint_mismatch" in check.kinds(logs / "server", logs / "site-b")


def test_two_logs_of_one_party(tmp_path: Path) -> None:
    """Both are signed with its key, and lie side by side: a copy before the last round, and one that went on alone."""
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    older, second = (Path(shutil.copytree(federation.folder / "site-a", tmp_path / name)) for name in ("old", "second"))
    federation.round(1)
    federation.close()
    site = federation.folder / "site-a"
    assert verify([site, older], federation.root()).findings == []
    other = AuditLog(second, "site-a")
    other.write(Kind.COMMAND)
    write_checkpoint(other, federation.signers["site-a"])
    kinds = {finding.kind for finding in verify([site, second], federation.root()).findings}
    assert kinds == {FindingKind.PEER_CHECKPOINT_MISMATCH}


def test_a_party_without_its_log_is_named(check: Check, logs: Path) -> None:
    assert check().warnings == []
    shutil.move(logs / "site-a", logs.parent / "away")
    (logs / "site-a").symlink_to(logs.parent / "away")  # not followed
    assert check().verified
    (warning,) = check().warnings
    assert (warning.kind, Path(warning.file).parent.name) == (FindingKind.LOG_NOT_GIVEN, "server")
    assert "of 'site-a', whose log is not among these" in warning.detail


def test_an_old_checkpoint_sent_again_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server writes after it, no peer holds."""
    federation = Federation(tmp_path / "logs")
    signed = write_checkpoint(federation.logs["server"], federation.signers["server"])
    log = federation.logs["site-a"]
    for minutes, expected in ((14, []), (16, [FindingKind.PEER_CHECKPOINT_OLD])):
        monkeypatch.setattr(log_module, "now", lambda minutes=minutes: rfc3339(now() + minutes * DAY / 1440))
        accept_peer(log, signed, federation.authority.pem, "server")
        write_checkpoint(log, federation.signers["site-a"])
        warnings = verify([log.folder, federation.folder / "server"], federation.root()).warnings
        assert [warning.kind for warning in warnings if warning.kind is not FindingKind.CHECKPOINT_LATE] == expected


@pytest.mark.parametrize(
    "name", ["audit-\u0660\u0660\u0660\u0660\u0660\u0661.jsonl", "audit-1.jsonl", "audit-000001.JSONL"]
)
def test_a_renamed_file_is_a_missing_one(check: Check, logs: Path, name: str) -> None:
    log_files(logs / "server")[0].rename(logs / "server" / name)
    assert check.kinds() == {"missing_file"}


def test_a_log_without_a_checkpoint_is_nobodys(tmp_path: Path) -> None:
    """Whoever has no key can write one, and where a root is given, somebody wants to know whose it is."""
    federation = Federation(tmp_path / "logs")
    folder = federation.folder / "site-a"
    assert verify([folder]).verified
    (finding,) = verify([folder], federation.root()).findings
    assert (finding.kind, Path(finding.file).parent) == (FindingKind.UNSIGNED_LOG, folder)
    write_checkpoint(federation.logs["site-a"], federation.signers["site-a"])
    assert verify([folder], federation.root()).verified


def test_a_task_without_its_checkpoint_is_a_warning(tmp_path: Path) -> None:
    """A party that keeps nothing of its peer lets it write its log anew."""
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    federation.write("site-a", Kind.TASK_RECEIVED, peer="elsewhere", job_id="job-2", round=0)
    federation.close()
    (warning,) = verify([federation.folder], federation.root()).warnings
    assert (warning.kind, "'elsewhere'" in warning.detail) == (FindingKind.PEER_CHECKPOINT_MISSING, True)


def test_two_updates_for_one_task(tmp_path: Path) -> None:
    """Both were sent, and both are in the server's log: the mean has one site twice."""
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    of = {"job_id": "job-1", "round": 0, "payload": describe({"w": ("float32", (2,), bytes(8))})}
    federation.write("site-a", Kind.RESULT_SENT, peer="server", **of)
    federation.write("server", Kind.UPDATE_RECEIVED, peer="site-a", **of)
    federation.round(1)
    federation.close()
    assert [(kind, site) for kind, site, _ in found(federation)] == [(FindingKind.UPDATE_NEVER_SENT, "server")]


def test_many_gaps_and_lines_out_of_order_take_no_square_of_the_time(tmp_path: Path) -> None:
    """Every second event first, then the others: each is sought among at most so many gaps."""
    log = AuditLog(tmp_path / "log", "site-a")
    for _ in range(2500):
        log.write(Kind.COMMAND, durable=False)
    edit(log_files(log.folder)[0], lambda lines: lines.__setitem__(slice(None), lines[::2] + lines[1::2]))
    kinds = {finding.kind for finding in verify([log.folder]).findings}
    assert kinds == {FindingKind.MISSING_LINES, FindingKind.SWAPPED_LINES, FindingKind.MORE}


def test_a_pipe_under_a_files_name_is_not_waited_for(check: Check, logs: Path) -> None:
    os.mkfifo(logs / "server/audit-000099.jsonl")
    with pytest.raises(VerifyError, match=r"audit-000099\.jsonl: no plain file"):
        check()


def federation_of(folder: Path, **options: Any) -> Federation:
    federation = Federation(folder / "logs")
    federation.round(0)
    federation.round(1, **options)
    federation.close()
    return federation


def found(federation: Federation, *sites: str) -> list[tuple[FindingKind, str, int]]:
    paths = [federation.folder / site for site in sites] or [federation.folder]
    return [(f.kind, Path(f.file).parent.name, f.line) for f in verify(paths, federation.root()).findings]


def test_an_update_that_the_server_counted_and_the_site_never_sent(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, sent=("site-b",))
    kinds = found(federation)
    assert [(kind, site) for kind, site, _ in kinds] == [(FindingKind.UPDATE_NEVER_SENT, "server")] * 2
    file = federation.file("server")
    assert [json.loads(lines_of(file)[line - 1])["event"] for *_, line in kinds] == ["update_received", "aggregated"]
    assert found(federation, "server", "site-b") == []  # of site-a's log nothing is known


def test_an_update_that_the_site_sent_and_the_server_does_not_have(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, counted=("site-b",))
    ((kind, site, line),) = found(federation)
    assert (kind, site) == (FindingKind.UPDATE_NOT_RECORDED, "site-a")
    assert json.loads(lines_of(federation.file("site-a"))[line - 1])["round"] == 1
    assert found(federation, "site-a", "site-b") == []


@pytest.mark.parametrize("after", [Kind.TASK_SENT, Kind.TASK_RECEIVED, Kind.JOB_ENDED])
def test_an_update_of_a_round_of_which_the_server_says_nothing(tmp_path: Path, after: Kind) -> None:
    """Neither its arrival nor its mean; that the job went on is seen elsewhere."""
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    payload = describe({"w": ("float32", (2,), bytes(8))})
    federation.write("site-a", Kind.RESULT_SENT, peer="server", payload=payload, job_id="job-1", round=1)
    assert found(federation) == []  # it may be on its way
    whose, peer = ("site-a", "server") if after is Kind.TASK_RECEIVED else ("server", "site-a")
    fields = {} if after is Kind.JOB_ENDED else {"peer": peer, "round": 2}
    federation.write(whose, after, job_id="job-1", **fields)
    assert [(kind, site) for kind, site, _ in found(federation)] == [(FindingKind.UPDATE_NOT_RECORDED, "site-a")]


def test_nobody_else_can_answer_for_the_server(tmp_path: Path) -> None:
    """Another site's log says that the update arrived, and that the round's mean is another's."""
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    federation.round(1, counted=("site-b",))
    of = {"job_id": "job-1", "round": 1}
    federation.write("site-b", Kind.UPDATE_RECEIVED, Outcome.REFUSED, peer="site-a", **of)
    federation.close()
    assert [(kind, site) for kind, site, _ in found(federation)] == [(FindingKind.UPDATE_NOT_RECORDED, "site-a")]


@pytest.mark.parametrize(
    ("site", "kind", "fields"),
    [
        ("server", Kind.AGGREGATED, {"job_id": "job-1", "round": 1}),
        ("server", Kind.AGGREGATED, {"participants": {"site-a": 1}, "job_id": "job-1"}),
        ("server", Kind.UPDATE_RECEIVED, {"peer": "site-z", "job_id": "job-1", "round": 0}),
        ("site-a", Kind.RESULT_SENT, {"peer": "server"}),
    ],
)
def test_what_cannot_be_compared_is_found(tmp_path: Path, site: str, kind: Kind, fields: dict[str, Any]) -> None:
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    federation.write(site, kind, Outcome.REFUSED, **fields)
    assert found(federation) == []
    federation.write(site, kind, **fields)
    assert [(kind, site) for kind, site, _ in found(federation)] == [(FindingKind.UPDATE_NOT_RECORDED, site)]


def test_an_update_that_changed_on_its_way(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)

    def change(events: list[dict[str, Any]]) -> None:
        next(event for event in events if event["event"] == "update_received")["payload"]["sha256"] = "ab" * 32

    rechain(federation.folder / "server", change, federation.signers["server"])
    kinds = {kind for kind, *_ in found(federation)}
    assert {FindingKind.UPDATE_NEVER_SENT, FindingKind.UPDATE_NOT_RECORDED} <= kinds


def test_an_update_that_the_server_refused_or_lost_is_told(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "logs")
    federation.round(0)
    federation.write("server", Kind.UPDATE_RECEIVED, Outcome.FAILED, job_id="job-1", round=1, peer="site-a")
    federation.round(1, counted=("site-b",))
    federation.round(2, counted=())  # refused below, with its hash
    federation.close()
    assert [kind for kind, *_ in found(federation)] == [FindingKind.UPDATE_NOT_RECORDED] * 2


def test_a_mean_of_sites_whose_updates_never_came(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "logs")
    federation.write("server", Kind.AGGREGATED, job_id="job-1", round=0, participants={"site-z": 3})
    federation.close()
    assert [kind for kind, *_ in found(federation)] == [FindingKind.UPDATE_NOT_RECORDED]


def test_a_torn_line_is_found_until_the_writer_marks_it(check: Check, logs: Path) -> None:
    file = log_files(logs / "site-a")[-1]
    with file.open("ab") as stream:
        stream.write(b'{"actor":')
    assert check.places(FindingKind.TORN_LINE) == [(f"site-a/{file.name}", len(lines_of(file)))]
    AuditLog(logs / "site-a", "site-a").write(Kind.SYSTEM_STARTED)
    assert check.kinds() == set()
    torn = logs / "site-a/torn-1.bin"
    torn.write_bytes(b'{"acto_":')
    assert check.kinds() == {"torn_line", "cut_tail"}
    torn.unlink()
    os.mkfifo(torn)  # would never end
    assert check.kinds() == {"torn_line"}


def test_a_torn_lines_file_that_no_event_names(check: Check, logs: Path) -> None:
    (logs / "site-a/torn-1.bin").write_bytes(b"x")
    assert check.places(FindingKind.CUT_TAIL) == [("site-a/torn-1.bin", 0)]


def cut_federation(folder: Path, monkeypatch: pytest.MonkeyPatch, days: int) -> tuple[Check, AuditLog, dict[str, Any]]:
    """One that ran so long ago; the server signs a cut today, after its second file."""
    monkeypatch.setattr(log_module, "now", lambda: rfc3339(now() - days * DAY))
    federation = Federation(folder / "logs", file_bytes=5000)
    for number in range(ROUNDS):
        federation.round(number)
    federation.close()
    monkeypatch.setattr(log_module, "now", lambda: rfc3339(now()))
    log = AuditLog(federation.folder / "server", "server")
    last = slow_chain(log_files(log.folder)[:2])[-1]
    signed = sign(federation.signers["server"], "server", last["seq"], line_hash(canonical(last)), rfc3339(now()))
    log.write(Kind.LOG_CUT, checkpoint=signed)
    return Check(federation.folder, federation.root()), log, last


def test_a_cut_of_young_events_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The party signs it with its own key, to hide what it did lately."""
    check, log, _ = cut_federation(tmp_path, monkeypatch, days=364)
    for file in log_files(log.folder)[:2]:
        file.unlink()
    assert check.places(FindingKind.MISSING_LINES) == [("server/audit-000003.jsonl", 1)]
    assert check.kinds() == {"missing_lines"}


def test_a_signed_cut_of_retention_opens_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, log, last = cut_federation(tmp_path, monkeypatch, days=366)
    folder, files, root, time = check.logs, log_files(log.folder), line_hash(canonical(last)), rfc3339(now())
    assert check.kinds() == set()  # written before anything is removed
    files[0].unlink()
    assert check.kinds() == {"missing_file"}  # the cut is after the second
    files[1].unlink()
    assert check.kinds() == set()
    shutil.copytree(folder / "server", tmp_path / "rogue")
    edit(log_files(tmp_path / "rogue")[-1], lambda lines: lines.pop())
    assert check.kinds(tmp_path / "rogue") >= {"missing_file"}
    rogue = AuditLog(tmp_path / "rogue", "server")
    rogue.write(Kind.LOG_CUT, checkpoint=sign(Authority().leaf("server"), "server", last["seq"], root, time))
    assert check.kinds(tmp_path / "rogue") >= {"missing_file", "wrong_key"}


def test_warnings_for_long_without_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path / "logs")
    log, signer = federation.logs["server"], federation.signers["server"]
    for later in (1, 10, 20, 21, 22):
        monkeypatch.setattr(log_module, "now", lambda later=later: rfc3339(now() + later * DAY / 1440))
        log.write(Kind.COMMAND)
    write_checkpoint(log, signer)
    result = verify([log.folder], federation.root())
    assert result.verified
    assert [(warning.kind, warning.line) for warning in result.warnings] == [(FindingKind.CHECKPOINT_LATE, 4)]
    log.write(Kind.COMMAND)
    assert verify([log.folder]).warnings[-1].kind is FindingKind.UNSIGNED_TAIL


def test_findings_are_bounded(check: Check, logs: Path) -> None:
    (logs / "site-a/audit-000001.jsonl").write_bytes(b"x\n" * 5000)
    result = check(logs / "site-a")
    assert len(result.findings) == 1001
    assert result.findings[-1].kind is FindingKind.MORE


def test_unusable_inputs(tmp_path: Path, logs: Path, pristine: Federation) -> None:
    leaf = tmp_path / "leaf.pem"
    leaf.write_text(pristine.signers["server"].certificate)
    for paths, root, match in (
        ([], None, "no path"),
        ([tmp_path / "absent"], None, "no such"),
        ([tmp_path / "leaf.pem", tmp_path / "x"], None, "no such"),
        ([logs], tmp_path / "absent.pem", "cannot be read"),
        ([logs], log_files(logs / "server")[0], "not a certificate"),
        ([logs], leaf, "not of an authority"),
    ):
        with pytest.raises(VerifyError, match=match):
            verify(paths, root)


# The last event of each log is its checkpoint: no byte of any file is free.
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_no_changed_byte_passes(mutated: Mutable, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(mutated.files))
    content = mutated.content[file]
    at = data.draw(
        st.one_of(st.integers(0, len(content) - 1), st.integers(max(0, len(content) - 2500), len(content) - 1))
    )
    byte = data.draw(st.integers(0, 255))
    assume(content[at] != byte)
    try:
        file.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
        assert not verify([file.parent], data.draw(st.sampled_from([None, mutated.root]))).verified
    finally:
        file.write_bytes(content)


class Mutable:
    """A log with a checkpoint at its end, of each kind of key."""

    def __init__(self, folder: Path) -> None:
        federation = Federation(folder / "logs", ("rsa", "ec", "ed25519"), file_bytes=5000)
        federation.round(0)
        federation.close()
        self.root = federation.root()
        self.files = find_files([federation.folder])
        self.content = {file: file.read_bytes() for file in self.files}


@pytest.fixture(scope="module")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> Mutable:
    return Mutable(tmp_path_factory.mktemp("mutated"))
