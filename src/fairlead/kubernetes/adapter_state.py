"""The adapter's state: what it knows of the cluster and of its partition, and the items queued for the partition.

`adapter.py` lists the functions that change it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Any

import msgspec

from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.budgets import Budgets
from fairlead.kubernetes.groups import GroupObjects
from fairlead.kubernetes.names import GATE, HOSTNAME, SCHEDULER
from fairlead.kubernetes.nodes import MAX_REASON, Amounts, Others, amounts_of, node_state
from fairlead.kubernetes.objects import Node, Pod
from fairlead.kubernetes.pods import used_by
from fairlead.kubernetes.quantities import add
from fairlead.kubernetes.rules import Rules
from fairlead.kubernetes.units import Member, Task, Unit

MOST_ASKS = 1_000
"""Number of known asks from which on those of removed pods are forgotten."""
MOST_EVENTS = 5_000
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
        schedulers: Collection[str] = (SCHEDULER,),
        gate: str = GATE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.act = act
        """Starts an action; `done` or `refused` is called when it ends."""
        self.rules = rules or Rules()
        self.schedulers = schedulers
        self.gate = gate
        self.clock = clock
        self.objects = GroupObjects(self.touch_units)
        self.nodes: dict[str, KnownNode] = {}
        """Nodes by uid."""
        self.node_names: dict[str, str] = {}
        """Name in the partition → name in the cluster."""
        self.members: dict[str, Member] = {}
        """Pods that Fairlead schedules, by uid."""
        self.nominated: dict[str, Member] = {}
        """Nominated pods that are not bound yet."""
        self.units: dict[str, Unit] = {}
        """Units by key."""
        self.jobs: dict[str, Unit] = {}
        """Units by job."""
        self.others = Others()
        self.budgets = Budgets(self.look_at_budgets)
        self.budgets_changed = False
        self.spared: list[str] | None = None
        """The jobs that the partition was last asked to spare; None if it was not asked."""
        self.closed: dict[str, None] = {}
        """Nodes, by their names in the partition, that are not up there."""
        self.suspects: dict[str, str] = {}
        """Nodes on which another scheduler bound a pod that Fairlead did not expect there → its uid."""
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
        self.events: deque[tuple[Member, str, str]] = deque(maxlen=MOST_EVENTS)
        """What was done with pods, to be written as events: pod, reason and text."""
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

    def look_at_budgets(self) -> None:
        """Ask the partition in the next update to spare the jobs that disruption budgets protect."""
        self.budgets_changed = True
        self.changed.set()

    def touch_nodes(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.dirty_nodes[uid] = None
            self.changed.set()

    def node(self, name: str) -> Node | None:
        """Return the node of this name in the cluster."""
        known = self.nodes.get(self.others.node_of.get(name, ""))
        return known.node if known is not None else None

    def note_state(self, name: str, state: str) -> None:
        """Record the state of a node in the partition."""
        if state == "up":
            self.closed.pop(name, None)
        else:
            self.closed[name] = None

    def kept_off(self) -> list[str]:
        """Return the hostnames of nodes that are drained or disabled only in Fairlead: other schedulers do not know."""
        names = (self.node_names[name] for name in self.closed if name in self.node_names)
        nodes = (node for name in sorted(names) if (node := self.node(name)) is not None)
        return [
            node.metadata.label(HOSTNAME) or node.metadata.name for node in nodes if node_state(node)[0] == "enable"
        ]

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

    def recover(self, task: Task, node: str, **keys: Any) -> None:
        """Have the task of a bound pod booked on the node of the pod. A new ask needs the keys of its stage."""
        self.out.recover.append(task.item(node=node, **keys))

    def count_unbooked(self, unit: Unit) -> None:
        """Count bound pods without a task as use by others, until the partition books them."""
        for member in unit.members.values():
            if member.bound and member.index < 0:
                self._count(member, amounts_of(member, self.objects))

    def booked(self, member: Member) -> None:
        """Record that the partition books a bound pod on its node. The pod's object is no longer needed."""
        pod, member.pod = member.pod, None
        if pod is None:
            self.touch_nodes(self.others.drop(member.uid))
        else:
            self.count_resize(member, pod)

    def count_resize(self, member: Member, pod: Pod) -> None:
        """Count what a booked pod uses more or less than its task, because it was resized in place."""
        used = used_by(pod)
        add(used, amounts_of(member, self.objects), -1)
        if used:
            self._count(member, used)
        else:
            self.touch_nodes(self.others.drop(member.uid))

    def _count(self, member: Member, amounts: Amounts) -> None:
        cluster_name = self.node_names.get(member.bound, member.bound)
        self.touch_nodes(self.others.count(member.uid, cluster_name, amounts))
