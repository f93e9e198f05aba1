"""Base class of changes: small immutable records that alter the state and can be undone; their news and log lines.

`apply` returns what `undo` needs beyond the change itself: a plain value, or a record named after the change, such as
`PlacedUndo`. Only the change is journaled, so replay needs `apply` alone. `undo` is used when a plan is rolled back
before it was journaled.

The methods below `undo` describe a change to observers; by default they return nothing. Their argument `before` is the
value that `apply` returned. News are for resource managers, watchers, history and quotas; `views.decision_log` writes
the log lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec

from fairlead.core.model import Allocation, Ask, Job, JobState, Micros, NodeState, Outcome, Stage
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition


class TaskNews(msgspec.Struct, frozen=True, gc=False):
    """Tasks of a stage that changed state, all on one node and under one attempt."""

    what: Literal["placed", "running", "stopping", "ended"]
    stage: Stage
    indices: tuple[int, ...]
    attempt: int
    node: int
    """The node id."""
    outcome: Outcome | Literal["", "pending"] = ""
    """The outcome of the attempts; `pending` if the launch was taken back."""
    reason: str = ""
    exit_code: int | None = None
    started: Micros | None = None
    """When tasks that ended had started to run."""
    devices: tuple[int, ...] = ()
    """The devices of placed tasks."""
    ran: Micros = 0
    """Average run time of tasks that ended, as their node measured it; 0 if that is not known."""


class JobNews(msgspec.Struct, frozen=True, gc=False):
    """A job that was submitted, changed state, was held, released or updated."""

    what: Literal["submitted", "state", "held", "released", "updated"]
    job: Job
    state: JobState
    reason: str = ""


class NodeNews(msgspec.Struct, frozen=True, gc=False):
    """A node that joined, changed state, disconnected or was removed."""

    name: str
    """Empty if the node was removed in the same cycle."""
    state: NodeState | Literal["disconnected", "removed"]


News = TaskNews | JobNews | NodeNews


NAMED = 10
"""A log line names at most 10 nodes or tasks."""


class Line(NamedTuple):
    level: Literal["info", "warning"]
    event: str
    """What happened; docs/metrics.md lists all events."""
    fields: dict[str, Any]


class Names:
    """What log lines need besides a change: the time of the cycle, and the names of nodes, also of removed ones."""

    def __init__(self, partition: Partition, now: Micros, removed: Mapping[int, str]) -> None:
        self.partition = partition
        self.now = now
        self._removed = removed

    def node(self, node_id: int) -> str:
        nodes = self.partition.nodes
        return self._removed[node_id] if node_id in self._removed else nodes.name[nodes.rows[node_id]]

    def nodes(self, node_ids: Iterable[int]) -> list[str]:
        """Return the names of the first `NAMED` nodes."""
        return [self.node(node_id) for node_id in islice(node_ids, NAMED)]

    def where(self, allocation: Allocation) -> dict[str, Any]:
        """Return job, stage and node of an allocation as log fields."""
        stage = allocation.stage
        return {"job": stage.job.id, "stage": stage.name, "node": self.node(allocation.node)}

    def seconds_since(self, time: Micros) -> float:
        return (self.now - time) / SECOND


Undo = TypeVar("Undo")

DEFINED: list[type[Change[Any]]] = []
"""All change classes, in the order of their definition."""


class Change(msgspec.Struct, Generic[Undo], frozen=True, array_like=True, gc=False):
    """Base class of changes. Each subclass has its own tag, by which the journal finds the class."""

    warns: ClassVar[bool] = False
    """True if `lines` may return warnings. Otherwise it is not called when only warnings are logged."""

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        DEFINED.append(cls)

    def apply(self, partition: Partition) -> Undo:
        """Alter the state and return the undo data. Raise without altering anything if the change is not possible."""
        raise NotImplementedError

    def undo(self, partition: Partition, before: Undo) -> None:
        """Restore the state as it was before `apply`."""
        raise NotImplementedError

    def allocations_to_send(self) -> Iterable[int]:
        """Return the numbers of the allocations to launch or stop; their agents get a message."""
        return ()

    def news(self, partition: Partition, before: Undo) -> Iterable[News]:
        """Return the tasks, jobs and nodes that changed state, in order. `partition` is the state after the cycle."""
        return ()

    def manager_to_notify(self, partition: Partition, before: Undo) -> str:
        """Return the resource manager that is told the news of tasks and nodes; empty for none."""
        return ""

    def demand(self, before: Undo) -> Iterable[tuple[Stage, int]]:
        """Return the stages whose pending tasks or asks changed, with the increase of their pending tasks."""
        return ()

    def counts(self, partition: Partition, before: Undo) -> Iterable[tuple[str, int]]:
        """Return what metrics count, by the events of `COUNTERS` in `views.metrics`, in the state after the cycle."""
        return ()

    def completed(self, before: Undo) -> Iterable[Ask]:
        """Return the asks of which the last task was placed."""
        return ()

    def lines(self, names: Names, before: Undo) -> Iterable[Line]:
        """Return the log lines of this change."""
        return ()
