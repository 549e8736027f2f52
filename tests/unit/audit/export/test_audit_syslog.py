"""Lines of RFC 5424, read by a parser of that grammar alone; TLS to a collector, and to a real rsyslogd."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from audit_events import NASTY, event_of, every_kind, nasty_event
from authority import Authority
from hypothesis import given, settings
from hypothesis import strategies as st

from fedad_components.audit.event import Kind, parse
from fedad_components.audit.export import syslog
from fedad_components.audit.export.collector import Collector, CollectorError
from fedad_components.audit.export.fields import one_line
from fedad_components.audit.export.syslog import Message

HEADER = re.compile(
    rb"<(?P<pri>0|[1-9]\d{0,2})>1 "
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z) "
    rb"(?P<host>[!-~]{1,255}) (?P<app>[!-~]{1,48}) (?P<proc>[!-~]{1,128}) (?P<msgid>[!-~]{1,32}) "
)
PARAM = re.compile(rb' ([!#-<>-\\^-~]{1,32})="((?:[^"\\\]]|\\["\\\]]|\\(?!["\\\]]))*)"')


class Parsed(NamedTuple):
    facility: int
    severity: int
    time: str
    host: str
    app: str
    msgid: str
    sd_id: str
    params: dict[str, str]
    message: bytes


def read(line: bytes) -> Parsed:
    """By the ABNF of RFC 5424, section 6, with one SD-ELEMENT and a MSG-UTF8."""
    head = HEADER.match(line)
    assert head, line[:200]
    rest = line[head.end() :]
    sd_id = re.match(rb"\[([!#-<>-\\^-~]{1,32})", rest)
    assert sd_id, rest[:200]
    place, params = sd_id.end(), {}
    while param := PARAM.match(rest, place):
        params[param[1].decode()] = re.sub(rb'\\(["\\\]])', rb"\1", param[2]).decode("utf-8")
        place = param.end()
    assert rest[place : place + 5] == b"] \xef\xbb\xbf", rest[place : place + 40]
    facility, severity = divmod(int(head["pri"]), 8)
    texts = (head[name].decode() for name in ("time", "host", "app", "msgid"))
    return Parsed(facility, severity, *texts, sd_id[1].decode(), params, rest[place + 5 :])


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_a_line(kind: Kind) -> None:
    event = event_of(kind)
    line = read(syslog.line(event))
    assert (line.facility, line.time, line.host, line.app) == (13, event.time, "hospital-a", "fedad")
    assert (line.msgid, line.sd_id) == (kind.value, "fedad@32473")
    assert parse(line.message).event == event
    assert (line.params["site"], line.params["outcome"]) == ("hospital-a", event.outcome.value)


@pytest.mark.parametrize(("outcome", "severity"), [("success", 6), ("refused", 4), ("failed", 3)])
def test_severity_follows_the_outcome(outcome: str, severity: int) -> None:
    assert read(syslog.line(event_of(Kind.COMMAND, outcome=outcome))).severity == severity


def test_an_audit_message_goes_as_dicom_has_it() -> None:
    """PS3.15 A.6: facility 10, severity 5 for most, 4 for a warning; MSGID DICOM+RFC3881."""
    line = read(syslog.line(event_of(Kind.RESULT_SENT), Message.ATNA))
    assert (line.facility, line.severity, line.msgid) == (10, 5, "DICOM+RFC3881")
    assert ElementTree.fromstring(line.message).tag == "AuditMessage"
    refused = read(syslog.line(event_of(Kind.CONNECTION_REFUSED), Message.ATNA))
    assert (refused.facility, refused.severity) == (10, 4)


def test_hostile_text_stays_in_its_parameter() -> None:
    line = read(syslog.line(nasty_event()))
    assert line.params["reason"] == line.params["actor.name"] == one_line(NASTY)
    assert parse(line.message).event == nasty_event()


@given(st.text(min_size=1, max_size=40).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
@settings(max_examples=200, deadline=None)
def test_any_text_is_one_parameter_on_one_line(text: str) -> None:
    event = event_of(Kind.COMMAND, site=text, reason=text, actor={"name": text})
    content = syslog.line(event)
    assert b"\n" not in content
    line = read(content)
    assert line.params["reason"] == line.params["site"] == one_line(text)
    assert parse(line.message).event == event


def test_a_file_has_a_line_an_event() -> None:
    events = every_kind()
    content = b"".join(syslog.export(events))
    assert [parse(read(line).message).event for line in content.split(b"\n")[:-1]] == events


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class Received:
    """What a strict receiver of RFC 5425 got."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.closed_in_order = False
        self.client: dict[str, object] | None = None


@contextmanager
def receiver(
    authority: Authority, *, wants_certificate: bool = False, name: str = "localhost"
) -> Iterator[tuple[int, Received]]:
    """A collector on loopback; its thread has ended when the block has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(name))
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.root)
    got = Received()
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)

    def serve() -> None:
        plain, _ = server.accept()
        plain.settimeout(30)
        with plain:
            try:
                session = context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False)
            except (ssl.SSLError, OSError):
                return
            with session:
                got.client = session.getpeercert() if wants_certificate else None
                got.lines = list(frames(session))
                got.closed_in_order = True

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1], got
    finally:
        thread.join(60)
        server.close()
        assert not thread.is_alive()


def frames(session: ssl.SSLSocket) -> Iterator[bytes]:
    """``SYSLOG-FRAME = MSG-LEN SP SYSLOG-MSG`` until close_notify; anything else is an error."""
    with session.makefile("rb") as stream:
        while length := re.fullmatch(rb"([1-9]\d*) ", until_space(stream)):
            content = stream.read(int(length[1]))
            assert len(content) == int(length[1])
            yield content
        assert stream.read() == b""


def until_space(stream: object) -> bytes:
    text = b""
    while not text.endswith(b" ") and (byte := stream.read(1)):  # type: ignore[attr-defined]
        text += byte
    return text


def test_a_collector_gets_every_line(authority: Authority) -> None:
    events = [*every_kind(), nasty_event()]
    lines = [syslog.line(event) for event in events]
    with receiver(authority) as (port, got):
        Collector("localhost", authority.root, port).send(lines)
    assert got.lines == lines
    assert got.closed_in_order
    assert [parse(read(line).message).event for line in got.lines] == events


def test_a_collector_may_want_a_certificate(authority: Authority) -> None:
    certificate, key = authority.issue("hospital-a")
    with receiver(authority, wants_certificate=True) as (port, got):
        Collector("localhost", authority.root, port, certificate, key).send([b"a", b"bc"])
    assert got.lines == [b"a", b"bc"]
    assert got.client is not None
    assert (("commonName", "hospital-a"),) in got.client["subject"]  # type: ignore[operator]


def test_one_that_wants_a_certificate_does_not_swallow_a_log_without(authority: Authority) -> None:
    with (
        receiver(authority, wants_certificate=True) as (port, got),
        pytest.raises(CollectorError, match=rf"collector localhost:{port}: "),
    ):
        Collector("localhost", authority.root, port).send([syslog.line(event_of(Kind.COMMAND))] * 3)
    assert got.lines == []


def test_a_collector_that_nobody_vouches_for_gets_nothing(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    with (
        receiver(stranger) as (port, got),
        pytest.raises(CollectorError, match=r"not accepted .*has to hold the authority"),
    ):
        Collector("localhost", authority.root, port).send([b"secret"])
    assert got.lines == []


def test_a_collector_of_another_name_gets_nothing(authority: Authority) -> None:
    with (
        receiver(authority, name="other.example") as (port, got),
        pytest.raises(CollectorError, match=r"the certificate has to name localhost"),
    ):
        Collector("localhost", authority.root, port).send([b"secret"])
    assert got.lines == []


def test_a_collector_that_is_not_there(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CollectorError, match=rf"collector localhost:{port}: .*is it running"):
        Collector("localhost", authority.root, port).send([b"line"])


def test_files_that_are_no_certificates(authority: Authority, tmp_path: Path) -> None:
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("no PEM")
    certificate, key = authority.issue("hospital-a")
    for collector, message in (
        (Collector("localhost", no_pem), "no.pem: no certificates of authorities"),
        (Collector("localhost", tmp_path / "absent.pem"), "absent.pem: no certificates of authorities"),
        (Collector("localhost", authority.root, certificate=no_pem), "no.pem: no certificate with its key"),
        (Collector("localhost", authority.root, certificate=certificate), "no certificate with its key"),
        (Collector("localhost", authority.root, key=key), "a key without its certificate"),
    ):
        with pytest.raises(CollectorError, match=message):
            collector.send([b"line"])


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("logs.example.org:7000", "logs.example.org", 7000),
        ("logs", "logs", 6514),
        ("10.0.0.7:1", "10.0.0.7", 1),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1]", "fe80::1", 6514),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    collector = Collector.at(address, Path("ca.pem"))
    assert (collector.host, collector.port) == (host, port)


@pytest.mark.parametrize("address", ["", ":1", "a:", "a:0", "a:65536", "::1:1", "https://a", "a b:1", "a:\u0663"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(CollectorError, match="expected HOST:PORT"):
        Collector.at(address, Path("ca.pem"))


RSYSLOGD = shutil.which("rsyslogd", path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin")
CONFIGURATION = """
global(
  workDirectory="{folder}" maxMessageSize="64k"
  defaultNetstreamDriverCAFile="{root}"
  defaultNetstreamDriverCertFile="{certificate}"
  defaultNetstreamDriverKeyFile="{key}"
  parser.escapeControlCharactersOnReceive="off"
)
module(load="imtcp" streamDriver.name="{driver}" streamDriver.mode="1" streamDriver.authMode="x509/name"
       permittedPeer=["hospital-a"])
input(type="imtcp" port="{port}" address="127.0.0.1")
template(name="seen" type="list" option.jsonf="on") {{
  property(outname="facility" name="syslogfacility" format="jsonf")
  property(outname="severity" name="syslogseverity" format="jsonf")
  property(outname="time" name="timereported" dateFormat="rfc3339" format="jsonf")
  property(outname="host" name="hostname" format="jsonf")
  property(outname="app" name="app-name" format="jsonf")
  property(outname="msgid" name="msgid" format="jsonf")
  property(outname="sd" name="structured-data" format="jsonf")
  property(outname="raw" name="rawmsg" format="jsonf")
}}
action(type="omfile" file="{out}" template="seen")
"""


@pytest.mark.slow
@pytest.mark.skipif(RSYSLOGD is None, reason="no rsyslogd on this machine; apt install rsyslog rsyslog-gnutls")
@pytest.mark.parametrize("message", Message)
def test_a_real_rsyslogd_keeps_every_event(authority: Authority, tmp_path: Path, message: Message) -> None:
    driver = next((name for name in ("gtls", "ossl") if list(Path("/usr/lib").rglob(f"lmnsd_{name}.so"))), None)
    if driver is None:
        pytest.skip("rsyslogd here has no TLS driver; apt install rsyslog-gnutls")
    assert RSYSLOGD is not None
    certificate, key = authority.issue("localhost")
    out, conf = tmp_path / "out.jsonl", tmp_path / "rsyslog.conf"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = {"root": authority.root, "certificate": certificate, "key": key, "out": out, "folder": tmp_path}
    conf.write_text(CONFIGURATION.format(driver=driver, port=port, **places))
    events = [*every_kind(), nasty_event()]
    command = [RSYSLOGD, "-n", "-f", str(conf), "-i", str(tmp_path / "pid")]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for(lambda: reachable(port), process)
            ours = Collector("localhost", authority.root, port, *authority.issue("hospital-a"))
            ours.send(syslog.line(event, message) for event in events)
            wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") == len(events), process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
    for event, text in zip(events, out.read_text(encoding="utf-8").split("\n")[:-1], strict=True):
        seen = json.loads(text)
        sent = read(syslog.line(event, message))
        assert (int(seen["facility"]), int(seen["severity"])) == (sent.facility, sent.severity)
        assert (seen["app"], seen["msgid"]) == (sent.app, sent.msgid)
        assert (seen["host"], seen["time"].replace("+00:00", "Z")) == (sent.host, event.time)
        assert seen["sd"].startswith("[fedad@32473 ")
        assert read(seen["raw"].encode()) == sent


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_for(condition: object, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if condition():  # type: ignore[operator]
            return
        assert process.poll() is None, "rsyslogd ended"
        time.sleep(0.1)
    raise AssertionError("rsyslogd did not get there in 30 s")
