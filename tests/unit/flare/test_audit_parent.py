"""The log of a parent process: starts, changes, commands and their refusals, sign-ins, the kit's own certificate."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from kits import SERVER, SITE, break_log, make_kit, written
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.login import LoginModule
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.private.defs import CellMessageHeaderKeys, ClientType
from parties import Authority

from fedad_components.audit.event import Actor, Kind, Outcome
from fedad_components.audit.keys import load_certificate
from fedad_components.audit.log import AuditError
from fedad_components.flare import audit_parent
from fedad_components.flare.audit import Record, party_of
from fedad_components.flare.audit_access import RecordedAuthorizer, record_sites
from fedad_components.flare.audit_parent import (
    AuditRecorder,
    BadCertificate,
    kit_files,
    package_digest,
)
from fedad_components.flare.site import SitePaths

LEAD, MEMBER = Person("lead@a.org", "Hospital A", "lead"), Person("member@a.org", "Hospital A", "member")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def flare_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder stands before what FLARE has once a process."""
    monkeypatch.setattr(AuthorizationService, "the_authorizer", Authorizer())
    monkeypatch.setattr(LoginModule, "handle_cert_login", login)
    monkeypatch.setattr(audit_parent.atexit, "register", lambda function: None)


@pytest.fixture
def site(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Path:
    kit = make_kit(tmp_path, authority, SITE)
    monkeypatch.chdir(kit)
    return kit


@pytest.fixture
def server(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Path:
    kit = make_kit(tmp_path, authority, SERVER)
    monkeypatch.chdir(kit)
    return kit


class Authorizer:
    """Leads may everything."""

    def authorize(self, ctx: AuthzContext) -> tuple[bool, str]:
        return ctx.user.role == "lead", ""


class Manager:
    """Of FLARE's server, what registers sites."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def authenticate(self, request: Any, fl_ctx: FLContext) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Named:
    """A server, a client: what has a name or a manager."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes


def login(module: LoginModule, conn: Connection, args: list[str]) -> None:
    """FLARE's sign-in, which gives a token."""
    if args[1] == "raise":
        raise ValueError("DOE^JANE")
    if args[1] != "reject":
        conn.append_token("token")


def start(**props: Any) -> Iterator[AuditRecorder]:
    recorder, fl_ctx = AuditRecorder(), FLContext()
    for name, value in props.items():
        fl_ctx.set_prop(name, value, private=True)
    recorder.handle_event(EventType.SYSTEM_BOOTSTRAP, fl_ctx)
    yield recorder
    recorder.handle_event(EventType.SYSTEM_END, fl_ctx)


def run_once(**props: Any) -> None:
    for _ in start(**props):
        pass


# -- start and stop ---------------------------------------------------------------------------------------------------


def test_a_start_says_what_runs_and_a_stop_is_written_once(site: Path) -> None:
    paths = SitePaths.of_kit(site)
    paths.policy.write_text("require_approval: false\n")
    recorder = next(start())
    for _ in range(2):
        recorder.handle_event(EventType.SYSTEM_END, FLContext())
    started, stopped, signed = written(site)
    assert (started.event, stopped.event) == (Kind.SYSTEM_STARTED, Kind.SYSTEM_STOPPED)
    assert signed.checkpoint
    assert signed.checkpoint.seq == stopped.seq
    assert started.software
    assert started.software["digest"] == package_digest()
    assert started.software["nvflare"].startswith("2.9")
    assert started.certificate == party_of(site).signer.certificate
    assert started.policy
    assert started.files == dict(kit_files(site))
    assert started.policy.digest == started.files["local/fedad/policy.yaml"]
    assert "startup/fed_client.json" in started.files
    assert "startup/client.key" not in started.files


def test_changes_since_the_last_start_are_events(site: Path, authority: Authority) -> None:
    run_once()
    run_once()
    assert written(site, Kind.POLICY_CHANGED, Kind.CERTIFICATE_CHANGED) == []
    SitePaths.of_kit(site).policy.write_text("require_approval: true\n")
    (site / "startup").rename(site / "old")
    renewed = make_kit(site / "renewed", authority, SITE)
    (renewed / "startup").rename(site / "startup")
    party_of.cache_clear()
    run_once()
    certificate, policy = written(site, Kind.POLICY_CHANGED, Kind.CERTIFICATE_CHANGED)
    assert certificate.certificate == (site / "startup" / "client.crt").read_text()
    assert policy.policy
    assert policy.policy.digest == dict(kit_files(site))["local/fedad/policy.yaml"]
    run_once()
    assert len(written(site, Kind.POLICY_CHANGED, Kind.CERTIFICATE_CHANGED)) == 2


def test_a_log_that_cannot_be_written_is_said_aloud(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    break_log(site)
    run_once()
    (critical,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert "commands, tasks and results are refused" in critical.message


def test_without_a_kit_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    authorizer = AuthorizationService.the_authorizer
    run_once()
    assert AuthorizationService.the_authorizer is authorizer


def test_checkpoints_are_written_while_the_log_moves(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_parent, "POLL_SECONDS", 0.0)
    recorder = AuditRecorder()
    ended = iter([False, False, False, True])
    monkeypatch.setattr(recorder._ended, "wait", lambda timeout: next(ended))
    Record(party_of(site), {}).write(Kind.SYSTEM_STARTED)
    recorder._keep_checkpoints(party_of(site))
    assert [event.event for event in written(site)] == [Kind.SYSTEM_STARTED, Kind.CHECKPOINT]


# -- the party's own certificate --------------------------------------------------------------------------------------


def test_an_expired_certificate_does_not_start(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kit(tmp_path, authority, SITE, ends=datetime.now(timezone.utc) - timedelta(hours=1))
    monkeypatch.chdir(kit)
    with pytest.raises(BadCertificate, match=r"valid from .* to .* only"):
        AuditRecorder()
    (event,) = written(kit)
    assert (event.event, event.outcome) == (Kind.CONNECTION_REFUSED, Outcome.REFUSED)
    assert event.reason == "its own certificate has expired: it did not start"


def test_a_certificate_of_another_root_or_name_does_not_start(site: Path, tmp_path: Path) -> None:
    (site / "startup" / "rootCA.pem").write_text(Authority().pem)
    with pytest.raises(BadCertificate, match="not issued by the root"):
        AuditRecorder()


def test_a_certificate_of_another_name_does_not_start(site: Path) -> None:
    client = site / "startup" / "fed_client.json"
    client.write_text(client.read_text().replace(SITE, "hospital-b"))
    with pytest.raises(BadCertificate, match=r"issued to 'hospital-a', not to 'hospital-b'"):
        AuditRecorder()


def test_a_kit_without_its_key_does_not_start(site: Path) -> None:
    (site / "startup" / "client.key").unlink()
    with pytest.raises(AuditError, match=r"client\.key"):
        AuditRecorder()


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("who", "outcome"), [(LEAD, Outcome.SUCCESS), (MEMBER, Outcome.REFUSED)])
def test_every_command_is_written_with_its_outcome(server: Path, who: Person, outcome: Outcome) -> None:
    guarded = RecordedAuthorizer(Authorizer(), Record(party_of(server), {}))
    allowed, _ = guarded.authorize(AuthzContext("submit_job", who))
    (event,) = written(server)
    assert allowed is (outcome is Outcome.SUCCESS)
    assert (event.event, event.outcome, event.command) == (Kind.COMMAND, outcome, "submit_job")
    assert event.actor == Actor(name=who.name, org=who.org, role=who.role)


def test_a_command_that_cannot_be_written_is_not_done(server: Path) -> None:
    guarded = RecordedAuthorizer(Authorizer(), Record(party_of(server), {}))
    break_log(server)
    allowed, why = guarded.authorize(AuthzContext("submit_job", LEAD))
    assert not allowed
    assert "log" in why


def test_the_recorder_stands_before_the_processs_authorizer_once(server: Path) -> None:
    for _ in range(2):
        run_once(**{FLContextKey.SITE_OBJ: Named(client_manager=Manager(None))})
    assert AuthorizationService.authorize(AuthzContext("abort_job", MEMBER)) == (False, "")
    assert len(written(server, Kind.COMMAND)) == 1


# -- sign-ins ---------------------------------------------------------------------------------------------------------


def sign_in(authority: Authority, user: str) -> None:
    conn = Connection()
    pem = load_certificate(authority.leaf(user).certificate).public_bytes(Encoding.PEM)
    conn.set_prop(ConnProps.CMD_HEADERS, {"cert": pem})
    LoginModule.handle_cert_login(None, conn, ["login", user])


def test_people_sign_in(server: Path, authority: Authority) -> None:
    run_once(**{FLContextKey.SITE_OBJ: Named(client_manager=Manager(None))})
    sign_in(authority, "lead@a.org")
    sign_in(authority, "reject")
    with pytest.raises(ValueError, match="DOE"):
        sign_in(authority, "raise")
    events = written(server, Kind.SIGNED_IN)
    assert [event.outcome for event in events] == [Outcome.SUCCESS, Outcome.REFUSED, Outcome.REFUSED]
    assert [event.actor and event.actor.name for event in events] == ["lead@a.org", "reject", "raise"]


@pytest.mark.parametrize(
    ("answer", "kind", "outcome"),
    [
        (Named(name="hospital-b"), Kind.SIGNED_IN, Outcome.SUCCESS),
        (None, Kind.CONNECTION_REFUSED, Outcome.REFUSED),
        (NotAuthenticated("DOE^JANE"), Kind.CONNECTION_REFUSED, Outcome.REFUSED),
    ],
)
def test_sites_register(server: Path, answer: Any, kind: Kind, outcome: Outcome) -> None:
    manager = Manager(answer)
    record_sites(manager, Record(party_of(server), {}))
    headers = {CellMessageHeaderKeys.CLIENT_NAME: "hospital-b", CellMessageHeaderKeys.CLIENT_TYPE: ClientType.REGULAR}
    request = Named(get_header=headers.get)
    if isinstance(answer, Exception):
        with pytest.raises(NotAuthenticated):
            manager.authenticate(request, FLContext())
    else:
        assert manager.authenticate(request, FLContext()) is answer
    (event,) = written(server)
    assert (event.event, event.outcome, event.peer) == (kind, outcome, "hospital-b")
