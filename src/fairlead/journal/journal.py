"""The journal interface: streams of numbered records, with snapshots. Each stream has one writer at a time.

A reign is the term of one writer of a stream. Its number is the epoch. This module has the values, the errors and the
protocol; `in_memory`, `sql` and `postgresql` implement the protocol.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

KEPT_SNAPSHOTS = 2
NEWEST = 2**62
"""A number above those of all records."""
LINE = 1_000_000
"""A restore raises epochs to the next multiple of this number, which is more epochs than one database ever uses."""


def raised(epoch: int) -> int:
    """Return an epoch that writers which are at `epoch` now never reach.

    A restore to an earlier time uses it: agents may have seen epochs that the restored data lack.
    """
    return (epoch // LINE + 1) * LINE


def era_of(epoch: int) -> int:
    """Return how often epochs were raised: how often older data were restored, or may have been."""
    return epoch // LINE


class Record(msgspec.Struct, frozen=True):
    """One record of a stream. `seq` counts the records of a stream: 1, 2, 3 … without gaps."""

    seq: int
    epoch: int
    payload: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a stream after record `seq`."""

    seq: int
    payload: bytes


class JournalError(Exception):
    """Base class of a journal's errors. The message says what is wrong, where, and what to do."""


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


class Held(JournalError):
    """Another server holds the lease of the stream. Nothing was written."""

    def __init__(self, stream: str, leader: str, seconds: float) -> None:
        super().__init__(f"stream {stream!r}: {leader or 'another server'} leads it; this server stands by")
        self.leader = leader
        """The address of the leading server."""
        self.seconds = seconds
        """Seconds until the lease of that server ends if it is not renewed."""


class NotWritten(JournalError):
    """The write certainly failed; the journal is unchanged."""


class Locked(NotWritten):
    """Another process used the store for longer than the busy timeout. Nothing was written."""


class UnknownOutcome(JournalError):
    """The record may or may not have been written. The writer must stop and recover from the journal."""


class Damaged(JournalError):
    """Stored data is missing or altered. The program repairs nothing."""

    def __init__(self, file: str, what: str, remedy: str = "restore the journal from a copy") -> None:
        super().__init__(f"{file}: {what}; {remedy} (`fairlead journal verify PATH` checks all of it)")
        self.file = file


class Pruned(JournalError):
    """The requested records were deleted after a snapshot was saved. Start from `snapshot()` instead."""


class TooNew(JournalError):
    """The store was written by a newer version of this program."""


class PolicyMissing(JournalError):
    """The configuration in the journal names policies that are not installed here, so no cycle was run."""

    def __init__(self, partition: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"partition {partition}: {', '.join(missing)}: not installed here; install the package that the journal "
            "was written with (a package brings policies as entry points of the group fairlead.policies)"
        )


class Journal(Protocol):
    """Durable streams of records. Only one thread at a time may use it. Every method may raise `JournalError`."""

    def reign(self, stream: str) -> int:
        """Begin a new reign of a stream and return its epoch, which is durable and higher than all earlier epochs.

        Later appends with older epochs raise `Fenced`. Raises `Held` if another server holds the lease of the stream.
        """

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        """Write one record durably. `epoch` must come from this object's last `reign`, and `seq` must be `last` + 1."""

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        """Yield the records after number `after`, verified and in order. Raises `Pruned` if some were deleted."""

    def last(self, stream: str) -> int:
        """Return the number of the last record, also if it was pruned; 0 if the stream never had one."""

    def epoch(self, stream: str) -> int:
        """Return the highest epoch of a stream, also of a dropped stream; 0 if it never had a reign."""

    def streams(self) -> list[str]:
        """Return the sorted names of the streams that have records or pruned records."""

    def drop(self, stream: str) -> None:
        """Remove a stream with its snapshots, and fence its writer. A new stream of this name continues its epochs."""

    def snapshot(self, stream: str, upto: int = NEWEST) -> Snapshot | None:
        """Return the newest intact snapshot at record `upto` or earlier; None if all records from record 1 are stored.

        If there is none that early and records were deleted, return the newest of all.
        """

    def save_snapshot(self, stream: str, seq: int, payload: bytes) -> None:
        """Save `payload` as the state after record `seq`.

        Deletes old snapshots, except the two newest and the one after which the stored records begin.
        """

    def prune(self, stream: str, upto: int) -> None:
        """Delete the records up to `upto`. Raises `NotWritten` unless a snapshot at `upto` or later is intact."""

    def skipped(self, stream: str) -> range:
        """Return the epochs before this reign whose records were lost when data were restored to an earlier time.

        The range is empty if there was no restore since the last reign. A node that knows a skipped epoch has obeyed a
        leader whose records are lost.
        """

    def leads_until(self) -> float:
        """Return the time (`time.monotonic`) until which no other server can lead a stream of this object."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
