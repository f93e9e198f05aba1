"""State of the present server run that is not history: which agents have reported since its start, and readiness.

It is the only part of the state that is neither journaled nor altered through a plan: each start begins with a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.model import Micros
from fairlead.core.nodes import NodeTable


class Reign:
    """One server run, from its start."""

    __slots__ = ("_awaited", "_nodes", "_replayed", "absent", "began", "left_at", "ready", "ready_at")

    def __init__(self) -> None:
        self.began: Micros | None = None
        """The time of the first cycle; `ready_after` counts from here."""
        self.left_at: Micros = 0
        """The time of the last journaled cycle before this run."""
        self.ready = False
        self.ready_at: Micros = 0
        """Timeouts count from here, because no report could arrive while the server was away."""
        self._nodes: set[int] = set()
        """Ids of the nodes with agents that have reported."""
        self._replayed: set[str] = set()
        """The resource managers that have sent an update."""
        self.absent: dict[int, None] = {}
        """Ids of the nodes that were reported as disconnected before readiness and have not joined since.

        They are journaled as disconnected at readiness: most agents connect before it, one by one.
        """
        self._awaited: list[int] | None = None
        """Ids of the nodes with our agents at the first cycle, without those that are no longer waited for."""

    def counts_from(self, since: Micros) -> Micros:
        """Return the time from which a timeout counts: `since`, but not before the partition was ready."""
        return max(since, self.ready_at)

    def pause_ends(self, until: Micros, lasts: Micros) -> Micros:
        """Return the end of a pause that was set to end at `until`, of a kind that lasts `lasts`.

        A pause that was not over when the last server stopped continues at readiness for its remaining time.
        """
        left = until - self.left_at
        return max(until, self.ready_at + min(left, lasts)) if left > 0 else until

    def hear_node(self, node_id: int) -> None:
        """Record that an agent registered or reported tasks."""
        if not self.ready:
            self._nodes.add(node_id)

    def hear_manager(self, name: str) -> None:
        """Record that a resource manager sent an update."""
        self._replayed.add(name)

    def await_manager(self, name: str) -> None:
        """Record that a resource manager registered: its state comes with its next update."""
        self._replayed.discard(name)

    def has_heard(self, manager: str) -> bool:
        """True if a resource manager has sent an update since it registered."""
        return manager in self._replayed

    def heard_all(self, nodes: NodeTable, managers: Iterable[str]) -> bool:
        """True if all known nodes and managers have reported. Called once per cycle; visits each node once per run.

        Nodes that join in this run have reported by joining, and a manager reports for its nodes. Without known nodes
        and managers, as at a first start, there is nothing to wait for: no task can be running.
        """
        if self._awaited is None:
            self._awaited = [node_id for node_id, row in nodes.rows.items() if not nodes.manager[row]]
        while self._awaited and not self._is_missing(nodes, self._awaited[-1]):
            self._awaited.pop()
        return not self._awaited and self._replayed.issuperset(managers)

    def _is_missing(self, nodes: NodeTable, node_id: int) -> bool:
        """True if a node has not reported and takes work. Lost, disabled and removed nodes are not waited for."""
        row = nodes.rows.get(node_id)
        return row is not None and node_id not in self._nodes and nodes.state[row] in ("up", "draining")

    def missing(self, nodes: NodeTable, managers: Iterable[str]) -> list[str]:
        """Return the names of the nodes and managers that are waited for, for messages."""
        silent = [
            node_id
            for node_id, row in nodes.rows.items()
            if not nodes.manager[row] and self._is_missing(nodes, node_id)
        ]
        return [nodes.name[nodes.rows[node_id]] for node_id in silent] + sorted(set(managers) - self._replayed)
