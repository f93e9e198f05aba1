"""What belongs to the present writer's time and not to history: who has been heard since it began, and readiness.

It is the one part of the state that is not journaled and not altered through a plan: a start always begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.model import Micros
from fairlead.core.nodes import NodeTable


class Reign:
    __slots__ = ("_awaited", "_nodes", "_replayed", "began", "left_at", "ready", "ready_at")

    def __init__(self) -> None:
        self.began: Micros | None = None
        """The time of its first cycle: `ready_after` counts from here."""
        self.left_at: Micros = 0
        """The time of the last journaled cycle before it."""
        self.ready = False
        self.ready_at: Micros = 0
        """The clocks of silence start again here: nobody could be heard before."""
        self._nodes: set[int] = set()
        """The nodes, by join number, whose agents have reported."""
        self._replayed: set[str] = set()
        """The resource managers that have sent what they know."""
        self._awaited: list[int] | None = None
        """Our own nodes as the first cycle found them, less those that need not be waited for any longer."""

    def counts_from(self, since: Micros) -> Micros:
        """From when on something ages that began at a time: not before the partition was ready."""
        return max(since, self.ready_at)

    def pause_ends(self, until: Micros, lasts: Micros) -> Micros:
        """When a pause ends that was to end at a time, of a kind that lasts so long.

        A pause that was not over when the last server stopped goes on at ready, for the time that was left of it.
        """
        left = until - self.left_at
        return max(until, self.ready_at + min(left, lasts)) if left > 0 else until

    def hear_node(self, node_id: int) -> None:
        """An agent registered, or reported of its tasks."""
        if not self.ready:
            self._nodes.add(node_id)

    def hear_manager(self, name: str) -> None:
        """A resource manager sent an update."""
        if not self.ready:
            self._replayed.add(name)

    def await_manager(self, name: str) -> None:
        """A resource manager registered: that only announces what it knows, which comes with its next update."""
        self._replayed.discard(name)

    def heard_all(self, nodes: NodeTable, managers: Iterable[str]) -> bool:
        """Whether everybody who is known has reported. Asked once a cycle, it costs each node once a reign.

        Nodes that join in this reign have reported by joining, and a manager's nodes are vouched for by it. Where
        nobody is known, as at a first start, there is nobody to wait for: that nothing runs is certain.
        """
        if self._awaited is None:
            self._awaited = [node_id for node_id, row in nodes.rows.items() if not nodes.manager[row]]
        while self._awaited and not self._is_missing(nodes, self._awaited[-1]):
            self._awaited.pop()
        return not self._awaited and self._replayed.issuperset(managers)

    def _is_missing(self, nodes: NodeTable, node_id: int) -> bool:
        """A node that is lost or disabled, or has left, takes no work: nobody needs to hear of it first."""
        row = nodes.rows.get(node_id)
        return row is not None and node_id not in self._nodes and nodes.state[row] in ("up", "draining")

    def missing(self, nodes: NodeTable, managers: Iterable[str]) -> list[str]:
        """Who is waited for, by name, for people who wonder."""
        silent = [
            node_id
            for node_id, row in nodes.rows.items()
            if not nodes.manager[row] and self._is_missing(nodes, node_id)
        ]
        return [nodes.name[nodes.rows[node_id]] for node_id in silent] + sorted(set(managers) - self._replayed)
