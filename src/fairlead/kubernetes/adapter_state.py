"""The adapter's state: what it knows of the cluster and of its partition, and the items queued for the partition.

These modules change it: `cluster_events`, `partition_events`, `acting`, `adopting`, `job_items`, `updates` and
`upkeep`. `adapter.py` lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import msgspec

from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.free_capacity import amounts_of
from fairlead.kubernetes.groups import GroupObjects
from fairlead.kubernetes.names import GATE, HOSTNAME, SCHEDULER
from fairlead.kubernetes.nodes import MAX_REASON
from fairlead.kubernetes.objects import Node
from fairlead.kubernetes.others import Others
from fairlead.kubernetes.refusals import Refusals
from fairlead.kubernetes.rules import Rules
from fairlead.kubernetes.units import Member, Unit

MOST_ASKS = 1_000
"""Number of asks to keep before those of removed pods are forgotten."""
OURS = "kubernetes: "
"""The prefix of the reason of a node that the adapter drained or disabled. Nodes drained by operators stay drained."""

Document = dict[str, Any]
Task = tuple[str, str, int]
"""Job, ask and index."""


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
        """Pods of ours by uid."""
        self.pinned: dict[str, Member] = {}
        """Pinned pods that are not bound yet."""
        self.units: dict[str, Unit] = {}
        """Units by key."""
        self.jobs: dict[str, Unit] = {}
        """Units by job."""
        self.others = Others()
        self.refusals = Refusals()
        self.ports: dict[str, None] = {}
        """Host ports that pods of ours ask for."""
        self.most_asks = MOST_ASKS
        self.changed = asyncio.Event()
        """Set when there is something to send."""
        self.adopted = False
        """True once the state of the partition was read; nothing is sent before."""
        self.starting = False
        """True from `adopt` to the first update without `more`."""
        self.dirty_nodes: dict[str, None] = {}
        self.dirty_units: dict[str, None] = {}
        self.unbooked: dict[str, None] = {}
        """Units with bound pods that are neither booked nor counted. No other unit is sent before they are answered."""
        self.out = Outbox()
        self.ending: dict[Task, str] = {}
        """Tasks whose release or withdrawal is not answered yet → why they were lost, if they were. No pod may take
        them."""
        self.answering: list[Task] = []
        """The tasks of `ending` that are in the update in progress."""
        self.unstarted: list[Member] = []
        """Pods whose tasks the partition placed, and that are neither bound nor pinned."""

    def touch_units(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.units:
                self.dirty_units[key] = None
                self.changed.set()

    def touch_nodes(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.dirty_nodes[uid] = None
            self.changed.set()

    def hostname(self, name: str) -> str:
        known = self.nodes.get(self.others.node_of.get(name, ""))
        return known.node.metadata.label(HOSTNAME) if known is not None else ""

    def release(self, job: str, ask: str, index: int, lost: str = "") -> None:
        """Release a task that has no pod. `lost` is the reason for `on_loss`; empty if the task was not lost."""
        how = {"lost": True, "reason": lost[:MAX_REASON]} if lost else {"withdraw": True}
        self.out.releases.append({"job": job, "ask": ask, "index": index, **how})
        self.ending[job, ask, index] = lost
        self.changed.set()

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
