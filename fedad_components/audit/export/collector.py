"""Syslog over TLS to a collector: the client's side of RFC 5425."""

from __future__ import annotations

import errno
import re
import select
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PORT = 6514
"""Of syslog over TLS (RFC 5425, 4.1)."""
_TIMEOUT_S = 30.0
ACCEPTANCE_S = 5.0
"""How long to wait for a collector's first word after the handshake."""
_ADDRESS = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[\w.-]+))(:(?P<port>\d{1,5}))?", re.ASCII)


class CollectorError(RuntimeError):
    """The collector is not reached, is not who it has to be, or hung up; the message names it and the fix."""


@dataclass(frozen=True)
class Collector:
    """Where to send, whom to believe, and who we are.

    Attributes:
        host: its name or address; its certificate has to be for it.
        ca: PEM file of the authority that signed the collector's certificate.
        certificate: PEM file of our own certificate, for a collector that asks for one; ``key`` goes with it.
        timeout_s: how long a connection, or one write to it, may take.
    """

    host: str
    ca: Path
    port: int = PORT
    certificate: Path | None = None
    key: Path | None = None
    timeout_s: float = _TIMEOUT_S

    @classmethod
    def at(cls, address: str, ca: Path, certificate: Path | None = None, key: Path | None = None) -> Collector:
        """The collector at ``HOST``, ``HOST:PORT`` or ``[IPv6]:PORT``; without a port, syslog's own over TLS.

        Raises:
            CollectorError: if the address is none of these.
        """
        match = _ADDRESS.fullmatch(address)
        if not match or not 0 < int(match["port"] or PORT) < 2**16:
            raise CollectorError(
                f"{address!r} is no collector's address; expected HOST:PORT, such as logs.example.org:{PORT}"
            )
        return cls(match["six"] or match["host"], ca, int(match["port"] or PORT), certificate, key)

    def send(self, lines: Iterable[bytes]) -> None:
        """Send each line as one frame, ``MSG-LEN SP SYSLOG-MSG``, and close the session in order.

        The protocol has no receipt: this returns when the collector has ended the session too, or closed the
        connection after we did, not when it has stored anything.

        Raises:
            CollectorError: if the collector cannot be reached or trusted, or hangs up before the end.
        """
        context = self._context()
        try:
            with (
                socket.create_connection((self.host, self.port), self.timeout_s) as plain,
                context.wrap_socket(plain, server_hostname=self.host) as session,
            ):
                _await_acceptance(session)
                for line in lines:
                    session.sendall(b"%d %s" % (len(line), line))
                # One that closes without close_notify, after ours, is within RFC 5425 (4.4).
                with suppress(ssl.SSLEOFError):
                    session.unwrap()
        except ssl.SSLCertVerificationError as error:
            raise CollectorError(
                f"collector {self.host}:{self.port}: its certificate is not accepted ({error.verify_message}); "
                f"{self.ca} has to hold the authority that signed it, and the certificate has to name {self.host}"
            ) from None
        except ssl.SSLError as error:
            raise CollectorError(
                f"collector {self.host}:{self.port}: TLS failed ({error.reason or error}); does it speak syslog "
                f"over TLS there, and does it want a client certificate?"
            ) from None
        except OSError as error:
            raise CollectorError(
                f"collector {self.host}:{self.port}: {error.strerror or error}; is it running, and may it be reached?"
            ) from None

    def _context(self) -> ssl.SSLContext:
        if self.key and not self.certificate:
            raise CollectorError(f"{self.key}: a key without its certificate; name both")
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise CollectorError(f"{self.ca}: no certificates of authorities in PEM ({_why(error)})") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except (OSError, ssl.SSLError) as error:
                raise CollectorError(
                    f"{self.certificate}: no certificate with its key in PEM ({_why(error)})"
                ) from None
        return context


def _await_acceptance(session: ssl.SSLSocket) -> None:
    """Read what a collector says once it has judged our certificate, or that there is none.

    Under TLS 1.3 it does so after our side of the handshake is over: with an alert, which raises, or with session
    tickets. Lines that were sent before could drown the alert in a reset of the connection. One that says nothing is
    taken to accept.

    Raises:
        OSError: if the collector refuses, or hangs up.
    """
    if session.version() != "TLSv1.3" or not select.select([session], [], [], ACCEPTANCE_S)[0]:
        return
    timeout = session.gettimeout()
    session.setblocking(False)
    try:
        if session.recv(1) == b"":
            raise ConnectionResetError(errno.ECONNRESET, "it hung up after the handshake")
    except ssl.SSLWantReadError:
        pass  # tickets alone
    finally:
        session.settimeout(timeout)


def _why(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return str(reason or error)
