"""The journal on SQLite, in three files: PATH with records and reigns, PATH-snapshots, and PATH-head.

`sqlitefile` opens and checks an SQLite file, runs its transactions, and reads and writes PATH-head.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from fairlead.journal.chained import GENESIS, READ_BYTES, ChainedJournal, Mark, Reign
from fairlead.journal.journal import Damaged, JournalError
from fairlead.journal.sqlitefile import File, HeadFile

Synchronous = Literal["full", "normal", "off"]

_RECORDS_ID = 0x464C4A31  # PRAGMA application_id of the two files: "FLJ1", "FLS1"
_SNAPSHOTS_ID = 0x464C5331
# The payload is the last column, so that the digest can be read without a large payload.
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
    "WITHOUT ROWID"
}
_APPEND = "INSERT INTO records SELECT ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM reigns WHERE stream = ? AND epoch = ?)"


class SqliteJournal(ChainedJournal):
    """The journal in the file `path`. With `read_only` it writes only snapshots."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        synchronous: Synchronous = "full",
        read_only: bool = False,
        busy_timeout: float = 10.0,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        """Open the journal. The lock `turn` is held during writes, so that objects of one process take turns."""
        self.path = os.path.abspath(path)
        self.snapshots_path = self.path + "-snapshots"
        self._busy_ms = int(busy_timeout * 1000)
        self._synchronous = synchronous
        self._head = HeadFile(self.path + "-head")
        self._skipped = {}
        self._marks: dict[bytes, Mark] | None = None
        """The content of the head file, read before the current read transaction began; None outside of one."""
        self._snapshot_file: File | None = None
        self._tails = {}
        self._slots: dict[str, int] = {}
        """Stream → its slot in the head, for the streams in `_tails`."""
        if os.path.isdir(self.path):
            raise JournalError(f"{self.path}: a directory; name a file in it")
        if not os.path.exists(self.path) or not os.path.getsize(self.path):
            self._check_beginning(read_only)
        elif not read_only:
            # Closing a writable connection deletes the write-ahead log, even a damaged one: check read-only first.
            try:
                SqliteJournal(path, read_only=True, busy_timeout=busy_timeout).close()
            except Damaged:
                raise
            except JournalError:
                pass  # opening for writing repairs any other problem or gives a better message
        marks = self._head.marks()
        pragmas = {"journal_mode": "WAL", "synchronous": synchronous}
        self._file = File(self.path, _RECORDS_ID, _RECORDS_SCHEMA, pragmas, self._busy_ms, read_only, not marks, turn)
        try:
            with self._file.reading("opening"):
                names = [name for (name,) in self._file.run("SELECT stream FROM reigns")]
            if not marks.keys() <= {self._head.key(name) for name in names}:
                raise Damaged(self.path, f"a stream is missing that {self._head.path} knows: the file was cut")
            for name in names:
                self.last(name)  # detects truncation here, before anything is written
        except JournalError:
            self.close()
            raise

    def _check_beginning(self, read_only: bool) -> None:
        for suffix in ("-wal", "-head", "-snapshots"):
            if os.path.exists(self.path + suffix) and os.path.getsize(self.path + suffix):
                raise Damaged(
                    self.path,
                    f"missing or empty, though {self.path + suffix} is not",
                    "restore it from a copy, or move the remaining files away to begin a new journal",
                )
        if read_only:
            raise JournalError(f"{self.path}: no such journal; check the name")

    # Reigns and appends

    def reign(self, stream: str) -> int:
        with self._file.writing(f"stream {stream!r}: beginning a reign"):
            row, tail = self._state_of(stream)
            if row.slot < 0:
                [(slot,)] = self._file.run("SELECT coalesce(max(slot), -1) + 1 FROM reigns")
                row = row._replace(slot=slot)
            row = row._replace(epoch=self._skip(stream, row, tail, moved=False))
            self._head.reserve(row.slot)
            self._put(stream, row)
        mark = tail._replace(epoch=row.epoch)
        self._tails[stream], self._slots[stream] = mark, row.slot
        self._head.write(row.slot, stream, mark)
        return row.epoch

    def _write_record(self, stream: str, mark: Mark, payload: bytes) -> bool:
        seq, epoch, digest = mark
        with self._file.writing(f"stream {stream!r}: record {seq}"):
            written = self._file.run(_APPEND, (stream, seq, epoch, digest, payload, stream, epoch)).rowcount
        if written:
            self._head.write(self._slots[stream], stream, mark)
        return bool(written)

    def _put(self, stream: str, row: Reign) -> None:
        self._file.run("REPLACE INTO reigns VALUES (?, ?, ?, ?, ?, ?, ?)", (stream, *row, row.seal(stream)))

    # Reading

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        self._marks = self._head.marks()  # before the records are read, because the head may not be ahead of them
        try:
            with self._file.reading(doing):
                yield
        finally:
            self._marks = None

    def _state_of(self, stream: str) -> tuple[Reign, Mark]:
        """Return the reign of a stream and its last record, checked against the head file.

        Must be the first read of a transaction. The head is read before the records: if it were read later, it could
        include a record that this transaction does not see.
        """
        marks = self._head.marks() if self._marks is None else self._marks
        head = marks.get(self._head.key(stream))
        reign = self._file.run(
            "SELECT slot, epoch, born, base, base_digest, seal FROM reigns WHERE stream = ?", (stream,)
        ).fetchone()
        last = self._file.run(
            "SELECT seq, epoch, digest FROM records WHERE stream = ? ORDER BY seq DESC LIMIT 1", (stream,)
        ).fetchone()
        row = Reign(*reign[:5]) if reign else Reign()
        if not reign and (last or head):
            raise self._damage(stream, "its reign is missing")
        if reign and (type(row.base_digest) is not bytes or reign[5] != row.seal(stream)):
            raise self._damage(stream, "its reign does not match its digest")
        tail = Mark(*last) if last else Mark(row.base, row.epoch, row.base_digest)
        if head and head.epoch >= row.born:
            self._check_head(stream, row, tail, head)
        return row, tail

    def _check_head(self, stream: str, row: Reign, tail: Mark, head: Mark) -> None:
        """Raise `Damaged` if a record or reign is missing that the head file has."""
        if head.seq > tail.seq:
            raise self._cut(stream, f"the last record is {tail.seq}, but {head.seq} was written")
        if head.epoch > row.epoch:
            raise self._cut(stream, f"the last server to lead has epoch {row.epoch}, but one with {head.epoch} has led")
        if head.seq >= row.base and self._digest_at(stream, row, head.seq) != head.digest:
            raise self._cut(stream, f"record {head.seq} is not the one that was written")

    def _cut(self, stream: str, what: str) -> Damaged:
        remedy = f"restore the journal from a copy, or delete {self._head.path} to go on with what is there"
        return Damaged(self.path, f"stream {stream!r}: {what}", remedy)

    def _batch(self, stream: str, after: int) -> list[Any]:
        rows: list[Any] = []
        size = 0
        for row in self._file.run(
            "SELECT seq, epoch, digest, payload FROM records WHERE stream = ? AND seq > ? ORDER BY seq LIMIT 1000",
            (stream, after),
        ):
            rows.append(row)
            size += len(row[3]) if type(row[3]) is bytes else 0
            if size > READ_BYTES:
                break
        return rows

    # Snapshots, pruning, dropping

    @property
    def _records(self) -> File:
        return self._file

    @property
    def _snapshots(self) -> File:
        """The file with snapshots, opened on first use. A new journal has no snapshots for a long time."""
        if not self._snapshot_file:
            # Not a WAL: SQLite silently drops the end of a damaged log, and there is no head to show that.
            # `extra` also syncs the directory, because records are deleted once a snapshot is committed.
            pragmas = {"journal_mode": "DELETE", "synchronous": "off" if self._synchronous == "off" else "extra"}
            self._snapshot_file = File(self.snapshots_path, _SNAPSHOTS_ID, _SNAPSHOTS_SCHEMA, pragmas, self._busy_ms)
        return self._snapshot_file

    def saved_snapshots(self, stream: str) -> list[int]:
        return super().saved_snapshots(stream) if os.path.exists(self.snapshots_path) else []

    def drop(self, stream: str) -> None:
        with self._file.writing(f"stream {stream!r}: dropping it"):
            old, _ = self._state_of(stream)
            if old.slot < 0:
                return
            row = Reign(old.slot, epoch=old.epoch + 1, born=old.epoch + 1)
            self._head.reserve(row.slot)
            self._file.run("DELETE FROM records WHERE stream = ?", (stream,))
            self._put(stream, row)
        self._tails.pop(stream, None)
        self._head.write(row.slot, stream, Mark(0, row.epoch, GENESIS))
        # If a crash prevents this, the snapshots stay: they have a lower `born`, so they are never read.
        if self.saved_snapshots(stream):
            with self._snapshots.writing(f"stream {stream!r}: dropping its snapshots"):
                self._snapshots.run("DELETE FROM snapshots WHERE stream = ? AND born < ?", (stream, row.born))

    # Copying

    def held_by(self) -> str:
        return ""  # callers check the lock of the data directory

    def adopt(self, stream: str, row: Reign, tail: Mark, batches: Iterator[list[Any]]) -> None:
        [(slot,)] = self._file.run("SELECT coalesce(max(slot), -1) + 1 FROM reigns")
        self._head.reserve(slot)
        self._put(stream, row._replace(slot=slot))
        for batch in batches:
            for record in batch:
                self._file.run("INSERT INTO records VALUES (?, ?, ?, ?, ?)", (stream, *record))

    def leads_until(self) -> float:
        return float("inf")  # the lock of the data directory keeps other servers out

    def close(self) -> None:
        self._file.close()
        if self._snapshot_file:
            self._snapshot_file.close()
        self._head.close()
