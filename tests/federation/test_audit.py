"""The compliance logs of a real federation: complete, verified away from it, without patient text, hard to forge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import log_tampering as tampering
import pytest
import yaml
from pydicom.data import get_testdata_file
from pydicom.filereader import dcmread
from support import job_of, photographs, records_of, small_config
from typer.testing import CliRunner

from fedad_components.audit.event import Event, Kind, Outcome
from fedad_components.audit.findings import FindingKind
from fedad_components.audit.keys import Signer
from fedad_components.audit.reading import read
from fedad_components.audit.verify import verify
from fedad_components.cli.audit import app
from fedad_components.demo.federation import HOST, SERVER, Federation
from fedad_components.imaging.catalogue import VERSION

pytestmark = [pytest.mark.federation, pytest.mark.timeout(3000)]  # two jobs, one after the other

SITES = ["alpha", "beta"]
ROUNDS = 2
EXPERIMENT = "audited"
UNLOGGED, MANY_ROUNDS = "unlogged", 200
"""A job that a site's log ends."""
TIMEOUT = 1400.0
UNHURRIED = {"round_timeout": 1200}

RECORD_NUMBER = "4711-0815"
HOSTILE = f"DOE^JANE\n[E:2030-01-01] forged\r\x1b[31mMRN {RECORD_NUMBER}\x1b[0m"
"""A patient's name and record number, a line of FLARE's audit log and a terminal's codes: as folder, file and tag."""


@dataclass
class Audited:
    """A federation after a job of two rounds, and a job after it that a site could not log."""

    federation: Federation
    job_id: str
    status: str
    copies: Path
    """The logs when the first job had ended, one folder a party, and rootCA.pem."""
    unlogged: str
    unlogged_status: str
    aside: Path
    """The log of beta until it could not be written any more."""

    def events(self, party: str) -> list[Event]:
        return [located.event for located in read([self.copies / party])]


def give_hostile_images(federation: Federation, folder: Path) -> None:
    """Photographs, beside what a careless export leaves: names and tags that say who it is, files that do not open."""
    for number, site in enumerate(SITES):
        images = folder / site / HOSTILE.replace("/", " ")
        photographs(images, number, count=12 + number)
        (images / f"{HOSTILE}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + HOSTILE.encode())
        scan = dcmread(str(get_testdata_file("CT_small.dcm")))
        scan.PatientName, scan.PatientID, scan.StudyDescription = "DOE^JANE", RECORD_NUMBER, f"[E:{RECORD_NUMBER}"
        scan.save_as(images / f"{RECORD_NUMBER}.dcm")
        entry = {"folder": str(images), "max_rejected": 0.5}
        federation.site_paths(site).catalogue.write_text(
            yaml.safe_dump({"version": VERSION, "data_sets": {"images": entry}})
        )


def copy_logs(federation: Federation, folder: Path) -> Path:
    for party in (SERVER, *SITES):
        shutil.copytree(federation.site_paths(party).audit, folder / party)
    shutil.copy(federation.kit("alpha") / "startup" / "rootCA.pem", folder)
    return folder


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audit")
    job = job_of(small_config(EXPERIMENT, ROUNDS, federation=UNHURRIED), folder / "jobs")
    with Federation(folder / "federation", SITES) as federation:
        give_hostile_images(federation, folder / "images")
        federation.start(timeout=300)
        with pytest.raises(Exception, match=r"(?i)not authorized"):
            federation.submit(job, user="member")
        job_id = federation.submit(job)
        status = federation.wait(job_id, timeout=TIMEOUT)
        copies = copy_logs(federation, folder / "copies")
        unlogged = federation.submit(
            job_of(small_config(UNLOGGED, MANY_ROUNDS, federation=UNHURRIED), folder / "unlogged")
        )
        log, aside = federation.site_paths("beta").audit, folder / "aside"

        def break_log(_status: str) -> None:
            """Whoever runs the tests may write any file; but a log's folder that is none nobody can."""
            if records_of(federation, UNLOGGED) and not aside.exists():
                log.rename(aside)
                log.touch()

        unlogged_status = federation.wait(unlogged, timeout=TIMEOUT, on_poll=break_log)
        yield Audited(federation, job_id, status, copies, unlogged, unlogged_status, aside)
        federation.stop()
        assert federation.processes() == []


def test_the_copies_verify_with_the_root_certificate_alone(audited: Audited) -> None:
    assert audited.status == "FINISHED:COMPLETED", audited.federation.server_log(audited.job_id)
    paths = [str(audited.copies / party) for party in (SERVER, *SITES)]
    result = CliRunner().invoke(app, ["verify", *paths, "--root-ca", str(audited.copies / "rootCA.pem"), "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["verified"] is True
    assert answer["root_checked"] is True
    assert answer["sites"] == sorted([HOST, *SITES])
    assert answer["checkpoints"] >= 2 * ROUNDS + len(SITES) * ROUNDS


def of_job(events: list[Event], kind: Kind, outcome: Outcome = Outcome.SUCCESS) -> list[Event]:
    return [event for event in events if event.event is kind and event.outcome is outcome]


def test_the_server_has_every_event_of_the_job(audited: Audited) -> None:
    events = audited.events(SERVER)
    (started,) = of_job(events, Kind.SYSTEM_STARTED)
    assert started.software
    assert len(started.software["digest"]) == 64
    assert started.files
    assert "startup/server.crt" in started.files
    assert not [name for name in started.files if name.endswith(".key")]
    assert {event.peer for event in of_job(events, Kind.SIGNED_IN) if event.peer} == set(SITES)

    (submitted,) = of_job(events, Kind.JOB_SUBMITTED)
    assert submitted.actor
    assert submitted.actor.name == audited.federation.people["lead"]
    assert submitted.reason == "signed by its submitter"
    assert submitted.job_name == "fedad_job"
    assert submitted.files
    assert "config/config_fed_client.json" in submitted.files
    assert [event.job_id for event in of_job(events, Kind.JOB_DEPLOYED)] == [audited.job_id]
    assert [event.job_id for event in of_job(events, Kind.JOB_ENDED)] == [audited.job_id]

    for number in range(ROUNDS):
        of_round = [event for event in events if event.round == number]
        assert {event.peer for event in of_job(of_round, Kind.TASK_SENT)} == set(SITES)
        assert {event.peer for event in of_job(of_round, Kind.UPDATE_RECEIVED)} == set(SITES)
        assert len(of_job(of_round, Kind.AGGREGATED)) == len(of_job(of_round, Kind.MODEL_SAVED)) == 1
        assert all(event.job_id == audited.job_id and event.experiment == EXPERIMENT for event in of_round)
    record = records_of(audited.federation, EXPERIMENT)[-1]
    last = of_job(events, Kind.AGGREGATED)[-1]
    assert last.participants == record.n_samples
    assert last.instability == record.instability
    assert last.lambda_t == record.lambda_t


@pytest.mark.parametrize("site", SITES)
def test_a_site_has_what_it_let_in_and_out(audited: Audited, site: str) -> None:
    events, server = audited.events(site), audited.events(SERVER)
    kinds = [event.event for event in events if event.event not in (Kind.CHECKPOINT, Kind.COMMAND)]
    first = kinds.index(Kind.JOB_DEPLOYED)
    assert Kind.SYSTEM_STARTED in kinds[:first]
    round_kinds = [Kind.PEER_CHECKPOINT, Kind.TASK_RECEIVED, Kind.LEDGER_CHARGED, Kind.RESULT_SENT]
    assert kinds[first : first + 2 + 1 + len(round_kinds) * ROUNDS] == [
        Kind.JOB_DEPLOYED,
        Kind.JOB_PROCESS_STARTED,
        *round_kinds[:2],
        Kind.DATA_SET_OPENED,
        *round_kinds[2:],
        *round_kinds,
    ]
    (opened,) = of_job(events, Kind.DATA_SET_OPENED)
    assert opened.images == records_of(audited.federation, EXPERIMENT)[-1].n_samples[site]
    (deployed,) = of_job(events, Kind.JOB_DEPLOYED)
    (submitted,) = of_job(server, Kind.JOB_SUBMITTED)
    assert deployed.job_digest == submitted.job_digest
    assert deployed.files == submitted.files

    for number in range(ROUNDS):
        (sent,) = [event for event in of_job(events, Kind.RESULT_SENT) if event.round == number]
        arrived = [event for event in of_job(server, Kind.UPDATE_RECEIVED) if event.round == number]
        assert [event.payload for event in arrived if event.peer == site] == [sent.payload]
        assert sent.policy
        assert sent.policy.filters == ["StrictEgress"]
        assert sent.policy.digest
        assert sent.privacy
        assert sent.privacy.mode == "none"
        (task,) = [event for event in of_job(events, Kind.TASK_RECEIVED) if event.round == number]
        assert task.payload == of_job(server, Kind.TASK_SENT)[number * len(SITES)].payload
    aggregated = of_job(server, Kind.AGGREGATED)[0]
    assert of_job(events, Kind.TASK_RECEIVED)[1].payload == aggregated.payload  # the mean is what goes out next


def test_each_party_holds_the_others_checkpoints(audited: Audited) -> None:
    held = {
        party: {event.peer for event in of_job(audited.events(party), Kind.PEER_CHECKPOINT)}
        for party in (SERVER, *SITES)
    }
    assert held == {SERVER: set(SITES), "alpha": {HOST}, "beta": {HOST}}


def test_denied_commands_are_there(audited: Audited) -> None:
    events = audited.events(SERVER)
    (denied,) = [event for event in of_job(events, Kind.COMMAND, Outcome.REFUSED) if event.command == "submit_job"]
    assert denied.actor
    assert denied.actor.name == audited.federation.people["member"]
    assert denied.actor.role == "member"
    assert [
        event.actor.role for event in of_job(events, Kind.COMMAND) if event.command == "submit_job" and event.actor
    ] == ["lead"]
    people = {event.actor.name for event in of_job(events, Kind.SIGNED_IN) if event.actor}
    assert people == {audited.federation.people[role] for role in ("lead", "member")}


def test_no_patient_text_is_in_any_log(audited: Audited) -> None:
    """Names of folders and files, tags, what the failing readers say: in no compliance log, in no log of FLARE's."""
    federation = audited.federation
    with_the_scan = {"alpha": 13, "beta": 14}  # and without the file that does not open
    assert records_of(federation, EXPERIMENT)[-1].n_samples == with_the_scan
    folders = [federation.server_kit, *(federation.kit(site) for site in SITES), audited.copies, audited.aside]
    patterns = ("*.jsonl", "*log*.txt", "*.log", "*log.json")
    logs = [path for folder in folders for pattern in patterns for path in folder.rglob(pattern)]
    assert len([path for path in logs if path.name == "audit-000001.jsonl"]) == 2 + len([SERVER, *SITES]) + 1
    for path in logs:
        text = path.read_text(encoding="utf-8", errors="replace")
        for needle in (RECORD_NUMBER, "JANE", "\x1b[31m", "[E:2030"):
            assert needle not in text, path


def test_a_site_that_cannot_write_its_log_sends_nothing(audited: Audited) -> None:
    assert audited.unlogged_status != "FINISHED:COMPLETED"
    assert 0 < len(records_of(audited.federation, UNLOGGED)) < MANY_ROUNDS
    server = [located.event for located in read([audited.federation.site_paths(SERVER).audit])]
    beta = [located.event for located in read([audited.aside])]
    came = {
        event.round
        for event in of_job(server, Kind.UPDATE_RECEIVED)
        if (event.job_id, event.peer) == (audited.unlogged, "beta")
    }
    assert came <= {event.round for event in of_job(beta, Kind.RESULT_SENT) if event.job_id == audited.unlogged}
    log = audited.federation.site_log("beta", audited.unlogged)
    assert "not the log's folder" in log or "cannot be written" in log


# -- tampering with copies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("party", "change", "chain", "expected"),
    [
        ("alpha", tampering.flip, False, FindingKind.CHANGED_LINE),
        ("alpha", tampering.drop(Kind.LEDGER_CHARGED), False, FindingKind.MISSING_LINES),
        ("alpha", tampering.drop(Kind.LEDGER_CHARGED), True, FindingKind.PEER_CHECKPOINT_MISMATCH),
        ("alpha", tampering.swap, False, FindingKind.SWAPPED_LINES),
        ("alpha", tampering.repeat, False, FindingKind.REPEATED_LINE),
        ("alpha", tampering.clock_ahead, True, FindingKind.CLOCK_BACK),
        ("alpha", tampering.bad_signature, True, FindingKind.BAD_SIGNATURE),
        ("beta", tampering.cut, False, FindingKind.CUT_TAIL),
        (SERVER, tampering.never_sent, True, FindingKind.UPDATE_NEVER_SENT),
        (SERVER, tampering.never_sent, True, FindingKind.CHECKPOINT_MISMATCH),
        (SERVER, tampering.drop(Kind.UPDATE_RECEIVED, "beta"), True, FindingKind.UPDATE_NOT_RECORDED),
        (SERVER, tampering.drop(Kind.COMMAND), True, FindingKind.PEER_CHECKPOINT_MISMATCH),
    ],
)
def test_tampering_is_found(
    audited: Audited, tmp_path: Path, party: str, change: tampering.Change, chain: bool, expected: FindingKind
) -> None:
    copies = shutil.copytree(audited.copies, tmp_path / "copies")
    tampering.rewrite(copies / party, change, chain=chain)
    assert expected in kinds_found(copies, party)


@pytest.mark.parametrize(
    ("forger", "expected"),
    [("beta", FindingKind.WRONG_KEY), ("alpha", FindingKind.PEER_CHECKPOINT_MISMATCH)],
)
def test_a_forged_log_that_holds_in_itself_is_found(
    audited: Audited, tmp_path: Path, forger: str, expected: FindingKind
) -> None:
    """A whole log made anew without a charge, every checkpoint signed again: by another party's key, or by its own."""
    copies = shutil.copytree(audited.copies, tmp_path / "copies")
    signer = Signer.from_kit(audited.federation.kit(forger))
    tampering.rewrite(copies / "alpha", tampering.drop(Kind.LEDGER_CHARGED), chain=True, signer=signer)
    assert expected in kinds_found(copies, "alpha")


def kinds_found(copies: Path, party: str) -> set[FindingKind]:
    """What is wrong with a party's log beside the others."""
    result = verify([copies / name for name in (SERVER, *SITES)], copies / "rootCA.pem")
    assert result.verified is False
    return {finding.kind for finding in result.findings if party in Path(finding.file).parts}
