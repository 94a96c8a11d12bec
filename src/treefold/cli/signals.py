"""SIGTERM and SIGHUP end a command as Ctrl-C does: it cleans up first."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

#: By name: Windows has no SIGHUP.
_NAMES = ("SIGTERM", "SIGHUP")
_SIGNALED = 128


@contextlib.contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise ``SystemExit(128 + number)``, so that ``finally`` blocks run.

    Signals that are ignored, as under nohup, or that have a handler stay as they are. So do all signals outside the
    main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for other in ours:  # a terminal that closes may send both, and the first is being obeyed
            signal.signal(other, signal.SIG_IGN)
        sys.exit(_SIGNALED + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
