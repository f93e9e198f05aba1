"""The adapter's state: what it knows of the cluster and of its partition, and the items queued for the partition.

`adapter.py` lists the functions that change it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import msgspec

from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.groups import GroupObjects
from fairlead.kubernetes.names import GATE, SCHEDULER
from fairlead.kubernetes.nodes import MAX_REASON, Others, amounts_of
from fairlead.kubernetes.objects import Node
from fairlead.kubernetes.pods import NODE_NAME, Needs
from fairlead.kubernetes.rules import Rules
from fairlead.kubernetes.units import Member, Task, Unit

KEPT = 300.0
"""Seconds for which a refusal counts, because its cause may be gone later."""


class Refusals:
    """Refused nodes by the uid of the pods' controller."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, float]] = {}

    def add(self, controller: str, node: str, now: float) -> None:
        self._until.setdefault(controller, {})[node] = now + KEPT

    def apply(self, controller: str, needs: Needs) -> Needs:
        """Return needs that exclude the refused nodes."""
        nodes = sorted(self._until.get(controller, ()))
        if not nodes:
            return needs
        others = f"{NODE_NAME} notin ({','.join(nodes)})"
        where = tuple(f"{term}, {others}" for term in needs.where) or (others,)
        return msgspec.structs.replace(needs, where=where)

    def expire(self, now: float) -> set[str]:
        """Forget old refusals. Return the controllers whose pods may use more nodes."""
        before = self._until
        left = {key: {node: until for node, until in nodes.items() if until > now} for key, nodes in before.items()}
        self._until = {key: nodes for key, nodes in left.items() if nodes}
        return {key for key, nodes in left.items() if len(nodes) < len(before[key])}


MOST_ASKS = 1_000
"""Number of known asks from which on those of removed pods are forgotten."""
OURS = "kubernetes: "
"""Prefix of the reason with which the adapter drains or disables a node. The adapter enables only such nodes again."""

Document = dict[str, Any]


class KnownNode(msgspec.Struct, eq=False):
    """A node of the cluster, and the items that were last sent for it."""

    name: str
    """The node's name in the partition."""
    node: Node
    sent: list[Document] | None = None


class Outbox(msgspec.Struct, eq=False):
    """Items for the next update, by its lists."""

    nodes: list[Document] = []
    jobs: list[Document] = []
    recover: list[Document] = []
    asks: list[Document] = []
    releases: list[Document] = []


class State:
    """The state between a cluster and a partition."""

    def __init__(
        self,
        act: Callable[[Target], None],
        rules: Rules | None = None,
        scheduler: str = SCHEDULER,
        gate: str = GATE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.act = act
        """Starts an action; `done` or `refused` is called when it ends."""
        self.rules = rules or Rules()
        self.scheduler = scheduler
        self.gate = gate
        self.clock = clock
        self.objects = GroupObjects(self.touch_units)
        self.nodes: dict[str, KnownNode] = {}
        """Nodes by uid."""
        self.node_names: dict[str, str] = {}
        """Name in the partition → name in the cluster."""
        self.members: dict[str, Member] = {}
        """Pods that Fairlead schedules, by uid."""
        self.pinned: dict[str, Member] = {}
        """Pinned pods that are not bound yet."""
        self.units: dict[str, Unit] = {}
        """Units by key."""
        self.jobs: dict[str, Unit] = {}
        """Units by job."""
        self.others = Others()
        self.refusals = Refusals()
        self.ports: dict[str, None] = {}
        """Host ports that these pods ask for."""
        self.most_asks = MOST_ASKS
        self.changed = asyncio.Event()
        """Set when there is something to send."""
        self.adopted = False
        """True once the state of the partition was read; nothing is sent before."""
        self.starting = False
        """True from `adopt` to the first update without `more`, with which the partition becomes ready."""
        self.dirty_nodes: dict[str, None] = {}
        """Uids of nodes that may have to be sent."""
        self.dirty_units: dict[str, None] = {}
        """Keys of units that may have to be sent."""
        self.unbooked: dict[str, None] = {}
        """Units with bound pods whose use the partition does not know. They are sent before all other units."""
        self.out = Outbox()
        self.ending: dict[Task, str] = {}
        """Tasks whose release or withdrawal is not answered yet → why the task was lost; empty if it was not. No other
        pod may take these tasks."""
        self.answering: list[Task] = []
        """The tasks of `ending` that are in the update in progress."""

    def touch_units(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.units:
                self.dirty_units[key] = None
                self.changed.set()

    def touch_nodes(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.dirty_nodes[uid] = None
            self.changed.set()

    def node(self, name: str) -> Node | None:
        """Return the node of this name in the cluster."""
        known = self.nodes.get(self.others.node_of.get(name, ""))
        return known.node if known is not None else None

    def release(self, task: Task, lost: str = "") -> None:
        """Release an allocated task that has no pod any more. `lost` says why it was lost; empty if it was not."""
        how = {"lost": True, "reason": lost[:MAX_REASON]} if lost else {"withdraw": True}
        self.out.releases.append(task.item(**how))
        self.ending[task] = lost
        self.changed.set()

    def withdraw(self, task: Task) -> None:
        """Withdraw a waiting task."""
        self.out.asks.append(task.item(withdraw=True))
        self.ending[task] = ""
        self.changed.set()

    def recover(self, task: Task, node: str) -> None:
        """Have the task of a bound pod booked on the node of the pod."""
        self.out.recover.append(task.item(node=node))

    def count_unbooked(self, unit: Unit) -> None:
        """Count bound pods without a task as use by others, until the partition books them."""
        for member in unit.members.values():
            if member.bound and member.index < 0 and member.uid not in self.others:
                node = self.node_names.get(member.bound, member.bound)
                self.touch_nodes(self.others.count(member.uid, node, amounts_of(member, self.objects)))

    def booked(self, member: Member) -> None:
        """Record that the partition books a bound pod on its node. The pod's object is no longer needed."""
        member.pod = None
        self.touch_nodes(self.others.drop(member.uid))
