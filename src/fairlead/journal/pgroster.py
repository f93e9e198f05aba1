"""The servers that use a database: each one renews its own row, and reads the rows of the others and the leases.

Servers read the rows regularly. NOTIFY wakes them so that they read sooner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

from fairlead.journal.journal import JournalError
from fairlead.journal.leases import LEASE, Sightings
from fairlead.journal.pgconnection import CHANNEL, Connection, connect, explained, shown_url, writing
from fairlead.journal.pglimit import limited
from fairlead.journal.pgschema import prepare
from fairlead.journal.roster import Lease, Member, Membership

EVERY = 0.25
"""Seconds between two heartbeats."""
LISTENING = 1.0
"""Seconds after which the listening thread checks whether it should end."""
_END = "expires, extract(epoch FROM expires - clock_timestamp())::float, lasts"
OLD = "1 day"
"""After this time, the row of a server that crashed is deleted."""


class PostgresRoster:
    """The roster in a database. `server` is the name under which this server holds leases."""

    def __init__(
        self,
        url: str,
        server: str,
        address: str,
        lease: float = LEASE,
        sightings: Sightings | None = None,
        program: str = "",
    ) -> None:
        self.lasts = lease
        self._sightings = sightings or Sightings()
        self.every = EVERY
        self._where = shown_url(url)
        self._url = url
        self._server = server
        self._address = address
        self._program = program
        self._db: Connection | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def heartbeat(self, version: int, takes: bool) -> Membership:
        try:
            if self._db is None:
                self._db = connect(self._url, "roster")
                prepare(self._db, self._where)
            db = self._db
            with limited(db, self.lasts), writing(db, self._where, "looking for other servers"):
                db.execute(
                    "INSERT INTO servers VALUES (%(id)s, %(address)s, %(version)s, %(takes)s, false, "
                    "clock_timestamp() + %(lease)s * interval '1 second', %(lease)s, %(program)s) "
                    "ON CONFLICT (id) DO UPDATE SET "
                    "version = EXCLUDED.version, takes = EXCLUDED.takes, expires = EXCLUDED.expires",
                    {
                        "id": self._server,
                        "address": self._address,
                        "version": version,
                        "takes": takes,
                        "lease": self.lasts,
                        "program": self._program,
                    },
                )
            reigns = db.execute(f"SELECT stream, holder, address, seq, {_END} FROM reigns").fetchall()
            servers = db.execute(
                f"SELECT id, address, version, takes, draining, program, {_END} FROM servers ORDER BY id"
            ).fetchall()
        except (psycopg.Error, JournalError) as problem:
            self._forget()
            if isinstance(problem, JournalError):
                raise
            raise explained(problem, self._where, "looking for other servers") from problem
        leases: dict[str, Lease] = {}
        lapsed: set[str] = set()
        for stream, holder, address, seq, *end in reigns:
            held = self._sightings.left(stream, *end) > 0
            leases[stream] = Lease(holder, address, seq) if holder and held else Lease(seq=seq)
            if not held:
                lapsed.add(holder)
        members = [
            Member(id, address, version, takes and not draining, draining, program)
            for id, address, version, takes, draining, program, *end in servers
            # A server whose lease of a stream has ended is not up, even if its own row has not expired.
            if self._sightings.left(f"server {id}", *end) > 0 and (id == self._server or id not in lapsed)
        ]
        return Membership(self._server, members, leases)

    def listen(self, wake: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._listen, args=(wake,), name="listener", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        with suppress(psycopg.Error):  # the other servers read the rows by themselves a little later
            if self._db is not None:
                with limited(self._db, self.lasts):
                    self._db.execute(f"NOTIFY {CHANNEL}")

    def drain(self, member: str, draining: bool) -> bool:
        if self._db is None:
            raise JournalError(f"{self._where}: it does not answer now; try again")
        with limited(self._db, self.lasts), writing(self._db, self._where, "draining a server"):
            # The rows are locked: if two servers drain each other, the second sees the first.
            self._db.execute("SELECT 1 FROM servers ORDER BY id FOR UPDATE")
            done = self._db.execute(
                "UPDATE servers SET draining = %(draining)s WHERE id = %(id)s AND (NOT %(draining)s OR EXISTS "
                "(SELECT 1 FROM servers WHERE id != %(id)s AND takes AND NOT draining "
                "AND expires > clock_timestamp()))",
                {"draining": draining, "id": member},
            )
        self.notify()
        return done.rowcount == 1

    def close(self) -> None:
        self._over.set()
        if self._db is not None:
            with suppress(psycopg.Error), limited(self._db, self.lasts):
                self._db.execute(
                    "DELETE FROM servers WHERE id = %s OR expires < clock_timestamp() - %s::interval",
                    (self._server, OLD),
                )
        self.notify()
        self._forget()
        if self._thread is not None:
            self._thread.join()

    def _forget(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
        self._db = None

    def _listen(self, wake: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                with connect(self._url, "listener") as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    while not self._over.is_set():
                        for _ in connection.notifies(timeout=LISTENING, stop_after=1):
                            wake()
            except (psycopg.Error, JournalError):
                self._over.wait(LISTENING)
