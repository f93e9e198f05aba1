"""Handles Ctrl-C, SIGTERM and SIGHUP while a command waits for the job that it has submitted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """The signal that interrupts a command. It raises `KeyboardInterrupt` only after `raises` was called."""

    def __init__(self) -> None:
        self.signal: int = signal.SIGINT
        self._heard = False
        self._raising = False

    def raises(self) -> None:
        """Raise on signals from now on, because the job can now be killed. Raise at once if one has arrived."""
        self._raising = True
        if self._heard:
            raise KeyboardInterrupt

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.signal, self._heard = number, True
        if self._raising:
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Handle the signals that end a command, except those that are ignored, such as SIGHUP under `nohup`."""
    interrupt = Interrupt()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, interrupt.hear)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
