"""Checkpoints: what is signed, when one is due, and what a peer accepts."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509 import load_pem_x509_certificate
from parties import DAY, Authority, now, slow_chain

from fedad_components.audit import checkpoint as checkpoint_module
from fedad_components.audit.checkpoint import CheckpointError, accept_peer, due, latest, sign, write_checkpoint
from fedad_components.audit.event import Kind, SignedCheckpoint, rfc3339
from fedad_components.audit.log import AuditError, AuditLog
from fedad_components.audit.reading import log_files


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    log = AuditLog(tmp_path / "site-a", "site-a")
    log.write(Kind.SYSTEM_STARTED)
    return log


def test_a_checkpoint_signs_the_last_event(log: AuditLog, authority: Authority) -> None:
    """Verified here without our code: RFC 8785 of all fields but the signature."""
    event = log.write(Kind.COMMAND)
    signed = write_checkpoint(log, authority.leaf("site-a", "ed25519"))
    written = slow_chain(log_files(log.folder))[-1]
    assert (signed.seq, signed.root) == (event.seq, written["prev"])
    assert written["checkpoint"] == signed.model_dump()
    assert written["time"] == signed.time
    stated = signed.model_dump()
    signature = base64.b64decode(stated.pop("signature"))
    key = load_pem_x509_certificate(signed.certificate.encode()).public_key()
    assert isinstance(key, ed25519.Ed25519PublicKey)
    key.verify(signature, rfc8785.dumps(stated))


def test_an_empty_log_has_nothing_to_sign(tmp_path: Path, authority: Authority) -> None:
    log = AuditLog(tmp_path / "new", "site-a")
    assert latest(log) is None
    assert not due(log)
    with pytest.raises(AuditError, match="empty"):
        write_checkpoint(log, authority.leaf("site-a"))
    log.write(Kind.SYSTEM_STARTED)


def test_a_party_signs_its_own_log_only(log: AuditLog, authority: Authority) -> None:
    with pytest.raises(AuditError, match="site-b"):
        write_checkpoint(log, authority.leaf("site-b"))


def test_latest_and_due(log: AuditLog, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    assert latest(log) is None
    assert due(log)
    signed = write_checkpoint(log, authority.leaf("site-a"))
    assert latest(log) == latest(AuditLog(log.folder, "site-a")) == signed
    assert not due(log, 0)  # nothing happened since
    log.write(Kind.COMMAND)
    assert latest(log) == signed
    assert due(log, 0)
    assert not due(log, 300)
    monkeypatch.setattr(checkpoint_module, "_age", lambda _: timedelta(seconds=301))
    assert due(log, 300)
    monkeypatch.setattr(checkpoint_module, "_age", lambda _: timedelta(seconds=-1))  # the clock was set back
    assert due(log, 300)


def test_latest_is_found_in_an_earlier_file(tmp_path: Path, authority: Authority) -> None:
    log = AuditLog(tmp_path / "log", "site-a", file_bytes=2000)
    log.write(Kind.SYSTEM_STARTED)
    signed = write_checkpoint(log, authority.leaf("site-a"))
    while len(log_files(log.folder)) < 3:
        log.write(Kind.COMMAND, durable=False)
    assert latest(log) == signed


def test_a_peers_checkpoint_is_kept(log: AuditLog, authority: Authority, tmp_path: Path) -> None:
    server = AuditLog(tmp_path / "server", "server")
    signed = write_checkpoint(log, authority.leaf("site-a"))
    for sent in (signed, signed.model_dump()):  # as an object, and as it comes from the wire
        event = accept_peer(server, sent, authority.pem, "site-a")
        assert (event.peer, event.checkpoint) == ("site-a", signed)


def test_checkpoints_that_are_refused(log: AuditLog, authority: Authority, tmp_path: Path) -> None:
    server = AuditLog(tmp_path / "server", "server")
    time = rfc3339(now())
    good = write_checkpoint(log, authority.leaf("site-a"))
    old = authority.leaf("site-a", begins=now() - 9 * DAY, ends=now() - 8 * DAY)
    wrong: dict[str, SignedCheckpoint | dict[str, object]] = {
        "not a checkpoint": {"site": "site-a\n[E:"},
        "another party": sign(authority.leaf("site-b"), "site-b", 3, "0" * 64, time),
        "signature": good.model_copy(update={"seq": 5}),
        "under the root": sign(Authority().leaf("site-a"), "site-a", 3, "0" * 64, time),
        "not the party's": sign(authority.leaf("site-b"), "site-a", 3, "0" * 64, time),
        "not valid now": sign(old, "site-a", 3, "0" * 64, time),
    }
    for match, checkpoint in wrong.items():
        with pytest.raises(CheckpointError, match=match):
            accept_peer(server, checkpoint, authority.pem, "site-a")
    events = slow_chain(log_files(server.folder))
    assert [event["outcome"] for event in events] == ["refused"] * len(wrong)
    assert not any("checkpoint" in event for event in events)  # nothing of theirs is in our log
