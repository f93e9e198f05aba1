"""A cycle's changes → news for those who watch: jobs, tasks and nodes that moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fairlead.core.changes import (
    Acknowledged,
    Chained,
    Ended,
    JobAdded,
    JobMoved,
    NodeAdded,
    NodeMoved,
    NodeRemoved,
    Placed,
    SinglesEnded,
    SinglesPlaced,
    Stopped,
)
from fairlead.core.cycle import Cycle
from fairlead.core.model import Allocation, Job
from fairlead.core.nodes import NodeTable
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.wire.api import Event


def events_of(decided: Cycle) -> tuple[Event, ...]:
    """In the order of the changes."""
    at = decided.plan.now / SECOND
    partition = decided.plan.partition
    found: list[Event] = []
    for change, kept in decided.plan.done:
        teller = TELLERS.get(type(change))
        if teller is not None:
            found += teller(partition, at, change, kept)
    return tuple(found)


def _submitted(partition: Partition, at: float, change: JobAdded, kept: Any) -> Iterator[Event]:
    yield Event(what="submitted", at=at, job=change.id, number=change.number, state="pending")


def _moved(partition: Partition, at: float, change: JobMoved, kept: Any) -> Iterator[Event]:
    job = partition.jobs.get(change.job)
    number = job.number if job is not None else 0
    yield Event(what="state", at=at, job=change.job, number=number, state=change.state, reason=change.reason)


def _placed(partition: Partition, at: float, change: Placed, kept: Any) -> Iterator[Event]:
    job = partition.jobs.get(change.job)
    if job is None:
        return
    stage = job.stages[change.stage].name
    for part in change.parts:
        yield _tasks("placed", at, job, stage, part.indices, change.attempt, _name(partition.nodes, part.node))


def _singles(partition: Partition, at: float, change: SinglesPlaced, kept: Any) -> Iterator[Event]:
    node = _name(partition.nodes, change.node)
    for ask, _ in kept[0]:
        yield _tasks("placed", at, ask.stage.job, ask.stage.name, (0, 1), 1, node)


def _chained(partition: Partition, at: float, change: Chained, kept: Any) -> Iterator[Event]:
    front: Allocation = kept[1]
    node = _name(partition.nodes, front.node)
    yield _tasks("placed", at, front.stage.job, front.stage.name, change.indices, change.attempt, node)


def _acknowledged(partition: Partition, at: float, change: Acknowledged, kept: Any) -> Iterator[Event]:
    yield _of(partition, "running", at, kept[0], change.indices)


def _stopped(partition: Partition, at: float, change: Stopped, kept: Any) -> Iterator[Event]:
    yield _of(partition, "stopping", at, kept[0], change.indices, reason=change.cause)


def _ended(partition: Partition, at: float, change: Ended, kept: Any) -> Iterator[Event]:
    yield _of(partition, "ended", at, kept[0], change.indices, change.outcome, change.reason)


def _singles_ended(partition: Partition, at: float, change: SinglesEnded, kept: list[Allocation]) -> Iterator[Event]:
    for before in kept:
        yield _of(partition, "ended", at, before, before.indices, "succeeded")
        job = before.stage.job
        yield Event(what="state", at=at, job=job.id, number=job.number, state="succeeded")


def _node_added(partition: Partition, at: float, change: NodeAdded, kept: Any) -> Iterator[Event]:
    yield Event(what="node", at=at, node=change.name, state=change.state)


def _node_moved(partition: Partition, at: float, change: NodeMoved, kept: Any) -> Iterator[Event]:
    yield Event(what="node", at=at, node=_name(partition.nodes, change.node_id), state=change.state)


def _node_removed(partition: Partition, at: float, change: NodeRemoved, kept: Any) -> Iterator[Event]:
    yield Event(what="node", at=at, node=kept[0].name, state="removed")


Teller = Callable[[Partition, float, Any, Any], Iterator[Event]]

TELLERS: dict[type[Any], Teller] = {
    JobAdded: _submitted,
    JobMoved: _moved,
    Placed: _placed,
    SinglesPlaced: _singles,
    Chained: _chained,
    Acknowledged: _acknowledged,
    Stopped: _stopped,
    Ended: _ended,
    SinglesEnded: _singles_ended,
    NodeAdded: _node_added,
    NodeMoved: _node_moved,
    NodeRemoved: _node_removed,
}


def _of(
    partition: Partition,
    what: str,
    at: float,
    allocation: Allocation,
    indices: tuple[int, ...],
    state: str = "",
    reason: str = "",
) -> Event:
    stage = allocation.stage
    node = _name(partition.nodes, allocation.node)
    return _tasks(what, at, stage.job, stage.name, indices, allocation.attempt, node, state, reason)


def _tasks(
    what: str,
    at: float,
    job: Job,
    stage: str,
    indices: tuple[int, ...],
    attempt: int,
    node: str,
    state: str = "",
    reason: str = "",
) -> Event:
    return Event(
        what=what,
        at=at,
        job=job.id,
        number=job.number,
        stage=stage,
        indices=list(indices),
        attempt=attempt,
        node=node,
        state=state,
        reason=reason,
    )


def _name(nodes: NodeTable, node_id: int) -> str:
    """The name of a node; empty if it left in the same cycle."""
    row = nodes.rows.get(node_id)
    return "" if row is None else nodes.name[row]
