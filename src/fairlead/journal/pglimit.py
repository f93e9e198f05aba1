"""Ends connections on which a statement takes too long, because a COMMIT has no time limit of its own.

A statement that PostgreSQL cancels while it waits for a standby counts as committed there, so the connection is cut.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

import psycopg

CHECKED_EVERY = 0.1
IDLE = 10.0
"""Seconds without statements after which the watching thread ends."""


class _Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._limits: dict[int, tuple[float, int]] = {}
        """Statement → when it has to have ended, and the file descriptor of its connection."""
        self._running = False
        self._used = 0.0

    def add(self, file: int, seconds: float) -> int:
        with self._lock:
            number = next(self._numbers)
            self._used = time.monotonic()
            self._limits[number] = (self._used + seconds, file)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="limits", daemon=True).start()
        return number

    def drop(self, number: int) -> None:
        with self._lock:
            self._limits.pop(number, None)

    def _work(self) -> None:
        while True:
            time.sleep(CHECKED_EVERY)
            now = time.monotonic()
            with self._lock:
                for number, (until, file) in list(self._limits.items()):
                    if now > until:
                        del self._limits[number]
                        _cut(file)
                if not self._limits and now > self._used + IDLE:
                    self._running = False
                    return


def _cut(file: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


_watch = _Watch()


@contextmanager
def limited(connection: psycopg.Connection[tuple[object, ...]], seconds: float) -> Iterator[None]:
    """Cut a connection if a block that uses it takes longer than `seconds`. Then its statement fails."""
    if connection.closed:
        yield
        return
    number = _watch.add(connection.fileno(), seconds)
    try:
        yield
    finally:
        _watch.drop(number)
