"""Checks a whole journal: the digest and form of every record, every snapshot, the replay and the resulting state.

The check writes nothing. After a problem in one stream, it goes on with the other streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

import msgspec

from fairlead.core.dump import dump, load
from fairlead.core.invariants import InvariantBroken, check_all
from fairlead.core.model import Micros
from fairlead.core.state import Partition
from fairlead.journal.chained import ChainedJournal
from fairlead.journal.codec import (
    CLUSTER_STREAM,
    REMOVED,
    decode,
    encode_cluster,
    encode_remains,
    replay,
    restore_cluster,
    restore_remains,
    stream_of,
)
from fairlead.journal.journal import Damaged, Journal, JournalError

Progress = Callable[[str, int, int], None]
"""Called with a stream, the number of its checked records, and the number of all its records."""

_STEP = 200


class StreamReport(msgspec.Struct):
    """The result of checking one stream. The stream is sound if `problem` is empty."""

    stream: str
    records: int = 0
    """The number of checked records. Pruned records are not counted."""
    last: int = 0
    time: Micros | None = None
    """The time of the last cycle, in microseconds since 1970."""
    digest: str = ""
    """The digest of the state after the last record."""
    snapshots: tuple[int, ...] = ()
    problem: str = ""


def verify(journal: ChainedJournal, progress: Progress) -> Iterator[StreamReport]:
    """Check all streams, and yield the report of each."""
    for stream in journal.streams():
        report = StreamReport(stream)
        try:
            if stream == CLUSTER_STREAM:
                _cluster(journal, report)
            elif stream.startswith(stream_of("")):
                _partition(journal, report, progress)
            elif stream.startswith(REMOVED):
                _removed(journal, report)
            else:
                report.problem = "not a stream of this program; a newer version may know it"
        except JournalError as problem:
            report.problem = str(problem)
        except (msgspec.MsgspecError, InvariantBroken) as problem:
            report.problem = f"{type(problem).__name__}: {problem}"
        yield report


def _cluster(journal: Journal, report: StreamReport) -> None:
    configured, report.last = restore_cluster(journal)
    report.records = report.last
    report.digest = _digest(encode_cluster(configured))


def _removed(journal: Journal, report: StreamReport) -> None:
    remains = restore_remains(journal, report.stream.removeprefix(REMOVED))
    report.records = report.last = journal.last(report.stream)
    report.digest = "" if remains is None else _digest(encode_remains(remains))


def _partition(journal: ChainedJournal, report: StreamReport, progress: Progress) -> None:
    """Replay all records, and check that every snapshot equals the replayed state at its record."""
    stream = report.stream
    name = stream.removeprefix(stream_of(""))
    report.last = journal.last(stream)
    base = journal.state_of(stream)[0].base
    snapshots = _snapshots(journal, stream, base)
    report.snapshots = tuple(sorted(snapshots))
    state = None if base else Partition(name)
    at = base
    total = report.last - base
    # The snapshot at the base comes before the first record.
    state = _meet(state, snapshots.get(base), stream, base)
    for record in journal.read(stream, base):
        at = record.seq
        where = f"record {at} of {stream}"
        before = report.time or 0
        if state is None:
            report.time, _ = decode(record.payload, where)
        else:
            replay(state, record.payload, where)
            report.time = state.now
        if report.time < before:
            raise Damaged(where, "its time is before that of the record before it")
        report.records = at - base
        state = _meet(state, snapshots.get(at), stream, at)
        if report.records % _STEP == 0:
            progress(stream, report.records, max(total, report.records))
    if state is None:
        raise Damaged(journal.snapshots_path, f"no snapshot of {stream}, of which records up to {base} are pruned")
    report.last, report.time = at, state.now
    report.digest = _digest(dump(state))
    check_all(state)
    if state.name != name:
        raise Damaged(stream, f"it holds the state of another partition, {state.name}")


def _meet(state: Partition | None, snapshot: bytes | None, stream: str, seq: int) -> Partition | None:
    """Return the state after record `seq`, from which the replay continues.

    A snapshot at this record is compared with the replayed state. If there is no state yet, the snapshot is the state.
    """
    if snapshot is None:
        return state
    where = f"snapshot {seq} of {stream}"
    try:
        loaded = load(snapshot)
        check_all(loaded)
    except Exception as problem:  # a damaged snapshot may fail in any way
        raise Damaged(where, f"it does not load ({problem!r})") from problem
    if dump(loaded) != (snapshot if state is None else dump(state)):
        raise Damaged(where, "it is not the state that the records lead to")
    return state or loaded


def _snapshots(journal: ChainedJournal, stream: str, base: int) -> dict[int, bytes]:
    """Return the payloads of all snapshots from the base on, by record. Raises `Damaged` if any of them is altered.

    Older snapshots are ignored: they are deleted when the next snapshot is saved.
    """
    payloads: dict[int, bytes] = {}
    for seq in journal.saved_snapshots(stream):
        if seq < base:
            continue
        snapshot = journal.load_snapshot(stream, seq)
        if snapshot is None:
            raise Damaged(
                journal.snapshots_path,
                f"snapshot {seq} of {stream} is altered, or left over from a stream of this name that was removed",
                "the next snapshots replace it; until then recovery takes the other one",
            )
        payloads[seq] = snapshot.payload
    return payloads


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
