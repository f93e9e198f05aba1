"""Log lines of changes: what a change says of itself. The observer `views.logs` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from fairlead.core.model import Allocation, Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition

NAMED = 10
"""At most 10 nodes or tasks of a block are named."""


class Line(NamedTuple):
    level: Literal["info", "warning"]
    event: str
    """What happened; docs/metrics.md has all of them."""
    fields: dict[str, Any]


class Names:
    """The time of a cycle, and the names of the nodes that its changes speak of, also of those that left in it."""

    def __init__(self, partition: Partition, now: Micros, removed: Mapping[int, str]) -> None:
        self.partition = partition
        self.now = now
        self._removed = removed

    def node(self, node_id: int) -> str:
        nodes = self.partition.nodes
        return self._removed[node_id] if node_id in self._removed else nodes.name[nodes.rows[node_id]]

    def nodes(self, joins: Iterable[int]) -> list[str]:
        """Return the names of the first nodes."""
        return [self.node(node_id) for node_id in islice(joins, NAMED)]

    def where(self, allocation: Allocation) -> dict[str, Any]:
        """Return the fields that say which tasks an allocation has."""
        stage = allocation.stage
        return {"job": stage.job.id, "stage": stage.name, "node": self.node(allocation.node)}

    def seconds_since(self, time: Micros) -> float:
        return (self.now - time) / SECOND
