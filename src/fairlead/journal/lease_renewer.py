"""Renews the leases of a server on PostgreSQL, in a thread and a connection of its own.

So a long cycle or a slow append does not delay a renewal.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from fairlead.journal.journal import JournalError
from fairlead.journal.leases import RENEWALS, Leases
from fairlead.journal.pgconnection import Connection, connect


class LeaseRenewer:
    """Renews the leases of some streams. Its thread starts when the first stream is added."""

    def __init__(self, url: str, server: str, lease: float) -> None:
        self._url = url
        self._server = server
        self._lease = lease
        self._leases = Leases(lease)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, stream: str, epoch: int, sent: float) -> None:
        """Keep renewing the lease of a stream, whose reign was requested at the time `sent` (`time.monotonic`)."""
        self._leases.keep(stream, epoch, sent)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="leases", daemon=True)
            self._thread.start()

    def forget(self, stream: str) -> None:
        self._leases.forget(stream)

    def leads_until(self) -> float:
        """Return the time (`time.monotonic`) until which all leases certainly last."""
        return self._leases.leads_until()

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
        def extend(stream: str, epoch: int) -> bool:
            done = connection.execute(
                f"UPDATE reigns SET expires = clock_timestamp() + interval '{self._lease:f} seconds' "
                "WHERE stream = %s AND epoch = %s AND holder = %s",
                (stream, epoch, self._server),
            )
            return done.rowcount == 1

        self._leases.renew(extend)
