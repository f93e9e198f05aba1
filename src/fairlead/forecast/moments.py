"""The state of a partition at earlier times, replayed from the journal.

The journal reaches back to its oldest snapshot, because the records before it are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead.core.dump import dumped_at, load
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition, Touched
from fairlead.forecast.replica import Follower
from fairlead.journal.chained import ChainedJournal
from fairlead.journal.codec import replay, stream_of, time_of
from fairlead.journal.locate import open_journal
from fairlead.views.nodemap import STATES, map_queues, node_row, ordered_rows, static_columns
from fairlead.wire import api as wire
from fairlead.wire.preview import PastMapQuestion, PastQueuesQuestion


def past_map(follower: Follower, question: PastMapQuestion) -> Any:
    """Return the map of nodes and queues at a time; no map if the journal does not reach back to that time."""
    with open_journal(follower.journal, read_only=True) as journal:
        since = reaches_back_to(journal, follower.name)
        found = next(_states(journal, follower.name, [question.at]), None) if question.at >= since else None
        answer = wire.PastMap(since=since / SECOND, map=None if found is None else _map(found, question.at))
    return msgspec.to_builtins(answer)


def past_queues(follower: Follower, question: PastQueuesQuestion) -> Any:
    """Return share, entitlement, use and loan of queues at evenly spaced times, as far as the journal reaches back."""
    with open_journal(follower.journal, read_only=True) as journal:
        since = reaches_back_to(journal, follower.name)
        first = max(since, question.since)
        last, points = max(first, question.until), question.points
        times = sorted({first + (last - first) * point // max(1, points - 1) for point in range(points)})
        queues: dict[str, wire.QueuePast] = {}
        for at, state in zip(times, _states(journal, follower.name, times), strict=False):
            for path, queue in map_queues(state, at).items():
                past = queues.setdefault(path, wire.QueuePast(times=[], share=[], entitlement=[], use=[], loan=[]))
                past.times.append(at / SECOND)
                past.share.append(queue.share)
                past.entitlement.append(queue.entitlement_percent)
                past.use.append(queue.use_percent)
                past.loan.append(queue.loan_percent)
    return msgspec.to_builtins(wire.PastQueues(since=since / SECOND, queues=queues))


def _map(state: Partition, at: Micros) -> wire.NodeMap:
    rows = ordered_rows(state.nodes)
    columns: dict[str, Any] = static_columns(state.nodes, rows)
    return wire.NodeMap(
        at="",
        partition=state.name,
        now=at / SECOND,
        ready=True,
        states=list(STATES),
        rows=[node_row(state, row) for row in rows],
        queues=list(map_queues(state, at).values()),
        **columns,
    )


def reaches_back_to(journal: ChainedJournal, partition: str) -> Micros:
    """Return the earliest time whose state can be replayed."""
    stream = stream_of(partition)
    row, tail = journal.state_of(stream)
    if row.base:
        found = [journal.load_snapshot(stream, seq) for seq in journal.saved_snapshots(stream)]
        return min([dumped_at(snapshot.payload) for snapshot in found if snapshot is not None])
    return time_of(next(journal.read(stream)).payload, f"record 1 of {stream}") if tail.seq else 0


def _states(journal: ChainedJournal, partition: str, times: list[Micros]) -> Iterator[Partition]:
    """Yield the state at each of the given times, which are in order. It is one object, which changes between them."""
    waiting = list(times)
    for state, until in replayed(journal, partition, times[0]):
        while waiting and (until is None or until > waiting[0]):
            waiting.pop(0)
            yield state
        if not waiting:
            return


def replayed(journal: ChainedJournal, partition: str, first: Micros) -> Iterator[tuple[Partition, Micros | None]]:
    """Yield the state before and after each record, from a snapshot before a time on, and when the next record follows.

    It is one object. `touched` has what the last record touched. After the last record the time is None.
    """
    stream = stream_of(partition)
    state, seq = Partition(partition), 0
    for number in sorted(journal.saved_snapshots(stream), reverse=True):
        snapshot = journal.load_snapshot(stream, number)
        if snapshot is not None and (dumped_at(snapshot.payload) <= first):
            state, seq = load(snapshot.payload), snapshot.seq
            break
    for record in journal.read(stream, seq):
        where = f"record {record.seq} of {stream}"
        yield state, time_of(record.payload, where)
        state.touched = Touched()
        replay(state, record.payload, where)
    yield state, None
