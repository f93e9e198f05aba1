"""The journal on PostgreSQL: a table of records, and one row per stream with its lease and its last record.

An append is one statement. It updates the row of the stream if that row still has the writer's epoch and session, and
inserts the record. If another server takes the stream at the same time, the append waits for that transaction, finds
another epoch in the row, and is refused. Leases end by the clock of the database; `lease_renewer` renews them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from secrets import token_hex
from typing import Any

import psycopg

from fairlead.journal.chained import GENESIS, READ_BYTES, ChainedJournal, Mark, Reign
from fairlead.journal.journal import Damaged, Fenced, Held, JournalError, UnknownOutcome
from fairlead.journal.lease_renewer import LeaseRenewer
from fairlead.journal.leases import LEASE, Sightings
from fairlead.journal.pgconnection import (
    CHANNEL,
    SCHEMA,
    Connection,
    connect,
    is_broken,
    reading,
    refused,
    shown_url,
    with_placeholders,
    writing,
)
from fairlead.journal.pglimit import limited
from fairlead.journal.pgschema import prepare

PATIENCE = 10.0
"""Seconds of trying to reconnect after a lost connection, to read whether the last record was written."""
RETRY = 0.1

# One statement is one transaction and one round trip. The condition on `seq` prevents a second write of a record. It
# does not renew the lease: otherwise other servers would notice a crash after an append later.
_APPEND = b"""
WITH mine AS (
    UPDATE reigns SET seq = %(seq)s::bigint, digest = %(digest)b::bytea
    WHERE stream = %(stream)s::text AND epoch = %(epoch)s::bigint AND session = %(session)s
        AND seq = %(seq)s::bigint - 1
    RETURNING 1
)
INSERT INTO records
SELECT %(stream)s::text, %(seq)s::bigint, %(epoch)s::bigint, %(digest)b::bytea, %(payload)b::bytea FROM mine
"""

_NEW_ROW = "INSERT INTO reigns VALUES (%s, 0, 0, 0, '', '', 0, '', '', '', '', 'epoch') ON CONFLICT DO NOTHING"
_FREE = "UPDATE reigns SET holder = '', expires = 'epoch' WHERE stream = %s"


class PostgresJournal(ChainedJournal):
    """The journal in a PostgreSQL database. With `read_only` it writes nothing."""

    def __init__(
        self,
        url: str,
        server: str = "",
        address: str = "",
        lease: float = LEASE,
        read_only: bool = False,
        patience: float = PATIENCE,
        sightings: Sightings | None = None,
    ) -> None:
        """Connect to a database.

        `server` is the name under which this process holds leases (random by default). Clients reach the server at
        `address`. A lease ends `lease` seconds after its last renewal. All objects of a server share `sightings`.
        """
        self.path = shown_url(url)
        self.snapshots_path = f"{self.path}, table snapshots"
        self._url = url
        self._server = server or token_hex(8)
        self._address = address
        self._expires = f"clock_timestamp() + interval '{lease:f} seconds'"
        self._read_only = read_only
        self._patience = patience
        self._lease = lease
        self._sightings = sightings or Sightings()
        self._in_doubt = False
        self._skipped = {}
        self._tails = {}
        self._renewer = LeaseRenewer(url, self._server, lease)
        self._session = ""
        self._db = self._connected()
        try:
            prepare(self._db, self.path, read_only)
            with self._reading("opening"):
                names = [name for (name,) in self._db.execute("SELECT stream FROM reigns")]
            for name in names:
                self.last(name)  # detects truncation here, before anything is written
        except BaseException:
            self._db.close()
            raise

    def leads_until(self) -> float:
        return self._renewer.leads_until()

    def _connected(self) -> Connection:
        self._session = token_hex(8)
        return connect(self._url, "journal", self._read_only)

    # Reigns and appends

    def reign(self, stream: str) -> int:
        writing = self.writing(f"stream {stream!r}: beginning a reign")
        with limited(self._db, self._lease), writing:
            row, tail = self._claim(stream)
            if row.slot < 0:
                row = row._replace(slot=0)
            origin = self._origin()
            [(before,)] = self._db.execute("SELECT origin FROM reigns WHERE stream = %s", (stream,)).fetchall()
            row = row._replace(epoch=self._skip(stream, row, tail, moved=before not in ("", origin)))
            sent = time.monotonic()  # the lease counts from before the commit, which may be slow
            self._put(stream, row, tail)
            self._db.execute("UPDATE reigns SET origin = %s WHERE stream = %s", (origin, stream))
        self._tails[stream] = tail._replace(epoch=row.epoch)
        self._renewer.keep(stream, row.epoch, sent)
        return row.epoch

    def _origin(self) -> str:
        """Return the id of the database system and its timeline, which changes when it is promoted or restored."""
        [(system, file)] = self._db.execute(
            "SELECT system_identifier::text, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()"
        ).fetchall()
        return f"{system}/{int(file[:8], 16)}"

    def _claim(self, stream: str) -> tuple[Reign, Mark]:
        """Lock the row of a stream and return its content. Raises `Held` if another server leads the stream."""
        self._db.execute(_NEW_ROW, (stream,))
        lease = self._db.execute(
            "SELECT holder, address, expires, extract(epoch FROM expires - clock_timestamp())::float, lasts "
            "FROM reigns WHERE stream = %s FOR UPDATE",
            (stream,),
        ).fetchone()
        assert lease is not None
        holder, address, *end = lease
        left = self._sightings.left(stream, *end)
        if holder not in ("", self._server) and left > 0:
            raise Held(stream, address, left)
        return self._state_of(stream)

    def _write_record(self, stream: str, mark: Mark, payload: bytes) -> bool:
        seq, epoch, digest = mark
        doing = f"stream {stream!r}: record {seq}"
        if self._in_doubt:
            raise self._doubt(doing)
        values = {"stream": stream, "epoch": epoch, "seq": seq, "digest": digest, "payload": payload}
        while True:
            try:
                with limited(self._db, self._lease):
                    return self._db.execute(_APPEND, {**values, "session": self._session}, prepare=True).rowcount == 1
            except psycopg.Error as problem:
                if not is_broken(self._db):
                    raise refused(problem, self.path, doing) from problem
                if self._find_written(stream, epoch, seq, digest, problem):
                    return True
                # It was not written, and the lost connection can no longer write it.

    def _find_written(self, stream: str, epoch: int, seq: int, digest: bytes, cause: Exception) -> bool:
        """Return whether a record was written, after the connection was lost during its append.

        First it writes a new session to the row of the stream. This waits for an append of the lost connection that
        still runs, and makes the database refuse one that starts later. It also makes the record durable, on standbys
        too. Raises `Fenced` if another server leads, and `UnknownOutcome` if the database does not answer in time.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._reconnect()
                row = self._db.execute(
                    "SELECT seq, digest FROM reigns WHERE stream = %s AND epoch = %s AND session = %s",
                    (stream, epoch, self._session),
                ).fetchone()
                if row is not None:
                    if row not in ((seq, digest), (seq - 1, self._tails[stream].digest)):
                        raise self._damage(stream, f"its row says {row[0]} at record {seq}")
                    return bool(row[0] == seq)
                # Another server leads: no further record of this epoch can be written.
                found = self._db.execute(
                    "SELECT digest FROM records WHERE stream = %s AND seq = %s", (stream, seq)
                ).fetchone()
                if found is not None and found[0] == digest:
                    return True
                raise self._refusal(stream, epoch, seq)
            except (psycopg.Error, JournalError) as problem:
                if isinstance(problem, Fenced | Damaged):
                    raise
                if time.monotonic() > deadline:
                    self._in_doubt = True
                    raise UnknownOutcome(
                        f"{self.path}: stream {stream!r}: record {seq}: the connection was lost ({cause}), and whether "
                        f"it was written cannot be read ({problem}); open the journal again and recover from it"
                    ) from problem
                time.sleep(RETRY)

    def _reconnect(self) -> None:
        """Replace a lost connection, and make the database refuse appends of the lost one."""
        self._db.close()
        self._db = self._connected()
        held = [(stream, tail.epoch) for stream, tail in sorted(self._tails.items())]
        if held:
            with limited(self._db, self._lease), writing(self._db, self.path, "replacing a lost connection"):
                for stream, epoch in held:
                    self._db.execute(
                        f"UPDATE reigns SET session = %s, expires = {self._expires} "
                        "WHERE stream = %s AND epoch = %s AND holder = %s",
                        (self._session, stream, epoch, self._server),
                    )

    def _put(self, stream: str, row: Reign, tail: Mark) -> None:
        """Write the row of a stream, with a lease for this server. The caller must have locked the row."""
        self._db.execute(
            "UPDATE reigns SET epoch = %s, born = %s, base = %s, base_digest = %s, seal = %s, seq = %s, digest = %s, "
            f"holder = %s, session = %s, address = %s, lasts = %s, expires = {self._expires} WHERE stream = %s",
            (
                *(*row[1:], row.seal(stream), tail.seq, tail.digest),
                *(self._server, self._session, self._address, self._lease, stream),
            ),
        )

    # Reading

    @property
    def _records(self) -> PostgresJournal:
        return self

    _snapshots = _records

    def run(self, sql: str, values: tuple[object, ...] = ()) -> Any:
        return self._db.cursor(binary=True).execute(with_placeholders(sql), values)

    def reading(self, doing: str) -> AbstractContextManager[None]:
        return self._reading(doing)

    def writing(self, doing: str) -> AbstractContextManager[None]:
        if self._in_doubt:
            raise self._doubt(doing)
        if is_broken(self._db):
            self._reconnect()
        return writing(self._db, self.path, doing)

    def _transaction(self, doing: str) -> AbstractContextManager[None]:
        if is_broken(self._db):
            self._reconnect()
        return reading(self._db, self.path, doing)

    def _doubt(self, doing: str) -> UnknownOutcome:
        return UnknownOutcome(f"{self.path}: {doing}: refused after a write of unknown outcome; open it again")

    def _lock_row(self, stream: str) -> None:
        self.run("SELECT 1 FROM reigns WHERE stream = ? FOR UPDATE", (stream,))

    def _state_of(self, stream: str) -> tuple[Reign, Mark]:
        row = self._db.execute(
            "SELECT epoch, born, base, base_digest, seal, seq, digest FROM reigns WHERE stream = %s", (stream,)
        ).fetchone()
        last = self._db.execute(
            "SELECT seq, epoch, digest FROM records WHERE stream = %s ORDER BY seq DESC LIMIT 1", (stream,)
        ).fetchone()
        if not row or not row[0]:
            if last:
                raise self._damage(stream, "its reign is missing")
            return Reign(), Mark(0, 0, GENESIS)
        *fields, seal, seq, digest = row
        reign = Reign(0, *fields)
        if seal != reign.seal(stream):
            raise self._damage(stream, "its reign does not match its digest")
        tail = Mark(*last) if last else Mark(reign.base, reign.epoch, reign.base_digest)
        if tail.seq != seq:
            raise self._damage(stream, f"the last record is {tail.seq}, but {seq} was written")
        if tail.digest != digest:
            raise self._damage(stream, f"record {seq} is not the one that was written")
        return reign, tail

    def _batch(self, stream: str, after: int) -> list[Any]:
        # Sizes first: the driver fetches all rows of an answer at once.
        upto, size = after, 0
        for seq, length in self._db.execute(
            "SELECT seq, length(payload) FROM records WHERE stream = %s AND seq > %s ORDER BY seq LIMIT 1000",
            (stream, after),
        ):
            if size and size + length > READ_BYTES:
                break
            upto, size = seq, size + length
        with self._db.cursor(binary=True) as cursor:
            return cursor.execute(
                "SELECT seq, epoch, digest, payload FROM records WHERE stream = %s AND seq > %s AND seq <= %s "
                "ORDER BY seq",
                (stream, after, upto),
            ).fetchall()

    def drop(self, stream: str) -> None:
        with self.writing(f"stream {stream!r}: dropping it"):
            old, _ = self._claim(stream)
            if old.slot < 0:
                return
            row = Reign(0, epoch=old.epoch + 1, born=old.epoch + 1)
            self._db.execute("DELETE FROM records WHERE stream = %s", (stream,))
            self._db.execute("DELETE FROM snapshots WHERE stream = %s", (stream,))
            self._put(stream, row, Mark(0, row.epoch, GENESIS))
            self._db.execute(_FREE, (stream,))
        self._tails.pop(stream, None)
        self._renewer.forget(stream)

    # Copying

    def held_by(self) -> str:
        with self._reading("looking for a server that leads"):
            row = self._db.execute(
                "SELECT address, holder FROM reigns WHERE holder != '' AND expires > clock_timestamp() LIMIT 1"
            ).fetchone()
        return "" if row is None else row[0] or row[1]

    def users(self) -> int:
        """Return the number of other sessions of Fairlead in the database. Every running server has some."""
        with self._reading("looking for servers"):
            row = self._db.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid() "
                "AND application_name LIKE 'fairlead %%'",
                (),
            ).fetchone()
        return 0 if row is None else int(row[0])

    def is_empty(self) -> bool:
        """True if no server has ever used the database."""
        with self._reading("looking for data"):
            tables = ("reigns", "documents", "jobs", "attempts")
            return not any(self._db.execute(f"SELECT 1 FROM {name} LIMIT 1".encode()).fetchone() for name in tables)

    def rename_schema(self, name: str) -> None:
        """Rename the schema with all data, so that a restore finds an empty database. Then this object is unusable."""
        with self.writing("renaming the schema"):
            self._db.execute(f"ALTER SCHEMA {SCHEMA} RENAME TO {name}".encode())

    def adopt(self, stream: str, row: Reign, tail: Mark, batches: Iterator[list[Any]]) -> None:
        self._db.execute(_NEW_ROW, (stream,))
        for batch in batches:
            with self._db.cursor() as cursor:
                rows = [(stream, *record) for record in batch]
                cursor.executemany("INSERT INTO records VALUES (%s, %s, %s, %s, %s)", rows)
        self._put(stream, row._replace(slot=0), tail)
        self._db.execute(_FREE, (stream,))

    def close(self) -> None:
        """Close the journal and end its leases, so that another server can lead at once."""
        self._renewer.close()
        with suppress(psycopg.Error), limited(self._db, self._lease):
            for stream, tail in self._tails.items():
                self._db.execute(
                    "UPDATE reigns SET holder = '', expires = 'epoch' WHERE stream = %s AND epoch = %s AND holder = %s",
                    (stream, tail.epoch, self._server),
                )
            if self._tails:
                self._db.execute(f"NOTIFY {CHANNEL}")
        self._db.close()
