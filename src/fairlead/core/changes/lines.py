"""Log lines of changes. `views.decision_log` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from fairlead.core.model import Allocation, Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition

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
