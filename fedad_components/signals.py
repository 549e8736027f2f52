"""Ends of processes: whatever ends one, nothing that it started is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP raise ``SystemExit(128 + number)``; ``with`` and ``finally`` clean up.

    Off the main thread, where Python sets no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_with_parent() -> None:
    """From now on this process ends, within a second or so, when the one that started it is gone, even by SIGKILL."""
    threading.Thread(target=_exit_after, args=(os.getppid(),), daemon=True).start()


def _exit_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
