"""The common part of the journals on SQLite and PostgreSQL: a chain of digests that is checked at every read.

The digest of each record covers the digest of the record before it, so a missing, moved or altered record is detected.
Subclasses add the reigns and transactions of their database.
"""

import hashlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

from fairlead.journal.journal import (
    KEPT_SNAPSHOTS,
    LINE,
    NEWEST,
    Damaged,
    Fenced,
    Journal,
    JournalError,
    NotWritten,
    Pruned,
    Record,
    Snapshot,
    era_of,
    raised,
)

GENESIS = bytes(16)
READ_BYTES = 4 << 20
"""Approximate limit of bytes that one transaction reads, so that transactions are short."""
_PRUNED_AT_ONCE = 256
_PRUNE_PAUSE = 0.003  # seconds, at least


def digest_of(kind: bytes, before: bytes, stream: str, numbers: tuple[object, ...], payload: bytes = b"") -> bytes:
    # As text, so that a value that damage turned into another type gives a digest too, and a different one.
    head = f"{len(stream)} {stream} {numbers!r} {len(payload)}\n".encode(errors="surrogatepass")
    return hashlib.blake2b(b"".join((before, head, payload)), digest_size=16, person=kind).digest()


def record_digest(before: bytes, stream: str, seq: int, epoch: int, payload: bytes) -> bytes:
    return digest_of(b"fairlead-record", before, stream, (seq, epoch), payload)


class Mark(NamedTuple):
    """The last record of a stream."""

    seq: int
    epoch: int
    digest: bytes


class Reign(NamedTuple):
    """The reign of a stream. The default values describe a stream that never had a reign.

    `born` is the first epoch of the stream. Lower epochs belong to a dropped stream of the same name. `base` is the
    last pruned record, and `base_digest` its digest. `slot` is the place of the stream in the head file of SQLite.
    """

    slot: int = -1
    epoch: int = 0
    born: int = 0
    base: int = 0
    base_digest: bytes = GENESIS

    def seal(self, stream: str) -> bytes:
        return digest_of(b"fairlead-reign", self.base_digest, stream, self[:4])


class Database(Protocol):
    """A database with tables of a journal. In its SQL, `?` stands for a value."""

    def run(self, sql: str, values: tuple[object, ...] = ()) -> Any:
        """Run a statement and return its cursor."""

    def reading(self, doing: str) -> AbstractContextManager[None]:
        """Run a block in one read transaction. `doing` names the action in error messages."""

    def writing(self, doing: str) -> AbstractContextManager[None]:
        """Run a block in one durable write transaction. If this raises `NotWritten`, nothing was written."""


class ChainedJournal(Journal):
    """Reads records and snapshots, and checks them. Messages name the journal by `path`."""

    path: str
    snapshots_path: str
    _tails: dict[str, Mark]
    """Stream → the last record of the reign that this object began."""
    _skipped: dict[str, range]
    _is_frozen = False
    """True within `frozen`, which is one transaction."""

    # Implemented for each database

    @property
    @abstractmethod
    def _records(self) -> Database:
        """The database with the tables `records` and `reigns`."""

    @property
    @abstractmethod
    def _snapshots(self) -> Database:
        """The database with the table `snapshots`."""

    @abstractmethod
    def _write_record(self, stream: str, mark: Mark, payload: bytes) -> bool:
        """Write a record durably, and return True; return False if another writer took the stream."""

    @abstractmethod
    def _transaction(self, doing: str) -> AbstractContextManager[None]:
        """Run a block in one read transaction, so that all its reads see the same records."""

    @abstractmethod
    def _state_of(self, stream: str) -> tuple[Reign, Mark]:
        """Return the reign of a stream and its last record, checked. Must be the first read of a transaction."""

    @abstractmethod
    def _batch(self, stream: str, after: int) -> list[Any]:
        """Return some records after `after` as rows of number, epoch, digest and payload."""

    def _lock_row(self, stream: str) -> None:
        """Lock the row of a stream for the rest of the write transaction, if that does not lock the whole database."""

    # Copying: see `stream_copy`

    @abstractmethod
    def held_by(self) -> str:
        """Return the address of a server that leads any stream now; empty if there is none."""

    @abstractmethod
    def adopt(self, stream: str, row: Reign, tail: Mark, batches: Iterator[list[Any]]) -> None:
        """Write a copy of a stream of another journal. Must be called within `adopting`, on an empty journal."""

    def adopting(self) -> AbstractContextManager[None]:
        """Run a block that calls `adopt` in one durable transaction."""
        return self._records.writing("copying a journal")

    def reigned(self) -> list[str]:
        """Return the names of all streams that ever had a reign, including dropped ones."""
        with self._reading("listing the streams"):
            return self._names()

    @contextmanager
    def frozen(self) -> Iterator[dict[str, tuple[Reign, Mark]]]:
        """Within a block, all reads see the records as of the same time, while servers keep writing.

        Yields the reign and the last record of each stream. SQLite has snapshots in another file, so they may be newer.
        """
        with self._transaction("reading all streams"):
            self._is_frozen = True
            try:
                yield {name: self._state_of(name) for name in self._names()}
            finally:
                self._is_frozen = False

    def state_of(self, stream: str) -> tuple[Reign, Mark]:
        """Return the reign of a stream and its last record."""
        with self._reading(f"stream {stream!r}: reading its reign"):
            return self._state_of(stream)

    def batches(self, stream: str, after: int, last: int) -> Iterator[list[Any]]:
        """Yield the records after `after` up to `last`, in batches of rows for `adopt`."""
        while after < last:
            with self._reading(f"stream {stream!r}: reading behind record {after}"):
                batch = [row for row in self._batch(stream, after) if row[0] <= last]
            if not batch:
                raise self._damage(stream, f"record {after + 1} is missing, though {last} is there")
            yield batch
            after = batch[-1][0]

    # Appending

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        tail = self._tails.get(stream)
        if not tail or tail.epoch != epoch or tail.seq + 1 != seq:
            raise self._refusal(stream, epoch, seq)
        mark = Mark(seq, epoch, record_digest(tail.digest, stream, seq, epoch, payload))
        if not self._write_record(stream, mark, payload):
            raise self._refusal(stream, epoch, seq)
        self._tails[stream] = mark

    def _refusal(self, stream: str, epoch: int, seq: int) -> JournalError:
        with self._records.reading(f"stream {stream!r}: reading its reign"):
            row = self._records.run("SELECT epoch FROM reigns WHERE stream = ?", (stream,)).fetchone()
        if row and epoch < row[0]:
            return Fenced(stream, epoch, row[0])
        tail = self._tails.get(stream)
        if not tail or tail.epoch != epoch:
            return NotWritten(f"stream {stream!r}: epoch {epoch} was not begun by this object; call reign() first")
        return NotWritten(f"stream {stream!r}: record {seq} is out of sequence, the last is {tail.seq}")

    # Reading

    def _names(self) -> list[str]:
        """Return the names of all streams that ever had a reign. Must be called within a transaction."""
        return sorted(name for (name,) in self._records.run("SELECT stream FROM reigns WHERE epoch > 0"))

    def streams(self) -> list[str]:
        with self._reading("listing the streams"):
            names = self._names()
            unseen, at = set(names), ""
            while True:  # seeks from one stream to the next, without reading every record
                [(stream,)] = self._records.run("SELECT min(stream) FROM records WHERE stream > ?", (at,))
                if stream is None:
                    break
                if stream not in unseen:  # or seen before: a damaged index can lead in a circle
                    raise self._damage(stream, "its reign is missing or its records are out of order")
                unseen.remove(stream)
                at = stream
            return [name for name in names if self._state_of(name)[1].seq]

    def _digest_at(self, stream: str, row: Reign, seq: int) -> bytes | None:
        """Return the digest of record `seq`, which may also be the base (the last pruned record)."""
        if seq == row.base:
            return row.base_digest
        found = self._records.run("SELECT digest FROM records WHERE stream = ? AND seq = ?", (stream, seq)).fetchone()
        return found[0] if found and type(found[0]) is bytes else None

    def _reading(self, doing: str) -> AbstractContextManager[None]:
        return nullcontext() if self._is_frozen else self._transaction(doing)

    def last(self, stream: str) -> int:
        with self._reading(f"stream {stream!r}: reading its last record"):
            return self._state_of(stream)[1].seq

    def epoch(self, stream: str) -> int:
        with self._reading(f"stream {stream!r}: reading its epoch"):
            return self._state_of(stream)[0].epoch

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        chain: bytes | None = None
        while True:
            with self._reading(f"stream {stream!r}: reading behind record {after}"):
                row, tail = self._state_of(stream)
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
                if type(payload) is not bytes or digest != record_digest(chain, stream, seq, epoch, payload):
                    raise self._damage(stream, f"record {seq} does not match its digest")
                after, chain = seq, digest
                yield Record(seq, epoch, payload)

    def _damage(self, stream: str, what: str) -> Damaged:
        return Damaged(self.path, f"stream {stream!r}: {what}")

    def skipped(self, stream: str) -> range:
        return self._skipped.get(stream, range(0))

    def highest_epoch(self) -> int:
        """Return the highest epoch of all streams."""
        with self._records.reading("reading all reigns"):
            return self._highest_epoch()

    def _highest_epoch(self) -> int:
        [(highest,)] = self._records.run("SELECT coalesce(max(epoch), 0) FROM reigns")
        return int(highest)

    def _skip(self, stream: str, row: Reign, tail: Mark, moved: bool) -> int:
        """Return the epoch of a new reign: the next one, or a much higher one if `moved` is set.

        `moved` means that the database was promoted or restored, so that its data may be old. Epochs that are skipped
        now, or were skipped by a restore, are noted for `skipped`.
        """
        if not row.epoch:  # a stream of this name may have been lost with its epochs
            return era_of(self._highest_epoch()) * LINE + 1
        epoch = raised(row.epoch) if moved else row.epoch + 1
        if moved:
            self._skipped[stream] = range(row.epoch + 1, epoch)
        elif row.epoch and row.epoch % LINE == 0:  # set by a restore, after which this is the first reign
            self._skipped[stream] = range(tail.epoch + 1, row.epoch)
        return epoch

    # Snapshots and pruning

    def saved_snapshots(self, stream: str) -> list[int]:
        """Return the numbers of the snapshots of a stream, the newest first."""
        with self._snapshots.reading(f"stream {stream!r}: listing snapshots"):
            rows = self._snapshots.run("SELECT seq FROM snapshots WHERE stream = ? ORDER BY seq DESC", (stream,))
            return [seq for (seq,) in rows]

    def snapshot(self, stream: str, upto: int = NEWEST) -> Snapshot | None:
        tried: list[int] | None = None
        while True:
            numbers = self.saved_snapshots(stream)
            snapshot = self._first_intact(stream, [seq for seq in numbers if seq <= upto])
            if snapshot is not None:
                return snapshot
            with self._reading(f"stream {stream!r}: reading its base"):
                row, _ = self._state_of(stream)
            if not row.base:
                return None
            snapshot = self._first_intact(stream, [seq for seq in numbers if seq > upto])
            if snapshot is not None:
                return snapshot
            if numbers == tried:  # else another process saved a newer snapshot and pruned meanwhile
                raise Damaged(
                    self.snapshots_path,
                    f"stream {stream!r}: no intact snapshot at or beyond record {row.base}, "
                    f"up to which the records are pruned (there are {numbers or 'none'})",
                )
            tried = numbers

    def _first_intact(self, stream: str, numbers: list[int]) -> Snapshot | None:
        found = (self.load_snapshot(stream, seq) for seq in numbers)
        return next((snapshot for snapshot in found if snapshot is not None), None)

    def load_snapshot(self, stream: str, seq: int) -> Snapshot | None:
        """Return a snapshot; None if it is damaged or obsolete. Raises `Damaged` if it does not match the records."""
        with self._snapshots.reading(f"stream {stream!r}: reading snapshot {seq}"):
            row = self._snapshots.run(
                "SELECT born, chain, digest, payload FROM snapshots WHERE stream = ? AND seq = ?", (stream, seq)
            ).fetchone()
        if not row or type(row[1]) is not bytes or type(row[3]) is not bytes:
            return None
        born, chain, digest, payload = row
        if digest != digest_of(b"fairlead-snap", chain, stream, (seq, born), payload):
            return None
        with self._reading(f"stream {stream!r}: reading record {seq}"):
            reign, tail = self._state_of(stream)
            if born != reign.born or seq < reign.base:
                return None
            if seq > tail.seq:
                raise self._damage(stream, f"the last record is {tail.seq}, but there is a snapshot at {seq}")
            if self._digest_at(stream, reign, seq) != chain:
                raise self._damage(stream, f"the snapshot at {seq} was made of another record {seq}")
        return Snapshot(seq, payload)

    def save_snapshot(self, stream: str, seq: int, payload: bytes) -> None:
        with self._reading(f"stream {stream!r}: reading record {seq}"):
            row, tail = self._state_of(stream)
            chain = self._digest_at(stream, row, seq)
        if not chain or not seq:
            raise NotWritten(
                f"{self.path}: stream {stream!r}: snapshot at {seq} refused, "
                f"the records at hand are {row.base + 1} to {tail.seq}"
            )
        digest = digest_of(b"fairlead-snap", chain, stream, (seq, row.born), payload)
        with self._snapshots.writing(f"stream {stream!r}: saving the snapshot at {seq}"):
            run = self._snapshots.run
            run("DELETE FROM snapshots WHERE stream = ? AND (born != ? OR seq = ?)", (stream, row.born, seq))
            run("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", (stream, seq, row.born, chain, digest, payload))
            run(
                "DELETE FROM snapshots WHERE stream = ? AND seq NOT IN (?, ?) AND seq NOT IN "
                "(SELECT seq FROM snapshots WHERE stream = ? ORDER BY seq DESC LIMIT ?)",
                (stream, seq, row.base, stream, KEPT_SNAPSHOTS),
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
            if more:  # leave the records unlocked half of the time for a waiting writer: SQLite's locks are not fair
                time.sleep(max(_PRUNE_PAUSE, time.monotonic() - began))

    def _prune_some(self, stream: str, upto: int) -> bool:
        """Delete some records in one transaction. True if more are left to delete."""
        with self._records.writing(f"stream {stream!r}: pruning to {upto}"):
            self._lock_row(stream)
            row, _ = self._state_of(stream)
            if row.base >= upto:
                return False
            cut = min(upto, row.base + _PRUNED_AT_ONCE)
            chain = self._digest_at(stream, row, cut)
            if not chain:
                raise self._damage(stream, f"record {cut} is missing")
            self._records.run("DELETE FROM records WHERE stream = ? AND seq <= ?", (stream, cut))
            row = row._replace(base=cut, base_digest=chain)
            self._records.run(
                "UPDATE reigns SET base = ?, base_digest = ?, seal = ? WHERE stream = ?",
                (cut, chain, row.seal(stream), stream),
            )
        return cut < upto
