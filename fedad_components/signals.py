"""Signals that would end Python at once, turned into an exception, so that nothing that was started is left behind."""

from __future__ import annotations

import signal
import threading
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


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
