"""A training process that hangs, babbles or stops reading must not hold up the job process."""

from __future__ import annotations

import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedad_components.wire import Reason
from fedad_components.worker import process as module
from fedad_components.worker.process import RoundOrder, TrainingAborted, TrainingError, TrainingProcess, WorkerSettings

pytestmark = pytest.mark.slow

THETA = {"w": torch.zeros(1 << 18)}  # larger than a pipe's buffer
READY = """
from fedad_components.worker.protocol import Message, receive, send
receive(sys.stdin.buffer)
send(sys.stdout.buffer, Message("ready"))
"""
BABBLES = "sys.stdout.write('Hello from a library that prints\\n'); sys.stdout.flush(); time.sleep(60)\n"


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingProcess]:
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.5)
    running = TrainingProcess(WorkerSettings({}, "site", "", "", "", "", "", "", ""), tmp_path / "run" / "worker.log")
    yield running
    running.stop()


def behave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Let a script of this code take the child's place."""
    script = tmp_path / "child"
    script.write_text(f"#!{sys.executable}\nimport sys, time, os, signal\n{code}")
    script.chmod(0o700)
    monkeypatch.setattr(module.sys, "executable", str(script))


def train(worker: TrainingProcess, timeout: float = 60.0, stop: threading.Event | None = None) -> None:
    worker.train(THETA, RoundOrder(0, 0.1, rules={}), timeout=timeout, should_stop=(stop or threading.Event()).is_set)


@pytest.mark.parametrize("code", [BABBLES, READY + BABBLES])
def test_what_is_no_message_ends_the_child(
    worker: TrainingProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    behave(monkeypatch, tmp_path, code)
    with pytest.raises(TrainingError, match="something else than a message") as failed:
        train(worker)
    assert failed.value.reason is Reason.WORKER_DIED
    assert worker.pid is None


STOPS_READING = READY + "os.kill(os.getpid(), signal.SIGSTOP)\n"


def test_a_child_that_stops_reading_is_ended_at_the_deadline(
    worker: TrainingProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(monkeypatch, tmp_path, STOPS_READING)
    with pytest.raises(TrainingError) as failed:
        train(worker, timeout=5.0)
    assert failed.value.reason is Reason.TIMED_OUT
    assert worker.pid is None


def test_an_abort_reaches_a_child_that_stops_reading(
    worker: TrainingProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(monkeypatch, tmp_path, STOPS_READING)
    stop = threading.Event()
    threading.Timer(3.0, stop.set).start()
    with pytest.raises(TrainingAborted):
        train(worker, stop=stop)
    assert worker.pid is None


def test_the_log_of_a_child_that_dies_at_once_is_private(
    worker: TrainingProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(monkeypatch, tmp_path, "sys.stderr.write('x' * 10**6); sys.exit(3)\n")
    with pytest.raises(TrainingError, match="exit code 3"):
        train(worker)
    assert worker.log_file.stat().st_size == 10**6
    assert stat.S_IMODE(worker.log_file.stat().st_mode) == 0o600
