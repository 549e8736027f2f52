"""A job process's handle on its training process: starts it when needed, and again when it has died."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fedad_components.wire import Reason
from fedad_components.worker.protocol import Message, ProtocolError, frame, receive

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0


class TrainingError(RuntimeError):
    """A round that the site could not train. ``reason`` may leave the site; the message stays in its log."""

    def __init__(self, reason: Reason, message: str, rule: str | None = None) -> None:
        super().__init__(message)
        self.reason, self.rule = reason, rule


class TrainingAborted(RuntimeError):
    """The job was aborted while its training process worked."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a training process is told when it starts."""

    config: dict[str, Any]
    site: str
    job_id: str
    catalogue: str
    state_dir: str
    cache_dir: str
    ledger: str
    ledger_head: str
    unit_key: str


@dataclass(frozen=True)
class RoundOrder:
    """What a training process is asked to do in a round, besides theta^t."""

    round: int
    lambda_t: float
    rules: dict[str, Any]
    """The site's rules for this data set, as JSON (:class:`~fedad_components.privacy.policy.PrivacyRules`)."""
    known_ledger_head: str | None = None
    """Head of the site's ledger in the last result that the server has of it."""
    bin_edges: list[float] | None = None
    """Inner edges of survival's time bins, where the server has sent them."""


@dataclass(frozen=True)
class TrainedRound:
    """theta_k after a round, float32 on the CPU, and what the site may say about it."""

    theta_k: dict[str, torch.Tensor]
    meta: dict[str, Any]
    """``n_samples`` and last ``losses``, or under dp_sgd ``claim``; and ``ledger_head``: as in wire.ResultMeta."""
    seconds: float


class TrainingProcess:
    """One long-lived child: images are opened once, and each round is a request to it."""

    def __init__(self, settings: WorkerSettings, log_file: str | Path) -> None:
        self.settings = settings
        self.log_file = Path(log_file)
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: queue.Queue[Message | None] = queue.Queue()

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def train(
        self,
        theta: Mapping[str, torch.Tensor],
        order: RoundOrder,
        *,
        timeout: float,
        should_stop: Callable[[], bool] = lambda: False,
        on_epoch: Callable[[int, dict[str, float]], None] = lambda epoch, losses: None,
        on_opened: Callable[[int], None] = lambda images: None,
        on_charged: Callable[[dict[str, Any]], None] = lambda privacy: None,
    ) -> TrainedRound:
        """Train one round, starting the child first if there is none.

        Args:
            theta: the round's weights.
            order: what to do.
            timeout: seconds.
            should_stop: asked all the time.
            on_epoch: called with the epoch's number and losses.
            on_opened: called with the data set's number of images, once a child.
            on_charged: called with what the round cost (:class:`~fedad_components.audit.event.Privacy`, as JSON). What
                one of these raises ends the child.

        Raises:
            TrainingError: the child died, took longer than ``timeout`` seconds, or refused; the next call starts anew.
            TrainingAborted: ``should_stop`` returned true; the child is ended.
        """
        deadline = time.monotonic() + timeout
        news = {
            "opened": lambda fields: on_opened(fields["images"]),
            "charged": lambda fields: on_charged(fields["privacy"]),
            "epoch": lambda fields: on_epoch(fields["epoch"], fields["losses"]),
        }
        if self.pid is None:
            self._start()
            self._await("ready", deadline, should_stop, news)
        self._send(Message("train", asdict(order), theta))
        reply = self._await("result", deadline, should_stop, news)
        return TrainedRound(dict(reply.tensors), reply.fields["meta"], reply.fields["seconds"])

    def stop(self) -> None:
        """End the child, politely first; harmless if there is none."""
        process, self._process = self._process, None
        if process is None:
            return
        for end in (process.terminate, process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
                break
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        self.stop()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedad_components.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._replies = queue.Queue()
        threading.Thread(target=_pump, args=(self._process.stdout, self._replies), daemon=True).start()
        self._send(Message("start", asdict(self.settings)))

    def _send(self, message: Message) -> None:
        # In the background: a child that has stopped reading would hold up deadline and abort too.
        assert self._process is not None
        threading.Thread(target=_push, args=(self._process.stdin, frame(message)), daemon=True).start()

    def _await(
        self,
        kind: str,
        deadline: float,
        should_stop: Callable[[], bool],
        news: Mapping[str, Callable[[dict[str, Any]], None]],
    ) -> Message:
        while True:
            if should_stop():
                self.stop()
                raise TrainingAborted("the job was aborted")
            if time.monotonic() > deadline:
                self.stop()
                raise TrainingError(
                    Reason.TIMED_OUT,
                    "training took longer than the round may; raise "
                    "federation.round_timeout, or lower training.epochs or training.max_images",
                )
            try:
                message = self._replies.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                raise self._death()
            if message.kind == "failure":
                if kind == "ready":  # it could not start, and ends by itself
                    self.stop()
                fields = message.fields
                raise TrainingError(Reason(fields["reason"]), fields["message"], fields["rule"])
            if message.kind == kind:
                return message
            if message.kind in news:
                try:
                    news[message.kind](message.fields)
                except Exception:
                    self.stop()
                    raise

    def _death(self) -> TrainingError:
        assert self._process is not None
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        code = process.poll()
        self.stop()
        if code is None:
            cause = "sent something else than a message, and was ended"
        elif code < 0:
            cause = f"killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                cause += ", which is what the system does when memory runs out: lower training.batch_size"
        else:
            cause = f"ended with exit code {code}"
        return TrainingError(Reason.WORKER_DIED, f"the training process {cause}; its log is {self.log_file}")


def _push(stream: BinaryIO, content: bytes) -> None:
    with contextlib.suppress(OSError):  # that the child is gone is noticed where its reply is awaited
        stream.write(content)
        stream.flush()


def _pump(stream: BinaryIO, replies: queue.Queue[Message | None]) -> None:
    try:
        while (message := receive(stream)) is not None:
            replies.put(message)
    except (ProtocolError, MemoryError) as error:
        logger.error("reply of the training process: %s", error)
    finally:
        replies.put(None)
