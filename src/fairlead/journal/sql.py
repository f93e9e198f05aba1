"""The journal on SQLite: PATH (records, reigns), PATH-snapshots and PATH-head, which tells a cut from an end.

From the bottom up: digests, one SQLite file with its transactions, the head file, the journal on top of them.
Every record's digest covers the one before it, so what is missing, moved or altered is found when it is read.
"""

import contextlib
import hashlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote

from fairlead.journal.base import (
    Damaged,
    Fenced,
    JournalError,
    Locked,
    NotWritten,
    Pruned,
    Record,
    Snapshot,
    TooNew,
    UnknownOutcome,
)

Synchronous = Literal["full", "normal", "off"]

_VERSION = 1
_RECORDS_ID = 0x464C4A31  # PRAGMA application_id of the two files: "FLJ1", "FLS1"
_SNAPSHOTS_ID = 0x464C5331
# The payload comes last, so that the digest is read without walking through a large record.
# `born`: what carries a lower epoch belongs to an earlier stream of this name, which was dropped.
# `base`: the last pruned record, whose digest the first kept one continues.
_RECORDS_SCHEMA = {
    "records": "CREATE TABLE records (stream TEXT NOT NULL, seq INTEGER NOT NULL, epoch INTEGER NOT NULL, "
    "digest BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (stream, seq)) WITHOUT ROWID",
    "reigns": "CREATE TABLE reigns (stream TEXT PRIMARY KEY NOT NULL, slot INTEGER NOT NULL, "
    "epoch INTEGER NOT NULL, born INTEGER NOT NULL, base INTEGER NOT NULL, base_digest BLOB NOT NULL, "
    "seal BLOB NOT NULL) WITHOUT ROWID",
}
_SNAPSHOTS_SCHEMA = {
    "snapshots": "CREATE TABLE snapshots (stream TEXT NOT NULL, seq INTEGER NOT NULL, born INTEGER NOT NULL, "
    "chain BLOB NOT NULL, digest BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (stream, seq)) "
    "WITHOUT ROWID",
}
_APPEND = (
    "INSERT INTO records SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM reigns WHERE stream = ?1 AND epoch = ?3)"
)

_GENESIS = bytes(16)
_KEPT_SNAPSHOTS = 2
_READ_BYTES = 4 << 20  # a read transaction ends after about so much, so that it never holds up a checkpoint
_PRUNED_AT_ONCE = 256
_PRUNE_PAUSE = 0.003  # seconds, at least


def _digest(kind: bytes, before: bytes, stream: str, numbers: tuple[object, ...], payload: bytes = b"") -> bytes:
    # Written out as text, numbers that damage turned into another type still give a digest, and another one.
    head = f"{len(stream)} {stream} {numbers!r} {len(payload)}\n".encode(errors="surrogatepass")
    return hashlib.blake2b(b"".join((before, head, payload)), digest_size=16, person=kind).digest()


class _File:
    """One SQLite file: opened, checked, and used in explicit transactions whose errors say what happened."""

    def __init__(
        self,
        path: str,
        application: int,
        schema: dict[str, str],
        pragmas: dict[str, str],
        busy_ms: int,
        read_only: bool = False,
        fresh: bool = True,
    ) -> None:
        self.path = path
        self._in_doubt = False
        mode = "ro" if read_only else "rwc"
        try:
            self._db = sqlite3.connect(
                f"file:{quote(path)}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._explain(error, "opening", writing=False) from error
        try:
            self.run(f"PRAGMA busy_timeout = {busy_ms}")
            self.run("PRAGMA secure_delete = off")  # some builds overwrite, and so log, all that is deleted
            new = self._check(application, schema)
            if new and not fresh:
                raise Damaged(path, "the file holds nothing, though its head does")
            if new and read_only:
                raise JournalError(f"{path}: no journal yet; open it for writing first")
            if not read_only:
                for name, value in pragmas.items():
                    self.run(f"PRAGMA {name} = {value}")
            if new:
                self._create(application, schema)
        except sqlite3.Error as error:
            self._db.close()
            raise self._explain(error, "opening", writing=False) from error
        except JournalError:
            self._db.close()
            raise

    def _check(self, application: int, schema: dict[str, str]) -> bool:
        """Whether the file is new; what is neither new nor ours raises."""
        [(found,)] = self.run("PRAGMA application_id")
        [(version,)] = self.run("PRAGMA user_version")
        tables = dict(self.run("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        if not found and not version and not tables:
            return True
        if found != application:
            raise Damaged(self.path, f"not a file of a Fairlead journal (application id {found:#x})", "name another")
        if version > _VERSION:
            raise TooNew(f"{self.path}: schema {version} is newer than this program's {_VERSION}; upgrade Fairlead")
        if version != _VERSION or any(tables.get(name) != sql for name, sql in schema.items()):
            raise Damaged(self.path, f"its tables are not those of schema {_VERSION} (it says {version})")
        return False

    def _create(self, application: int, schema: dict[str, str]) -> None:
        with self.writing("creating the tables"):
            if self._check(application, schema):  # another process may have been first
                for sql in schema.values():
                    self.run(sql)
                self.run(f"PRAGMA application_id = {application}")
                self.run(f"PRAGMA user_version = {_VERSION}")

    def run(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    @contextlib.contextmanager
    def reading(self, doing: str) -> Iterator[None]:
        """One unchanging view of the file."""
        try:
            self.run("BEGIN")
            yield
        except sqlite3.Error as error:
            raise self._explain(error, doing, writing=False) from error
        finally:
            self._roll_back()

    @contextlib.contextmanager
    def writing(self, doing: str) -> Iterator[None]:
        """One durable transaction: on return it is committed, on NotWritten it left no trace."""
        if self._in_doubt:
            raise UnknownOutcome(
                f"{self.path}: {doing}: refused after a write of unknown outcome; open the journal again"
            )
        try:
            self.run("BEGIN IMMEDIATE")
            yield
        except BaseException as error:
            self._in_doubt = not self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise self._explain(error, doing, writing=True) from error
            raise
        try:
            self.run("COMMIT")
        except sqlite3.Error as error:
            if self._commit_left_nothing(error):
                raise self._explain(error, doing, writing=True) from error
            self._in_doubt = True
            raise UnknownOutcome(
                f"{self.path}: {doing}: the commit failed and may yet have happened ({error}); "
                "stop, open the journal again and recover from it"
            ) from error

    def _roll_back(self) -> bool:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:  # SQLite itself ends it after some errors
                self.run("ROLLBACK")
            return True
        return False

    def _commit_left_nothing(self, error: sqlite3.Error) -> bool:
        if self._db.in_transaction:
            return self._roll_back()
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_FULL:
            return True  # no room for a frame, and the last frame is the one that commits
        if code != sqlite3.SQLITE_IOERR_WRITE:
            return False  # above all a failed sync: the frames may survive it or not
        # A failed write may have left its bytes all the same: another commit takes their place in the log.
        with contextlib.suppress(sqlite3.Error):
            self.run("BEGIN IMMEDIATE")
            self.run(f"PRAGMA user_version = {_VERSION}")
            self.run("COMMIT")
            return True
        self._roll_back()
        return False

    def _explain(self, error: sqlite3.Error, doing: str, writing: bool) -> JournalError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        what = f"{doing}: {error}"
        if isinstance(error, sqlite3.ProgrammingError):  # the object was closed
            return JournalError(f"{self.path}: {what}; open the journal again")
        match code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Locked(f"{self.path}: {what}; another process holds it, find and end that one or try again")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return JournalError(f"{self.path}: {what}; check that it and its directory exist and allow access")
            case sqlite3.SQLITE_FULL | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_TOOBIG if writing:
                return NotWritten(f"{self.path}: {what}; nothing was written")
            case sqlite3.SQLITE_CONSTRAINT if writing:
                return NotWritten(f"{self.path}: {what}; another object writes under this epoch, nothing was written")
            case sqlite3.SQLITE_IOERR if writing:
                return NotWritten(f"{self.path}: {what}; nothing was written, check the disk")
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_READONLY:
                return JournalError(f"{self.path}: {what}; check the disk and the rights on the file")
            case _:
                return Damaged(self.path, what)

    def close(self) -> None:
        self._db.close()


class _Mark(NamedTuple):
    seq: int
    epoch: int
    digest: bytes


class _Head:
    """What was committed last, a slot a stream, written behind each commit and never synced.

    SQLite silently ends a damaged write-ahead log early; a head beyond the last record tells. It may lag
    (a crash of the machine) and may be missing, but it never leads, except where `synchronous` is not full.
    """

    _SLOT = struct.Struct(">4s16sQQ16s12s")  # stays inside one sector, so that a crash does not tear it
    _PAGE = 4096

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    @staticmethod
    def key(stream: str) -> bytes:
        return hashlib.blake2b(
            stream.encode(errors="surrogatepass"), digest_size=16, person=b"fairlead-stream"
        ).digest()

    @staticmethod
    def _check(body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=12, person=b"fairlead-head").digest()

    def marks(self) -> dict[bytes, _Mark]:
        """All marks by stream key. Read it before the file it speaks of, for that may move on meanwhile."""
        before = None
        while True:
            try:
                content = Path(self.path).read_bytes()
            except FileNotFoundError:
                return {}
            except OSError as error:
                raise JournalError(f"{self.path}: {error.strerror}; check the rights on the file") from error
            marks, wrong = self._parse(content)
            if not wrong:
                return marks
            if content == before:  # what was merely read in the middle of a write is another the next time
                raise Damaged(self.path, wrong, "if the journal itself verifies, delete this file to go on without it")
            before = content

    def _parse(self, content: bytes) -> tuple[dict[bytes, _Mark], str]:
        marks: dict[bytes, _Mark] = {}
        if len(content) % self._PAGE:
            return marks, f"cut to {len(content)} bytes"
        for at in range(0, len(content), self._SLOT.size):
            slot = content[at : at + self._SLOT.size]
            if any(slot):
                magic, key, seq, epoch, digest, check = self._SLOT.unpack(slot)
                if magic != b"FLH1" or check != self._check(slot[:-12]):
                    return marks, f"the mark at byte {at} does not match its checksum"
                marks[key] = _Mark(seq, epoch, digest)
        return marks, ""

    def reserve(self, slot: int) -> None:
        """Open the file with room for `slot`, so that a mark written later is never cut short."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            size = os.fstat(self._fd).st_size
            wanted = -(-(slot + 1) * self._SLOT.size // self._PAGE) * self._PAGE
            if wanted > size and os.pwrite(self._fd, bytes(wanted - size), size) != wanted - size:
                os.ftruncate(self._fd, size)
                raise NotWritten(f"{self.path}: no room for the mark of a stream; free some disk")
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror}; check the disk and the rights on the file") from error

    def write(self, slot: int, stream: str, mark: _Mark) -> None:
        body = self._SLOT.pack(b"FLH1", self.key(stream), mark.seq, mark.epoch, mark.digest, bytes(12))[:-12]
        with contextlib.suppress(OSError):  # the commit stands: a head that lags is allowed, a false error is not
            os.pwrite(self._fd, body + self._check(body), slot * self._SLOT.size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Reign(NamedTuple):
    """A row of `reigns`, without its seal; as it is by default, a stream that never was."""

    slot: int = -1
    epoch: int = 0
    born: int = 0
    base: int = 0
    base_digest: bytes = _GENESIS

    def seal(self, stream: str) -> bytes:
        return _digest(b"fairlead-reign", self.base_digest, stream, self[:4])


class SqliteJournal:
    """The journal in the file `path`. `read_only` reads records and writes nothing but snapshots."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        synchronous: Synchronous = "full",
        read_only: bool = False,
        busy_timeout: float = 10.0,
    ) -> None:
        self.path = os.path.abspath(path)
        self._busy_ms = int(busy_timeout * 1000)
        self._synchronous = synchronous
        self._head = _Head(self.path + "-head")
        self._snapshots: _File | None = None
        self._tails: dict[str, tuple[int, _Mark]] = {}  # by stream: the slot and the last record of our own reign
        if os.path.isdir(self.path):
            raise JournalError(f"{self.path}: a directory; name a file in it")
        if not os.path.exists(self.path) or not os.path.getsize(self.path):
            self._check_beginning(read_only)
        elif not read_only:
            # Closing a writable connection deletes the log, damaged or not: look through another one first.
            try:
                SqliteJournal(path, read_only=True, busy_timeout=busy_timeout).close()
            except Damaged:
                raise
            except JournalError:
                pass  # whatever else it is, opening for writing mends it or says it better
        marks = self._head.marks()
        pragmas = {"journal_mode": "WAL", "synchronous": synchronous}
        self._file = _File(self.path, _RECORDS_ID, _RECORDS_SCHEMA, pragmas, self._busy_ms, read_only, fresh=not marks)
        try:
            with self._file.reading("opening"):
                names = [name for (name,) in self._file.run("SELECT stream FROM reigns")]
            if not marks.keys() <= {self._head.key(name) for name in names}:
                raise Damaged(self.path, f"a stream is missing that {self._head.path} knows: the file was cut")
            for name in names:
                self.last(name)  # a cut is found here, while nothing was written and the log is as it was
        except JournalError:
            self.close()
            raise

    def _check_beginning(self, read_only: bool) -> None:
        for beside in ("-wal", "-head", "-snapshots"):
            if os.path.exists(self.path + beside) and os.path.getsize(self.path + beside):
                raise Damaged(
                    self.path,
                    f"missing or empty, though {self.path + beside} is not",
                    "restore it from a copy, or move what is left away to begin anew",
                )
        if read_only:
            raise JournalError(f"{self.path}: no such journal; check the name")

    # Reigns and appends

    def reign(self, stream: str) -> int:
        with self._file.writing(f"stream {stream!r}: beginning a reign"):
            row, tail = self._standing(stream)
            if row.slot < 0:
                [(slot,)] = self._file.run("SELECT coalesce(max(slot), -1) + 1 FROM reigns")
                row = row._replace(slot=slot)
            row = row._replace(epoch=row.epoch + 1)
            self._head.reserve(row.slot)
            self._put(stream, row)
        mark = tail._replace(epoch=row.epoch)
        self._tails[stream] = (row.slot, mark)
        self._head.write(row.slot, stream, mark)
        return row.epoch

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        slot, tail = self._tails.get(stream, (0, None))
        if not tail or tail.epoch != epoch or tail.seq + 1 != seq:
            raise self._refusal(stream, epoch, seq)
        digest = _digest(b"fairlead-record", tail.digest, stream, (seq, epoch), payload)
        with self._file.writing(f"stream {stream!r}: record {seq}"):
            written = self._file.run(_APPEND, (stream, seq, epoch, digest, payload)).rowcount
        if not written:
            raise self._refusal(stream, epoch, seq)
        mark = _Mark(seq, epoch, digest)
        self._tails[stream] = (slot, mark)
        self._head.write(slot, stream, mark)

    def _refusal(self, stream: str, epoch: int, seq: int) -> JournalError:
        with self._file.reading(f"stream {stream!r}: reading its reign"):
            row = self._file.run("SELECT epoch FROM reigns WHERE stream = ?", (stream,)).fetchone()
        current = row[0] if row else 0
        if epoch < current:
            return Fenced(stream, epoch, current)
        _, tail = self._tails.get(stream, (0, None))
        if not tail or tail.epoch != epoch:
            return NotWritten(f"stream {stream!r}: epoch {epoch} was not begun by this object; call reign() first")
        return NotWritten(f"stream {stream!r}: record {seq} is out of sequence, the last is {tail.seq}")

    def _put(self, stream: str, row: _Reign) -> None:
        self._file.run("REPLACE INTO reigns VALUES (?, ?, ?, ?, ?, ?, ?)", (stream, *row, row.seal(stream)))

    # Reading

    def _standing(self, stream: str) -> tuple[_Reign, _Mark]:
        """The reign of a stream and its last record, agreeing with the head; read first in a transaction."""
        head = self._head.marks().get(self._head.key(stream))
        found = self._file.run(
            "SELECT slot, epoch, born, base, base_digest, seal FROM reigns WHERE stream = ?", (stream,)
        ).fetchone()
        last = self._file.run(
            "SELECT seq, epoch, digest FROM records WHERE stream = ? ORDER BY seq DESC LIMIT 1", (stream,)
        ).fetchone()
        row = _Reign(*found[:5]) if found else _Reign()
        if not found and (last or head):
            raise self._damage(stream, "its reign is missing")
        if found and (type(row.base_digest) is not bytes or found[5] != row.seal(stream)):
            raise self._damage(stream, "its reign does not match its digest")
        tail = _Mark(*last) if last else _Mark(row.base, row.epoch, row.base_digest)
        if head and head.epoch >= row.born:
            if head.seq > tail.seq:
                raise self._cut(stream, f"the last record is {tail.seq}, but {head.seq} was written")
            if head.epoch > row.epoch:
                raise self._cut(stream, f"the reign is at epoch {row.epoch}, but {head.epoch} began")
            if head.seq >= row.base and self._digest_at(stream, row, head.seq) != head.digest:
                raise self._cut(stream, f"record {head.seq} is not the one that was written")
        return row, tail

    def _digest_at(self, stream: str, row: _Reign, seq: int) -> bytes | None:
        if seq == row.base:
            return row.base_digest
        found = self._file.run("SELECT digest FROM records WHERE stream = ? AND seq = ?", (stream, seq)).fetchone()
        return found[0] if found and type(found[0]) is bytes else None

    def _damage(self, stream: str, what: str) -> Damaged:
        return Damaged(self.path, f"stream {stream!r}: {what}")

    def _cut(self, stream: str, what: str) -> Damaged:
        remedy = f"restore the journal from a copy, or delete {self._head.path} to go on with what is there"
        return Damaged(self.path, f"stream {stream!r}: {what}", remedy)

    def last(self, stream: str) -> int:
        with self._file.reading(f"stream {stream!r}: reading its last record"):
            return self._standing(stream)[1].seq

    def streams(self) -> list[str]:
        with self._file.reading("listing the streams"):
            names = [name for (name,) in self._file.run("SELECT stream FROM reigns")]
            unseen, at = set(names), ""
            while True:  # from one stream to the next, not over every record
                [(found,)] = self._file.run("SELECT min(stream) FROM records WHERE stream > ?", (at,))
                if found is None:
                    break
                if found not in unseen:  # or seen before: damage can lead in a circle
                    raise self._damage(found, "its reign is missing or its records are out of order")
                unseen.remove(found)
                at = found
        return sorted(name for name in names if self.last(name))

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        chain: bytes | None = None
        while True:
            with self._file.reading(f"stream {stream!r}: reading behind record {after}"):
                row, tail = self._standing(stream)
                where = f"{self.path}: stream {stream!r}"
                if after < row.base:
                    raise Pruned(
                        f"{where}: record {after + 1} is pruned, as all up to {row.base}; "
                        "start from the newest snapshot"
                    )
                if after > tail.seq:
                    raise JournalError(f"{where}: no record {after} to read behind, the last is {tail.seq}")
                if after == tail.seq:
                    return
                chain = chain or self._digest_at(stream, row, after)
                if chain is None:
                    raise self._damage(stream, f"record {after} is missing")
                batch = self._batch(stream, after)
            if not batch:
                raise self._damage(stream, f"record {after + 1} is missing, though {tail.seq} is there")
            for seq, epoch, digest, payload in batch:
                if seq != after + 1:
                    raise self._damage(stream, f"record {after + 1} is missing, {seq} follows")
                if type(payload) is not bytes or digest != _digest(
                    b"fairlead-record", chain, stream, (seq, epoch), payload
                ):
                    raise self._damage(stream, f"record {seq} does not match its digest")
                after, chain = seq, digest
                yield Record(seq, epoch, payload)

    def _batch(self, stream: str, after: int) -> list[Any]:
        rows: list[Any] = []
        size = 0
        for row in self._file.run(
            "SELECT seq, epoch, digest, payload FROM records WHERE stream = ? AND seq > ? ORDER BY seq LIMIT 1000",
            (stream, after),
        ):
            rows.append(row)
            size += len(row[3]) if type(row[3]) is bytes else 0
            if size > _READ_BYTES:
                break
        return rows

    # Snapshots, pruning, dropping

    def _snapshot_file(self) -> _File:
        """Opened when first needed: most journals are read and written long before there is one."""
        if not self._snapshots:
            # Not a WAL: a snapshot is written once, and what a damaged log silently drops cannot be told from
            # what never was. `extra` syncs the directory too, for records are deleted in trust of the commit.
            pragmas = {
                "journal_mode": "DELETE",
                "synchronous": "off" if self._synchronous == "off" else "extra",
            }
            path = self.path + "-snapshots"
            self._snapshots = _File(path, _SNAPSHOTS_ID, _SNAPSHOTS_SCHEMA, pragmas, self._busy_ms)
        return self._snapshots

    def snapshot(self, stream: str) -> Snapshot | None:
        tried: list[int] | None = None
        while True:
            numbers = self._saved(stream)
            for seq in numbers:
                found = self._load(stream, seq)
                if found:
                    return found
            with self._file.reading(f"stream {stream!r}: reading its base"):
                row, _ = self._standing(stream)
            if not row.base:
                return None
            if numbers == tried:  # else another process saved a newer one and pruned, while we looked
                raise Damaged(
                    self.path + "-snapshots",
                    f"stream {stream!r}: no intact snapshot at or beyond record {row.base}, "
                    f"up to which the records are pruned (there are {numbers or 'none'})",
                )
            tried = numbers

    def _saved(self, stream: str) -> list[int]:
        if not os.path.exists(self.path + "-snapshots"):
            return []
        file = self._snapshot_file()
        with file.reading(f"stream {stream!r}: listing snapshots"):
            rows = file.run("SELECT seq FROM snapshots WHERE stream = ? ORDER BY seq DESC", (stream,)).fetchall()
        return [seq for (seq,) in rows]

    def _load(self, stream: str, seq: int) -> Snapshot | None:
        """The snapshot, None if it is broken or of no use; one that contradicts the records raises."""
        file = self._snapshot_file()
        with file.reading(f"stream {stream!r}: reading snapshot {seq}"):
            row = file.run(
                "SELECT born, chain, digest, payload FROM snapshots WHERE stream = ? AND seq = ?",
                (stream, seq),
            ).fetchone()
        if not row or type(row[1]) is not bytes or type(row[3]) is not bytes:
            return None
        born, chain, digest, payload = row
        if digest != _digest(b"fairlead-snap", chain, stream, (seq, born), payload):
            return None
        with self._file.reading(f"stream {stream!r}: reading record {seq}"):
            standing, tail = self._standing(stream)
            if born != standing.born or seq < standing.base:
                return None
            if seq > tail.seq:
                raise self._damage(stream, f"the last record is {tail.seq}, but there is a snapshot at {seq}")
            if self._digest_at(stream, standing, seq) != chain:
                raise self._damage(stream, f"the snapshot at {seq} was made of another record {seq}")
        return Snapshot(seq, payload)

    def save_snapshot(self, stream: str, seq: int, payload: bytes) -> None:
        with self._file.reading(f"stream {stream!r}: reading record {seq}"):
            row, tail = self._standing(stream)
            chain = self._digest_at(stream, row, seq)
        if not chain or not seq:
            raise NotWritten(
                f"{self.path}: stream {stream!r}: snapshot at {seq} refused, "
                f"the records at hand are {row.base + 1} to {tail.seq}"
            )
        born = row.born
        digest = _digest(b"fairlead-snap", chain, stream, (seq, born), payload)
        file = self._snapshot_file()
        with file.writing(f"stream {stream!r}: saving the snapshot at {seq}"):
            file.run("DELETE FROM snapshots WHERE stream = ? AND born != ?", (stream, born))
            file.run(
                "REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)",
                (stream, seq, born, chain, digest, payload),
            )
            file.run(
                "DELETE FROM snapshots WHERE stream = ?1 AND seq NOT IN "
                "(SELECT seq FROM snapshots WHERE stream = ?1 ORDER BY seq DESC LIMIT ?2)",
                (stream, _KEPT_SNAPSHOTS),
            )

    def prune(self, stream: str, upto: int) -> None:
        newest = self.snapshot(stream)
        at = newest.seq if newest else 0
        if upto > at:
            raise NotWritten(
                f"{self.path}: stream {stream!r}: pruning to {upto} refused, "
                f"the newest intact snapshot is at {at}; save one first"
            )
        more = True
        while more:
            began = time.monotonic()
            more = self._prune_some(stream, upto)
            if more:  # SQLite's locks are not fair: a waiting writer must find it free every other time it looks
                time.sleep(max(_PRUNE_PAUSE, time.monotonic() - began))

    def _prune_some(self, stream: str, upto: int) -> bool:
        with self._file.writing(f"stream {stream!r}: pruning to {upto}"):
            row, _ = self._standing(stream)
            if row.base >= upto:
                return False
            cut = min(upto, row.base + _PRUNED_AT_ONCE)
            chain = self._digest_at(stream, row, cut)
            if not chain:
                raise self._damage(stream, f"record {cut} is missing")
            self._file.run("DELETE FROM records WHERE stream = ? AND seq <= ?", (stream, cut))
            self._put(stream, row._replace(base=cut, base_digest=chain))
        return cut < upto

    def drop(self, stream: str) -> None:
        with self._file.writing(f"stream {stream!r}: dropping it"):
            old, _ = self._standing(stream)
            if old.slot < 0:
                return
            row = _Reign(old.slot, epoch=old.epoch + 1, born=old.epoch + 1)
            self._head.reserve(row.slot)
            self._file.run("DELETE FROM records WHERE stream = ?", (stream,))
            self._put(stream, row)
        self._tails.pop(stream, None)
        self._head.write(row.slot, stream, _Mark(0, row.epoch, _GENESIS))
        if self._saved(stream):  # a crash before this leaves snapshots of an earlier birth, which nobody reads
            file = self._snapshot_file()
            with file.writing(f"stream {stream!r}: dropping its snapshots"):
                file.run("DELETE FROM snapshots WHERE stream = ? AND born < ?", (stream, row.born))

    def close(self) -> None:
        self._file.close()
        if self._snapshots:
            self._snapshots.close()
        self._head.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
