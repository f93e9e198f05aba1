"""Renews the leases of a server on PostgreSQL, in a thread and a connection of its own.

A long cycle or a slow append must not end a lease.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import psycopg

from fairlead.journal.base import JournalError
from fairlead.journal.pgconnection import Connection, connect

LEASE = 3.0
"""Seconds that a lease lasts after its last renewal."""
RENEWALS = 4
"""Renewals in the time of a lease."""
EARLY = 0.1
"""The part of a lease by which it ends earlier here than in the database: clocks run at different speeds."""


class Keeper:
    """Renews the leases of some streams. The thread starts with the first stream."""

    def __init__(self, url: str, server: str, lease: float) -> None:
        self._url = url
        self._server = server
        self._lease = lease
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[int, float]] = {}
        """Stream → epoch, and when the last successful renewal was sent, by the clock of this machine."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, stream: str, epoch: int) -> None:
        """Keep the lease of a stream whose reign has just begun."""
        with self._lock:
            self._streams[stream] = (epoch, time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="leases", daemon=True)
            self._thread.start()

    def forget(self, stream: str) -> None:
        with self._lock:
            self._streams.pop(stream, None)

    def leads_until(self) -> float:
        """Return the time of `time.monotonic` until which all kept leases certainly last."""
        with self._lock:
            oldest = min((sent for _, sent in self._streams.values()), default=None)
        return float("inf") if oldest is None else oldest + self._lease * (1 - EARLY)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        connection: Connection | None = None
        while not self._over.wait(self._lease / RENEWALS):
            try:
                if connection is None:
                    connection = connect(self._url, "leases")
                self._renew(connection)
            except (psycopg.Error, JournalError):
                # The lease ends by itself if this lasts. The next attempt has a new connection.
                if connection is not None:
                    with suppress(psycopg.Error):
                        connection.close()
                connection = None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _renew(self, connection: Connection) -> None:
        with self._lock:
            kept = {stream: epoch for stream, (epoch, _) in self._streams.items()}
        for stream, epoch in kept.items():  # one by one: a row that is locked delays no other
            sent = time.monotonic()
            done = connection.execute(
                f"UPDATE reigns SET expires = clock_timestamp() + interval '{self._lease:f} seconds' "
                "WHERE stream = %s AND epoch = %s AND holder = %s",
                (stream, epoch, self._server),
            )
            with self._lock:
                if done.rowcount and self._streams.get(stream, (0, 0.0))[0] == epoch:
                    self._streams[stream] = (epoch, sent)
