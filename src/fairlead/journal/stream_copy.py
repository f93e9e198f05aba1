"""Copies a whole journal into an empty one, also between SQLite and PostgreSQL, while servers write to the original.

A copy may end at an earlier time. Then it has each partition up to its last cycle before that time, and the
configuration of that time. Epochs continue in the copy, so that agents obey the servers of the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fairlead.core.dump import dumped_at, load
from fairlead.core.model import Micros
from fairlead.core.state import Partition
from fairlead.journal.chained import ChainedJournal, Mark, Reign
from fairlead.journal.codec import CLUSTER_STREAM, REMOVED, decode_cluster, replay, stream_of, time_of
from fairlead.journal.journal import JournalError, Snapshot, raised

PartDone = Callable[[str, int], None]
"""Called with a stream or table and the number of its copied rows."""
Progress = Callable[[str, int, int], None]
"""Called with a stream, the number of its copied records, and the number of all its records."""


class TooEarly(JournalError):
    """The journal has no state of the wanted time."""


class Point(NamedTuple):
    """The end of a copy: a time, or the time of record `revision` of a partition."""

    time: Micros = 0
    partition: str = ""
    revision: int = 0


class Span(NamedTuple):
    """The first and the last record to which a copied partition can be restored, with their times."""

    first: int
    first_time: Micros
    last: int
    last_time: Micros


class _End(NamedTuple):
    """The part of a stream to copy: the records up to `tail`, and the snapshots up to that record."""

    row: Reign
    tail: Mark
    snapshots: tuple[Snapshot, ...]
    """The oldest first."""


def copy_journal(
    source: ChainedJournal,
    target: ChainedJournal,
    part_done: PartDone,
    progress: Progress = lambda stream, done, total: None,
    point: Point | None = None,
    above: int | None = None,
) -> dict[str, Span]:
    """Copy all streams with their snapshots into an empty journal, up to `point`. Returns the span of each partition.

    If `above` is given, the epochs of the copy are higher than all future epochs of the original, so that agents obey
    the servers of the copy even if servers of the original still run. They are also higher than those of any journal
    that is at `above` now.
    """
    if target.reigned():
        raise JournalError(f"{target.path}: there is a journal already; name an empty place")
    with source.frozen() as streams:
        ends = {stream: _end(source, stream, row, tail) for stream, (row, tail) in streams.items()}
        if point is not None:
            ends = _cut_all(source, ends, point)
        spans = {stream.removeprefix(PREFIX): _span(source, stream, end) for stream, end in _partitions(ends).items()}
        with target.adopting():
            for stream, end in ends.items():
                row = end.row if above is None else end.row._replace(epoch=raised(max(end.row.epoch, above)))
                target.adopt(stream, row, end.tail, _batches(source, stream, end, progress))
    for stream, end in ends.items():
        for snapshot in end.snapshots:
            target.save_snapshot(stream, snapshot.seq, snapshot.payload)
    for stream, end in ends.items():
        part_done(stream, _compare(target, stream, end))
    return spans


def check_point(source: ChainedJournal, point: Point) -> None:
    """Raise `TooEarly` if a journal cannot be copied up to a point."""
    with source.frozen() as streams:
        _cut_all(source, {stream: _end(source, stream, row, tail) for stream, (row, tail) in streams.items()}, point)


PREFIX = stream_of("")


def _partitions(ends: dict[str, _End]) -> dict[str, _End]:
    return {stream: end for stream, end in ends.items() if stream.startswith(PREFIX) and end.tail.seq}


def _end(source: ChainedJournal, stream: str, row: Reign, tail: Mark) -> _End:
    """Return the parts to copy of a whole stream.

    Loads the snapshots now, because on SQLite they are in another file, where they may be replaced during the copy.
    """
    found = [source.load_snapshot(stream, seq) for seq in reversed(source.saved_snapshots(stream)) if seq <= tail.seq]
    return _End(row, tail, tuple(snapshot for snapshot in found if snapshot is not None))  # damaged ones are useless


def _batches(source: ChainedJournal, stream: str, end: _End, progress: Progress) -> Iterator[list[Any]]:
    for batch in source.batches(stream, end.row.base, end.tail.seq):
        yield batch
        progress(stream, batch[-1][0] - end.row.base, end.tail.seq - end.row.base)


def _span(source: ChainedJournal, stream: str, end: _End) -> Span:
    last = end.tail.seq
    if not end.row.base:
        return Span(1, _time(source, stream, 1), last, _time(source, stream, last))
    first = end.snapshots[0]
    began = dumped_at(first.payload)
    return Span(first.seq, began, last, _time(source, stream, last) if last > end.row.base else began)


def _time(source: ChainedJournal, stream: str, seq: int) -> Micros:
    record = next(source.read(stream, seq - 1))
    return time_of(record.payload, f"record {seq} of {stream}")


def shown_time(micros: Micros) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds")


# An earlier time


def _cut_all(source: ChainedJournal, ends: dict[str, _End], point: Point) -> dict[str, _End]:
    until, limits = point.time, dict[str, int]()
    if point.revision:
        stream = stream_of(point.partition)
        end = _partitions(ends).get(stream)
        if end is None:
            raise TooEarly(f"{source.path}: there is no partition {point.partition}; name one that exists")
        first = end.row.base + 1
        if not first <= point.revision <= end.tail.seq:
            raise TooEarly(f"{source.path}: {stream} has the records {first} to {end.tail.seq}; name one of them")
        until, limits = _time(source, stream, point.revision), {stream: point.revision}
    cut = {
        stream: _cut(source, stream, end, until, limits.get(stream, end.tail.seq))
        for stream, end in _partitions(ends).items()
    }
    present = {stream: end for stream, end in cut.items() if end is not None}
    if not present:
        raise TooEarly(f"{source.path}: there was no partition at that time; name a later time")
    versions = [_state(source, stream, end).config_version for stream, end in present.items()]
    cluster, names = _cut_cluster(source, ends[CLUSTER_STREAM], max(versions))
    removed = sorted(name for name in names if stream_of(name) not in present)
    if removed:
        raise TooEarly(
            f"{source.path}: partition {', '.join(removed)} existed at that time and was removed before the copy; "
            "name a later time, or a backup from before"
        )
    # Copy also the counters of partitions that were removed later, so that numbers are never given twice.
    others = {stream: end for stream, end in ends.items() if not end.tail.seq or stream.startswith(REMOVED)}
    return {**others, **present, CLUSTER_STREAM: cluster}


def _cut(source: ChainedJournal, stream: str, end: _End, until: Micros, last: int) -> _End | None:
    """Return the parts to copy of a partition up to a time and to record `last`; None if it did not exist then."""
    tail = Mark(end.row.base, end.row.epoch, end.row.base_digest)
    for batch in source.batches(stream, end.row.base, last):
        for seq, epoch, digest, payload in batch:
            if time_of(payload, f"record {seq} of {stream}") > until:
                break
            tail = Mark(seq, epoch, digest)
        if tail.seq != batch[-1][0]:
            break
    snapshots = tuple(snapshot for snapshot in end.snapshots if snapshot.seq <= tail.seq)
    if not end.row.base:
        return _End(end.row, tail, snapshots) if tail.seq else None
    if not snapshots or dumped_at(snapshots[0].payload) > until:
        oldest = dumped_at(end.snapshots[0].payload) if end.snapshots else 0
        raise TooEarly(
            f"{source.path}: {stream} reaches back to {shown_time(oldest)}; name a later time, or an earlier backup"
        )
    return _End(end.row, tail, snapshots)


def _state(source: ChainedJournal, stream: str, end: _End) -> Partition:
    """Return the state of a partition at the end of its copy."""
    state, seq = Partition(stream.removeprefix(PREFIX)), 0
    if end.snapshots:
        state, seq = load(end.snapshots[-1].payload), end.snapshots[-1].seq
    for record in source.read(stream, seq):
        if record.seq > end.tail.seq:
            break
        replay(state, record.payload, f"record {record.seq} of {stream}")
    return state


def _cut_cluster(source: ChainedJournal, end: _End, version: int) -> tuple[_End, list[str]]:
    """Return the parts to copy of the configurations up to a version, and the partitions of that version."""
    tail, names = Mark(end.row.base, end.row.epoch, end.row.base_digest), list[str]()
    for batch in source.batches(CLUSTER_STREAM, end.row.base, end.tail.seq):
        for seq, epoch, digest, payload in batch:
            configured = decode_cluster(payload, f"record {seq} of {CLUSTER_STREAM}")
            if configured.version <= version:
                tail, names = Mark(seq, epoch, digest), [name for name, _ in configured.partitions]
    return _End(end.row, tail, ()), names


def _compare(target: ChainedJournal, stream: str, end: _End) -> int:
    """Read a copied stream and return the number of its records. Raises if the copy differs from the original."""
    row, tail = target.state_of(stream)
    # The digest of the last record covers all records before it; reading checks each record against its own.
    same = (row.born, row.base, tail.seq, tail.digest) == (end.row.born, end.row.base, end.tail.seq, end.tail.digest)
    count = sum(1 for _ in target.read(stream, row.base))
    newest = end.snapshots[-1] if end.snapshots else None
    if not same or count != end.tail.seq - row.base or target.snapshot(stream) != newest:
        raise JournalError(f"{target.path}: stream {stream!r} is not equal to its original; remove the copy")
    return count
