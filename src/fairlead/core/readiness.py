"""Readiness: which agents and managers have reported since the writer started, and when the partition is ready; also
which of their jobs managers have asked to spare.

It is neither journaled nor changed through a plan. Each start of a writer begins with an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.model import Micros
from fairlead.core.node_table import NodeTable


class Readiness:
    """The readiness of a partition under one writer."""

    __slots__ = ("_awaited", "_nodes", "_replayed", "_spared", "absent", "began", "left_at", "ready", "ready_at")

    def __init__(self) -> None:
        self.began: Micros | None = None
        """The time of the first cycle, from which `ready_after` counts."""
        self.left_at: Micros = 0
        """The time of the last cycle of the writer before this one."""
        self.ready = False
        self.ready_at: Micros = 0
        """When the partition became ready. Timeouts count from this time at the earliest, because no report could
        arrive while no server ran."""
        self._nodes: set[int] = set()
        """Ids of nodes whose agents have reported."""
        self._replayed: set[str] = set()
        """The resource managers that have sent an update."""
        self._spared: dict[str, frozenset[str]] = {}
        """Manager → its jobs that must not be stopped for others now. Their managers know for how long."""
        self.absent: dict[int, None] = {}
        """Ids of nodes that were reported as disconnected before readiness and have not joined since.

        Only those that are still absent at readiness are journaled as disconnected.
        """
        self._awaited: list[int] | None = None
        """Ids of the nodes with an agent that were known at the first cycle and may not have reported yet."""

    def counts_from(self, since: Micros) -> Micros:
        """Return the time from which a timeout counts: `since`, but not before the partition was ready."""
        return max(since, self.ready_at)

    def pause_ends(self, until: Micros, lasts: Micros) -> Micros:
        """Return when a pause ends that was set to end at `until` and to last for `lasts`.

        The time without a server does not count: the rest of a pause begins at readiness.
        """
        left = until - self.left_at
        return max(until, self.ready_at + min(left, lasts)) if left > 0 else until

    def note_node(self, node_id: int) -> None:
        """Record that an agent registered or reported tasks."""
        if not self.ready:
            self._nodes.add(node_id)

    def note_manager(self, name: str) -> None:
        """Record that a resource manager sent an update."""
        self._replayed.add(name)

    def spare(self, manager: str, jobs: frozenset[str]) -> bool:
        """Record the jobs that a manager asks to spare now. Return True if they are others than before."""
        before = self._spared.get(manager, frozenset())
        self._spared[manager] = jobs
        return jobs != before

    def is_spared(self, manager: str, job: str) -> bool:
        """True if a job must not be stopped for others now."""
        return job in self._spared.get(manager, ())

    def await_manager(self, name: str) -> None:
        """Record that a resource manager registered and will send its state in its next update."""
        self._replayed.discard(name)

    def has_reported(self, manager: str) -> bool:
        """True if a resource manager has sent an update since it registered."""
        return manager in self._replayed

    def all_reported(self, nodes: NodeTable, managers: Iterable[str]) -> bool:
        """True if all nodes and managers that were known at the first cycle have reported.

        A manager reports for its nodes. Each node is visited once, over all calls.
        """
        if self._awaited is None:
            self._awaited = [node_id for node_id, row in nodes.rows.items() if not nodes.manager[row]]
        while self._awaited and not self._is_missing(nodes, self._awaited[-1]):
            self._awaited.pop()
        return not self._awaited and self._replayed.issuperset(managers)

    def _is_missing(self, nodes: NodeTable, node_id: int) -> bool:
        """True if a node that is up or draining has not reported."""
        row = nodes.rows.get(node_id)
        return row is not None and node_id not in self._nodes and nodes.state[row] in ("up", "draining")

    def silent_since(self, nodes: NodeTable, row: int) -> Micros | None:
        """Return the writer's first cycle if the agent of a node has not reported since then; None otherwise.

        From readiness on it is None: then such nodes are journaled as disconnected.
        """
        if self.ready or nodes.manager[row] or not self._is_missing(nodes, nodes.node_id[row]):
            return None
        return self.began

    def missing(self, nodes: NodeTable, managers: Iterable[str]) -> list[str]:
        """Return the names of the nodes and managers that have not reported."""
        silent = [
            node_id
            for node_id, row in nodes.rows.items()
            if not nodes.manager[row] and self._is_missing(nodes, node_id)
        ]
        return [nodes.name[nodes.rows[node_id]] for node_id in silent] + sorted(set(managers) - self._replayed)
