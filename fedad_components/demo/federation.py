"""A whole federation on this machine: real FLARE processes, real certificates, mutual TLS over loopback.

`fedad demo` runs in it, and every federation test does::

    with Federation(tmp_path, sites=["a", "b"]) as federation:
        federation.start()
        job_id = federation.submit("jobs/fedad_job")
        assert federation.wait(job_id, timeout=300) == "FINISHED:COMPLETED"

Whatever happens inside the block, no process is left behind: each carries two environment variables that its children
inherit, however they are re-parented, and that is how they are found.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml
from nvflare.fuel.flare_api.api_spec import NoConnection, SessionClosed
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedad_components.files import write_atomic
from fedad_components.flare.provision import provision, read_project
from fedad_components.flare.site import SitePaths
from fedad_components.signals import exit_on_signals

HOST = "localhost"
SERVER = "server"
POLL = 0.25
"""Seconds between two looks at a process or a job."""

_FEDERATION = "FEDAD_FEDERATION"
_NODE = "FEDAD_NODE"
_LOG_LINES = 25


class FederationError(RuntimeError):
    """A federation that did not do what was asked in time; the message quotes the log that tells why."""


class Federation:
    """A server, sites and people; see the module's docstring.

    Args:
        work_dir: where kits, logs and jobs go; new or empty, no spaces in its path (FLARE splits its commands at them).
        sites: names of the sites.
        threads: OMP_NUM_THREADS of each process; 0 leaves it alone.
        env: further environment variables for every process.
    """

    def __init__(
        self, work_dir: str | Path, sites: Sequence[str], *, threads: int = 1, env: Mapping[str, str] | None = None
    ) -> None:
        self.work_dir = Path(work_dir).resolve()
        if any(character.isspace() for character in str(self.work_dir)):
            raise FederationError(f"{self.work_dir}: FLARE cannot start jobs in a folder with a space in its path")
        self.sites = tuple(sites)
        self._id = uuid.uuid4().hex
        self._env = {**os.environ, "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
        self._env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), self._env.get("PATH", os.defpath)])
        if threads:
            self._env["OMP_NUM_THREADS"] = str(threads)
        self._env.update(env or {})
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._registered_before: dict[str, int] = {}
        self._sessions: dict[str, Session] = {}
        self._refused: Exception | None = None  # why the server last turned a session down
        self._submitted = 0
        self._project = _project(self.sites)
        self.people = {item["role"]: item["name"] for item in self._project["participants"] if item["type"] == "admin"}
        """Names of the people by role: project_admin, lead, member."""
        self.kits = provision(self._project, self.work_dir / "provision")
        """Folder with one startup kit a participant."""
        for site in self.sites:
            self.set_policy(site)

    # -- places ------------------------------------------------------------------------------------------------------

    @property
    def server_kit(self) -> Path:
        """The server's kit; ``<server_kit>/<job id>`` is a job's run folder."""
        return self.kits / HOST

    def kit(self, name: str) -> Path:
        """The kit of the server (``server``), a site, or a person by role (``lead``)."""
        return self.server_kit if name == SERVER else self.kits / self.people.get(name, name)

    def site_paths(self, name: str) -> SitePaths:
        """A site's private folder."""
        return SitePaths.of_kit(self.kit(name))

    def set_policy(self, site: str, **rules: Any) -> None:
        """Write a site's policy: these rules, and the defaults, but that nobody has to approve a job here."""
        policy = {"require_approval": False, **rules}
        write_atomic(self.site_paths(site).policy, yaml.safe_dump(policy, sort_keys=False).encode("utf-8"))

    def server_log(self, job_id: str | None = None) -> str:
        """The server's log, or that of its process for a job."""
        return self._log(SERVER, job_id)

    def site_log(self, name: str, job_id: str | None = None) -> str:
        """A site's log, or that of its process for a job."""
        return self._log(name, job_id)

    def _log(self, node: str, job_id: str | None) -> str:
        path = self.kit(node) / (job_id or "") / "log.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 90.0) -> None:
        """Start the server and all sites, and wait until they are connected."""
        self.start_server()
        for name in self.sites:
            self.start_site(name)
        self.wait_ready(timeout)

    def start_server(self) -> None:
        """Start the server; returns at once."""
        self.start_kit(self.server_kit, SERVER)

    def start_site(self, name: str) -> None:
        """Start a site; returns at once."""
        self.start_kit(self.kit(name), name)

    def start_kit(self, kit: Path, node: str) -> None:
        """Start any kit with its own script, in its own session, under the name ``node``.

        ``--once``: the script then replaces itself by FLARE's process instead of watching and restarting it, which
        costs five seconds at the start and would undo kill_site.
        """
        if self.processes(node):
            raise FederationError(f"{node}: already running")
        self._registered_before[node] = self._registrations(node)
        with open(kit / "console.log", "ab") as console:
            self._started[node] = subprocess.Popen(
                ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
                cwd=kit,
                env={**self._env, _FEDERATION: self._id, _NODE: node},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_site(self, name: str) -> None:
        """SIGKILL to a site's whole tree: as if its plug were pulled."""
        self._kill(name)

    def kill_server(self) -> None:
        """SIGKILL to the server and its job processes."""
        self._close_sessions()
        self._kill(SERVER)

    def processes(self, node: str | None = None) -> list[psutil.Process]:
        """Living processes of a node, or of the federation: parents, job processes, trainers."""
        return [process for process in _alive() if self._belongs(process, node)]

    def _belongs(self, process: psutil.Process, node: str | None) -> bool:
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            return False  # another user's, or already gone
        return environment.get(_FEDERATION) == self._id and node in (None, environment.get(_NODE))

    def _kill(self, node: str | None, within: float = 15.0) -> None:
        deadline = time.monotonic() + within
        while remaining := self.processes(node):
            for process in remaining:
                _ignore_gone(process.kill)
            psutil.wait_procs(remaining, timeout=1.0)
            if time.monotonic() > deadline:
                raise FederationError(f"{node or 'federation'}: processes survive SIGKILL: {remaining}")
        for name in [node] if node else list(self._started):
            if parent := self._started.pop(name, None):
                parent.wait(timeout=within)

    def _check_alive(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            parent = self._started.get(node)
            if parent is not None and parent.poll() is not None:
                raise FederationError(f"{node} ended with code {parent.returncode}:\n{self._tail(node)}")

    def _tail(self, node: str) -> str:
        text = self._log(node, None)
        console = self.kit(node) / "console.log"
        if not text and console.is_file():
            text = console.read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  {node}: {line}" for line in text.splitlines()[-_LOG_LINES:])

    def wait_ready(self, timeout: float = 90.0, sites: Sequence[str] | None = None) -> None:
        """Wait until these sites (default: all) are registered at the server.

        Raises:
            FederationError: after ``timeout`` seconds, or as soon as one of the processes has ended.
        """
        expected = set(self.sites if sites is None else sites)
        deadline = time.monotonic() + timeout
        missing = expected
        while missing:
            self._check_alive([SERVER, *expected])
            if time.monotonic() > deadline:
                late = sorted(missing)
                logs = "\n".join(self._tail(node) for node in [SERVER, *late])
                raise FederationError(
                    f"not connected within {timeout:g} s: {', '.join(late)}\n{logs}"
                ) from self._refused
            time.sleep(POLL)
            # A killed site counts as connected until its heartbeat is missed: it must have registered since its start.
            missing = expected - self.connected()
            missing |= {site for site in expected if self._registrations(site) <= self._registered_before.get(site, -1)}

    def _registrations(self, site: str) -> int:
        return self.server_log().count(f"New client {site}@")

    def connected(self) -> set[str]:
        """Names of the sites that the server counts as connected; empty while it is not up."""
        if not _listening(self._port):
            return set()
        try:
            status = self.session("lead").check_status("server")
        except Exception as error:  # FLARE raises many kinds while a server comes up; wait_ready bounds the retries
            self._refused = error
            self._close_sessions()
            return set()
        return {client["client_name"] for client in status.get("clients", [])}

    @property
    def _port(self) -> int:
        return int(self._project["participants"][0]["fed_learn_port"])

    # -- jobs --------------------------------------------------------------------------------------------------------

    def session(self, user: str = "lead") -> Session:
        """FLARE's API session of a person, by role; opened once and kept until the server ends."""
        if user not in self._sessions:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints "Connecting to FLARE ..."
                self._sessions[user] = new_secure_session(self.people[user], str(self.kit(user)), timeout=10.0)
        return self._sessions[user]

    def submit(self, job_dir: str | Path, user: str = "lead") -> str:
        """Submit a copy of a job folder (FLARE signs it in place); returns the job's id."""
        self._submitted += 1
        copy = self.work_dir / "submitted" / str(self._submitted) / Path(job_dir).resolve().name
        shutil.copytree(job_dir, copy)
        return str(self.session(user).submit_job(str(copy)))

    def status(self, job_id: str) -> str:
        """FLARE's status of a job, e.g. ``RUNNING`` or ``FINISHED:COMPLETED``.

        A busy server may let a session time out: while it lives, it is asked again.

        Raises:
            FederationError: if it does not answer for a minute, or has ended.
        """
        deadline = time.monotonic() + 60.0
        while True:
            try:
                return str(self.session().get_job_meta(job_id)["status"])
            except (NoConnection, SessionClosed) as error:
                self._close_sessions()
                self._check_alive([SERVER])
                if time.monotonic() > deadline:
                    raise FederationError(f"the server does not answer: {error}\n{self._tail(SERVER)}") from error
                time.sleep(4 * POLL)

    def wait(self, job_id: str, timeout: float, on_poll: Callable[[str], None] | None = None) -> str:
        """Wait until a job has finished; returns its status.

        Args:
            job_id: from submit.
            timeout: seconds.
            on_poll: called with the status about once a second; what it raises ends the wait.

        Raises:
            FederationError: after ``timeout``, or when the server has ended.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._check_alive([SERVER])
            status = self.status(job_id)
            if on_poll:
                on_poll(status)
            if status.startswith("FINISHED"):
                return status
            if time.monotonic() > deadline:
                raise FederationError(f"job {job_id} is {status} after {timeout:g} s\n{self._tail(SERVER)}")
            time.sleep(4 * POLL)

    def download(self, job_id: str, dest: str | Path, user: str = "lead") -> Path:
        """Download a job's result below ``dest``; returns its folder."""
        return Path(self.session(user).download_job_result(job_id, str(dest)))

    def rogue_kit(self, name: str) -> Path:
        """A kit for the same name and server, but from another certificate authority."""
        folder = self.work_dir / "rogue"
        kits = next(folder.glob("*/prod_*"), None) or provision(self._project, folder)
        return kits / (HOST if name == SERVER else self.people.get(name, name))

    # -- life --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End everything: first politely, then by SIGKILL. Safe to call twice."""
        self._close_sessions()
        polite = self.processes()
        for process in polite:
            _ignore_gone(process.terminate)
        psutil.wait_procs(polite, timeout=3.0)
        self._kill(None)

    def _close_sessions(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            try:
                session.close()
            except Exception:  # the server may be gone: there is nothing left to close
                continue

    def __enter__(self) -> Federation:
        atexit.register(self.stop)
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(exit_on_signals())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
            atexit.unregister(self.stop)  # not if a second Ctrl-C has just interrupted it: then it is tried once more
        finally:
            self._signals.close()


def _project(sites: Sequence[str]) -> dict[str, Any]:
    """The project that consortia start from, with these sites and a server on a free loopback port."""
    project = read_project()
    people = [item for item in project["participants"] if item["type"] == "admin"]
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    server = {"name": HOST, "type": "server", "org": "consortium", "fed_learn_port": port}
    clients = [{"name": name, "type": "client", "org": name.replace("-", "_")} for name in sites]
    return {**project, "participants": [server, *clients, *people]}


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def _alive() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def _ignore_gone(action: Callable[[], None]) -> None:
    try:
        action()
    except psutil.NoSuchProcess:
        return
