"""A journal in memory, for tests and the simulator. It follows the rules of the journals on disk and can inject faults.

To simulate a restart of the server, create a new writer on the same journal object.
"""

from collections.abc import Iterator
from typing import Literal

from fairlead.journal.journal import (
    KEPT_SNAPSHOTS,
    NEWEST,
    Fenced,
    Journal,
    JournalError,
    NotWritten,
    Pruned,
    Record,
    Snapshot,
    UnknownOutcome,
)


class _Stream:
    def __init__(self) -> None:
        self.epoch = 0
        self.begun = 0  # the last epoch that `reign` returned; `drop` also raises `epoch`
        self.base = 0  # records up to here are pruned
        self.records: list[Record] = []
        self.snapshots: list[Snapshot] = []  # oldest first
        self.in_doubt = False  # True if an append ended in UnknownOutcome and no reign began since

    @property
    def last(self) -> int:
        return self.base + len(self.records)


class MemoryJournal(Journal):
    """Keeps all streams in this process. `break_next` makes the next append fail."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._fault: tuple[Literal["failed", "unknown"], bool] | None = None

    def break_next(self, fault: Literal["failed", "unknown"], written: bool = False) -> None:
        """Make the next append raise `NotWritten` ("failed") or `UnknownOutcome` ("unknown").

        With `written`, the append of unknown outcome stores its record.
        """
        if fault == "failed" and written:
            raise ValueError('break_next("failed"): a failed append is never written; use "unknown"')
        self._fault = (fault, written)

    def mend(self) -> None:
        """Cancel a fault set by `break_next` that no append has hit yet."""
        self._fault = None

    def reign(self, stream: str) -> int:
        entry = self._streams.setdefault(stream, _Stream())
        entry.epoch += 1
        entry.begun = entry.epoch
        entry.in_doubt = False
        return entry.epoch

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        entry = self._streams.get(stream) or _Stream()
        if epoch < entry.epoch:
            raise Fenced(stream, epoch, entry.epoch)
        if epoch == 0 or epoch != entry.begun:
            raise NotWritten(f"stream {stream!r}: epoch {epoch} was never begun; call reign() first")
        if entry.in_doubt:
            raise UnknownOutcome(f"stream {stream!r}: an earlier append has an unknown outcome; recover first")
        if seq != entry.last + 1:
            raise NotWritten(f"stream {stream!r}: record {seq} is out of sequence, the last is {entry.last}")
        fault, written = self._fault or (None, True)
        self._fault = None
        if written:
            entry.records.append(Record(seq, epoch, bytes(payload)))
        if fault == "failed":
            raise NotWritten(f"stream {stream!r}: record {seq} was not written: a fault was injected; try again")
        if fault == "unknown":
            entry.in_doubt = True
            raise UnknownOutcome(f"stream {stream!r}: record {seq}: a fault was injected; stop and recover")

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        entry = self._streams.get(stream, _Stream())
        if after > entry.last:
            raise JournalError(f"stream {stream!r}: no record {after} to read behind, the last is {entry.last}")
        while after < entry.last:
            if after < entry.base:
                break
            yield entry.records[after - entry.base]
            after += 1
        if after < entry.base:
            raise Pruned(
                f"stream {stream!r}: record {after + 1} is pruned, as all up to {entry.base}; "
                "start from the newest snapshot"
            )

    def last(self, stream: str) -> int:
        return self._streams[stream].last if stream in self._streams else 0

    def epoch(self, stream: str) -> int:
        return self._streams[stream].epoch if stream in self._streams else 0

    def streams(self) -> list[str]:
        return sorted(name for name, entry in self._streams.items() if entry.last)

    def drop(self, stream: str) -> None:
        if stream in self._streams:
            fresh = _Stream()
            fresh.epoch = self._streams[stream].epoch + 1
            self._streams[stream] = fresh

    def snapshot(self, stream: str, upto: int = NEWEST) -> Snapshot | None:
        entry = self._streams.get(stream)
        if entry is None or not entry.snapshots:
            return None
        early = [snapshot for snapshot in entry.snapshots if snapshot.seq <= upto]
        return early[-1] if early else entry.snapshots[-1] if entry.base else None

    def save_snapshot(self, stream: str, seq: int, payload: bytes) -> None:
        entry = self._streams.get(stream, _Stream())
        if not max(1, entry.base) <= seq <= entry.last:
            raise NotWritten(
                f"stream {stream!r}: snapshot at {seq} refused, "
                f"the records at hand are {entry.base + 1} to {entry.last}"
            )
        kept = {snapshot.seq: snapshot for snapshot in entry.snapshots}
        kept[seq] = Snapshot(seq, bytes(payload))
        newest = sorted(kept)[-KEPT_SNAPSHOTS:]
        entry.snapshots = [kept[number] for number in sorted(kept) if number in (*newest, seq, entry.base)]

    def prune(self, stream: str, upto: int) -> None:
        entry = self._streams.get(stream, _Stream())
        newest = entry.snapshots[-1].seq if entry.snapshots else 0
        if upto > newest:
            raise NotWritten(
                f"stream {stream!r}: pruning to {upto} refused, the newest snapshot is at {newest}; save one first"
            )
        if upto > entry.base:
            del entry.records[: upto - entry.base]
            entry.base = upto

    def skipped(self, stream: str) -> range:
        return range(0)

    def leads_until(self) -> float:
        return float("inf")

    def close(self) -> None:
        """Do nothing: the records stay for the next writer."""
