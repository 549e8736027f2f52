"""One file to its cached frames, in a process of its own: a decoder that crashes or hangs costs one file only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from fedad_components.imaging.account import FileRecord, Reason
from fedad_components.imaging.catalogue import DataSet
from fedad_components.imaging.intensity import fit_square
from fedad_components.imaging.readers import Unusable, read_frames


def decode(path: Path, record: FileRecord, data_set: DataSet, side: int) -> tuple[FileRecord, list[np.ndarray]]:
    """Decode one file: its completed record, and its frames ``uint8 (side, side, 3)``.

    Frames that hold a single value are left out; a file of nothing else is blank.
    """
    fitted: list[np.ndarray] = []
    digest = hashlib.sha256()
    blank = 0
    try:
        for frame in read_frames(path, data_set):
            height, width = frame.shape[:2]
            if min(height, width) < data_set.min_side:
                raise Unusable(Reason.TOO_SMALL, f"{height} x {width}: expected at least {data_set.min_side}")
            digest.update(f"{height}x{width}".encode("ascii"))
            digest.update(frame.data)
            if frame.min() == frame.max():
                blank += 1
            else:
                fitted.append(fit_square(frame, side, data_set.fit))
        if not fitted:
            raise Unusable(Reason.BLANK if blank else Reason.NO_PIXEL_DATA, f"{blank} frames, all of a single value")
    except Unusable as problem:
        return replace(record, reason=problem.reason, detail=problem.detail[:500]), []
    return replace(record, frames=len(fitted), blank=blank, sha256=digest.hexdigest()), fitted


class Decoder:
    """A child process that decodes one file at a time. Forked from a process that has imported MONAI once."""

    def __init__(self, data_set: DataSet, side: int, root: Path) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote, data_set, side, root), daemon=True)
        self.process.start()
        remote.close()
        self.side = side

    def start(self, record: FileRecord) -> None:
        """Begin with a file; the connection becomes readable when it is done, or the process dead."""
        self.record = record
        with contextlib.suppress(BrokenPipeError):
            self.connection.send_bytes(json.dumps(record.to_json()).encode("ascii"))

    def result(self) -> tuple[FileRecord, list[np.ndarray]]:
        """The file's outcome; if the process died on it, :attr:`alive` is false from here on."""
        try:
            record = FileRecord.from_json(json.loads(self.connection.recv_bytes()))
            frames = [np.frombuffer(self.connection.recv_bytes(), np.uint8) for _ in range(record.frames)]
            return record, [frame.reshape(self.side, self.side, 3) for frame in frames]
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            if code == -signal.SIGALRM:
                return replace(self.record, reason=Reason.TIMEOUT), []
            detail = f"{signal.strsignal(-code) or -code}" if code < 0 else f"exit status {code}"
            return replace(self.record, reason=Reason.DECODER_CRASHED, detail=detail), []

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, data_set: DataSet, side: int, root: Path) -> None:
    # It keeps its own connection only: neither the cache's lock, nor its parent's ends of the pipes,
    # or no decoder would see its pipe end when the parent dies.
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    # Out of memory, the kernel should choose the decoder rather than the site's trainer.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        try:
            record = FileRecord.from_json(json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)
        # The kernel ends the process at the alarm, also inside a decoder's C code and when nobody watches any more.
        signal.setitimer(signal.ITIMER_REAL, data_set.timeout)
        record, frames = decode(root / record.path, record, data_set, side)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(record.to_json()).encode("ascii"))
        for frame in frames:
            connection.send_bytes(frame.tobytes())
