"""Renews the leases of a server on PostgreSQL.

A separate thread and connection do this, so that a long cycle or a slow append does not delay a renewal.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from fairlead.journal.journal import JournalError
from fairlead.journal.leases import RENEWALS, Leases
from fairlead.journal.pgconnection import Connection, connect
from fairlead.journal.pglimit import limited


class LeaseRenewer(Leases):
    """The leases of a server, renewed by a thread that starts with the first lease."""

    def __init__(self, url: str, server: str, lease: float) -> None:
        super().__init__(lease)
        self._url = url
        self._server = server
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, stream: str, epoch: int, sent: float) -> None:
        super().keep(stream, epoch, sent)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="leases", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        interval = self._lease / RENEWALS
        while not self._over.wait(interval):
            # If this fails for long, the leases end by themselves. Each attempt has a new connection.
            with suppress(psycopg.Error, JournalError), connect(self._url, "leases") as connection:
                self._renew(connection)
                while not self._over.wait(interval):
                    self._renew(connection)

    def _renew(self, connection: Connection) -> None:
        def extend(stream: str, epoch: int) -> bool:
            done = connection.execute(
                f"UPDATE reigns SET expires = clock_timestamp() + interval '{self._lease:f} seconds' "
                "WHERE stream = %s AND epoch = %s AND holder = %s",
                (stream, epoch, self._server),
            )
            return done.rowcount == 1

        with limited(connection, self._lease):
            self.renew(extend)
