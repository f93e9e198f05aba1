"""The journal on SQLite: PATH (records, reigns), PATH-snapshots, and PATH-head, which reveals a truncated journal.

`sqlitefile` has one SQLite file with its transactions, `headfile` the head; here is the journal on top of them.
The digest of a record covers the digest before it, so a missing, moved or altered record is detected when it is read.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from fairlead.journal.base import (
    Damaged,
    Fenced,
    JournalError,
    NotWritten,
    Pruned,
    Record,
    Snapshot,
)
from fairlead.journal.headfile import HeadFile, Mark
from fairlead.journal.sqlitefile import File

Synchronous = Literal["full", "normal", "off"]

_RECORDS_ID = 0x464C4A31  # PRAGMA application_id of the two files: "FLJ1", "FLS1"
_SNAPSHOTS_ID = 0x464C5331
# The payload is the last column, so that the digest is read without reading through a large payload.
# `born`: the first epoch of the stream. Lower epochs belong to an earlier stream of this name, which was dropped.
# `base`: the last pruned record. The digest of the next record covers `base_digest`.
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
_APPEND = "INSERT INTO records SELECT ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM reigns WHERE stream = ? AND epoch = ?)"

_GENESIS = bytes(16)
_KEPT_SNAPSHOTS = 2
_READ_BYTES = 4 << 20  # about the most that one transaction reads, so that it does not delay checkpoints
_PRUNED_AT_ONCE = 256
_PRUNE_PAUSE = 0.003  # seconds, at least


def _digest(kind: bytes, before: bytes, stream: str, numbers: tuple[object, ...], payload: bytes = b"") -> bytes:
    # As text, so that numbers which damage turned into another type still give a digest, and a different one.
    head = f"{len(stream)} {stream} {numbers!r} {len(payload)}\n".encode(errors="surrogatepass")
    return hashlib.blake2b(b"".join((before, head, payload)), digest_size=16, person=kind).digest()


class _Reign(NamedTuple):
    """A row of `reigns`, without its seal. The default stands for a stream that never existed."""

    slot: int = -1
    epoch: int = 0
    born: int = 0
    base: int = 0
    base_digest: bytes = _GENESIS

    def seal(self, stream: str) -> bytes:
        return _digest(b"fairlead-reign", self.base_digest, stream, self[:4])


class SqliteJournal:
    """The journal in the file `path`. With `read_only` it can write snapshots and nothing else."""

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
        self._head = HeadFile(self.path + "-head")
        self._snapshots: File | None = None
        self._tails: dict[str, tuple[int, Mark]] = {}  # by stream: the slot and the last record of our own reign
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
                pass  # opening for writing either repairs any other problem or gives a better message
        marks = self._head.marks()
        pragmas = {"journal_mode": "WAL", "synchronous": synchronous}
        self._file = File(self.path, _RECORDS_ID, _RECORDS_SCHEMA, pragmas, self._busy_ms, read_only, fresh=not marks)
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
            written = self._file.run(_APPEND, (stream, seq, epoch, digest, payload, stream, epoch)).rowcount
        if not written:
            raise self._refusal(stream, epoch, seq)
        mark = Mark(seq, epoch, digest)
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

    def _standing(self, stream: str) -> tuple[_Reign, Mark]:
        """Return the reign of a stream and its last record, checked against the head. Must come first in a transaction.

        The head is read before the records, because it may not be ahead of them.
        """
        head = self._head.marks().get(self._head.key(stream))
        reign = self._file.run(
            "SELECT slot, epoch, born, base, base_digest, seal FROM reigns WHERE stream = ?", (stream,)
        ).fetchone()
        last = self._file.run(
            "SELECT seq, epoch, digest FROM records WHERE stream = ? ORDER BY seq DESC LIMIT 1", (stream,)
        ).fetchone()
        row = _Reign(*reign[:5]) if reign else _Reign()
        if not reign and (last or head):
            raise self._damage(stream, "its reign is missing")
        if reign and (type(row.base_digest) is not bytes or reign[5] != row.seal(stream)):
            raise self._damage(stream, "its reign does not match its digest")
        tail = Mark(*last) if last else Mark(row.base, row.epoch, row.base_digest)
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
        record = self._file.run("SELECT digest FROM records WHERE stream = ? AND seq = ?", (stream, seq)).fetchone()
        return record[0] if record and type(record[0]) is bytes else None

    def _damage(self, stream: str, what: str) -> Damaged:
        return Damaged(self.path, f"stream {stream!r}: {what}")

    def _cut(self, stream: str, what: str) -> Damaged:
        remedy = f"restore the journal from a copy, or delete {self._head.path} to go on with what is there"
        return Damaged(self.path, f"stream {stream!r}: {what}", remedy)

    def last(self, stream: str) -> int:
        with self._file.reading(f"stream {stream!r}: reading its last record"):
            return self._standing(stream)[1].seq

    def epoch(self, stream: str) -> int:
        with self._file.reading(f"stream {stream!r}: reading its epoch"):
            return self._standing(stream)[0].epoch

    def streams(self) -> list[str]:
        with self._file.reading("listing the streams"):
            names = [name for (name,) in self._file.run("SELECT stream FROM reigns")]
            unseen, at = set(names), ""
            while True:  # seeks from one stream to the next, without reading every record
                [(stream,)] = self._file.run("SELECT min(stream) FROM records WHERE stream > ?", (at,))
                if stream is None:
                    break
                if stream not in unseen:  # or seen before: a damaged index can lead in a circle
                    raise self._damage(stream, "its reign is missing or its records are out of order")
                unseen.remove(stream)
                at = stream
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

    def _snapshot_file(self) -> File:
        """Return the file with snapshots, opened on first use: a new journal has none for a long time."""
        if not self._snapshots:
            # Not a WAL: SQLite silently drops the end of a damaged log, and there is no head to show that.
            # `extra` also syncs the directory, because records are deleted once a snapshot is committed.
            pragmas = {
                "journal_mode": "DELETE",
                "synchronous": "off" if self._synchronous == "off" else "extra",
            }
            path = self.path + "-snapshots"
            self._snapshots = File(path, _SNAPSHOTS_ID, _SNAPSHOTS_SCHEMA, pragmas, self._busy_ms)
        return self._snapshots

    def snapshot(self, stream: str) -> Snapshot | None:
        tried: list[int] | None = None
        while True:
            numbers = self._saved(stream)
            for seq in numbers:
                snapshot = self._load(stream, seq)
                if snapshot:
                    return snapshot
            with self._file.reading(f"stream {stream!r}: reading its base"):
                row, _ = self._standing(stream)
            if not row.base:
                return None
            if numbers == tried:  # else another process saved a newer snapshot and pruned meanwhile
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
        """Return a snapshot; None if it is damaged or obsolete. Raises `Damaged` if it contradicts the records."""
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
                "DELETE FROM snapshots WHERE stream = ? AND seq NOT IN "
                "(SELECT seq FROM snapshots WHERE stream = ? ORDER BY seq DESC LIMIT ?)",
                (stream, stream, _KEPT_SNAPSHOTS),
            )

    def prune(self, stream: str, upto: int) -> None:
        newest = self.snapshot(stream)
        newest_seq = newest.seq if newest else 0
        if upto > newest_seq:
            raise NotWritten(
                f"{self.path}: stream {stream!r}: pruning to {upto} refused, "
                f"the newest intact snapshot is at {newest_seq}; save one first"
            )
        more = True
        while more:
            began = time.monotonic()
            more = self._prune_some(stream, upto)
            if more:  # SQLite's locks are not fair: leave the file unlocked half of the time for a waiting writer
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
        self._head.write(row.slot, stream, Mark(0, row.epoch, _GENESIS))
        if self._saved(stream):  # a crash before this leaves snapshots with a lower `born`, which are never read
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
