"""The journal's contract: numbered streams of opaque records, written by one reign at a time, with snapshots.

Here are the values it hands out, the errors it raises and the protocol; `memory` and `sql` implement it.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec


class Record(msgspec.Struct, frozen=True):
    """One durable append. `seq` counts 1, 2, 3 … in its stream, without gaps."""

    seq: int
    epoch: int
    payload: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a stream after record `seq`."""

    seq: int
    payload: bytes


class JournalError(Exception):
    """Any trouble with a journal; the message says what, where and what to do."""


class Fenced(JournalError):
    """Another writer took the stream. Nothing was written."""

    def __init__(self, stream: str, epoch: int, current: int) -> None:
        super().__init__(
            f"stream {stream!r}: epoch {epoch} is fenced, the reign is now at epoch {current}; "
            "another writer took the stream, this one must stop"
        )
        self.stream = stream
        self.epoch = epoch
        self.current = current


class NotWritten(JournalError):
    """What was asked certainly did not happen; the journal is as it was."""


class Locked(NotWritten):
    """The store is in use by another process for longer than the busy timeout. Nothing was written."""


class UnknownOutcome(JournalError):
    """The record may or may not be there. The writer must stop and recover from the journal."""


class Damaged(JournalError):
    """Something stored is missing or altered. Nothing is guessed and nothing is repaired."""

    def __init__(self, file: str, what: str, remedy: str = "restore the journal from a copy") -> None:
        super().__init__(f"{file}: {what}; {remedy} (`fairlead journal verify PATH` checks all of it)")
        self.file = file


class Pruned(JournalError):
    """The records asked for were deleted after a snapshot: start from `snapshot()`."""


class TooNew(JournalError):
    """The store was written by a newer version of this program."""


class PolicyMissing(JournalError):
    """The configuration in the journal names policies that are not installed here. Nothing was decided."""

    def __init__(self, partition: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"partition {partition}: {', '.join(missing)}: not installed here; install the package that the journal "
            "was written with (a package brings policies as entry points of the group fairlead.policies)"
        )


class Journal(Protocol):
    """Durable streams. One thread at a time uses an object; every method may raise `JournalError`."""

    def reign(self, stream: str) -> int:
        """Begin a new reign and return its epoch: durable, greater than any before; older ones are fenced."""

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        """Write one record durably if `epoch`, begun by this object, still reigns and `seq` is `last` + 1."""

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        """The records behind `after`, in order, each verified. `Pruned` if some of them are gone."""

    def last(self, stream: str) -> int:
        """The number of the last record, 0 if there was none."""

    def epoch(self, stream: str) -> int:
        """The highest epoch of a stream, also of one that was dropped; 0 if no reign of it ever began."""

    def streams(self) -> list[str]:
        """The names of the streams that have, or had before pruning, records; sorted."""

    def drop(self, stream: str) -> None:
        """Remove a stream with its snapshots and fence its writer. Its epochs go on growing if it returns."""

    def snapshot(self, stream: str) -> Snapshot | None:
        """The newest intact snapshot that the records at hand continue; None means replay from record 1."""

    def save_snapshot(self, stream: str, seq: int, payload: bytes) -> None:
        """Keep `payload` as the state after record `seq`; the two newest snapshots of a stream are kept."""

    def prune(self, stream: str, upto: int) -> None:
        """Delete the records up to `upto`; refused without an intact snapshot at or beyond it."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
