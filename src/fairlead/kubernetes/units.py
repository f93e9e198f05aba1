"""Units: pods that become one job of the partition, with the task of each pod.

A unit is a group of pods, or a single pod. Its asks are stages of the job, its pods the tasks. Equal pods of an ask are
interchangeable: after a restart, pods and tasks are paired by node, so pods need no mark for their task.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count
from typing import Any

import msgspec

from fairlead.kubernetes.groups import Group, Membership
from fairlead.kubernetes.objects import Pod
from fairlead.wire import api as wire
from fairlead.wire.index_spans import each_index


class Task(msgspec.Struct, frozen=True, gc=False):
    """A task of a job."""

    job: str
    ask: str
    index: int

    def item(self, **fields: object) -> dict[str, Any]:
        """Return an item of an update about this task."""
        return {"job": self.job, "ask": self.ask, "index": self.index, **fields}


class Member(msgspec.Struct, eq=False):
    """A pod that Fairlead schedules and that has not ended."""

    uid: str
    namespace: str
    name: str
    unit: Unit
    membership: Membership
    gated: bool
    """True if the pod has or had Fairlead's gate: the cluster's own scheduler binds it."""
    pod: Pod | None
    """The pod's object while an ask may need it; None once the partition has booked the bound pod."""
    labels: Mapping[str, str] = {}
    ask: str = ""
    index: int = -1
    """The index of the pod's task; below 0 if it has none."""
    placed: str = ""
    """The node that the partition chose."""
    nominated: str = ""
    """The node on which room is reserved for the ungated pod. The pod's own scheduler binds it there or elsewhere."""
    nominated_at: float = 0.0
    refused: str = ""
    """Why its own scheduler does not bind the nominated pod; empty if it may still do so."""
    bound: str = ""
    """The node that the pod is bound to, according to the API server."""
    action: object = None
    """The action in progress for the pod."""
    stopping: bool = False
    """True if the pod was asked to stop."""
    lost: str = ""
    """Why the task counts as lost when the pod is gone: its node failed, or its kubelet ended it."""
    told: tuple[str, str] = ("", "")
    """Reason and text that were last written to the pod."""

    @property
    def task(self) -> Task:
        """The pod's task. Only for a pod that has one."""
        return Task(self.unit.job, self.ask, self.index)

    @property
    def fixed(self) -> str:
        """The node that the pod is bound to, or that is reserved for it."""
        return self.bound or self.nominated

    @property
    def live(self) -> bool:
        """True if the pod's task is allocated, or its node is fixed."""
        return bool(self.placed or self.fixed)

    @property
    def can_be_asked_for(self) -> bool:
        """True if a task for the pod can be asked for or booked. A pod that lost its room is booked when bound."""
        return bool(self.ask) and (bool(self.bound) or not self.nominated)


class Unit(msgspec.Struct, eq=False):
    """Pods that become one job."""

    key: str
    job: str
    members: dict[str, Member] = {}
    """Pods by uid, in the order in which they were seen."""
    group: Group | None = None
    sent: bool = False
    """True if the partition has the job."""
    ended: bool = False
    """True if the job was killed or has failed, and its pods have to be deleted."""
    slots: dict[str, list[Member | None]] = {}
    """Ask → the pod of each task. A task without a pod has ended or was withdrawn."""
    minimum: dict[str, int] = {}
    """Ask → the number of its tasks that start together, as the partition knows it."""
    owner: tuple[str, str] = ("", "")
    """Queue and user for which the job was sent, if this adapter sent it."""
    why: tuple[str, str] = ("", "")
    """Reason and text why the unit is not sent: pods are missing, or the partition refuses it."""
    retry_at: float = 0.0
    """When to send a refused job again."""
    waiting_since: float = 0.0
    """When the job was sent; 0 if it is not."""
    missing: bool = False
    """True if the unit waits for missing capacity."""
    explained: float = 0.0
    """When its explanation was last requested."""

    def live(self) -> bool:
        """True if a task is allocated or a pod bound."""
        return any(member.live for member in self.members.values())

    def pods(self) -> list[Pod]:
        return [member.pod for member in self.members.values() if member.pod is not None]

    def forget_tasks(self) -> None:
        """Forget the job and the tasks of all pods: the partition has no such job, or its state is read again."""
        self.sent = self.ended = False
        self.slots = {}
        for member in self.members.values():
            member.index = -1

    def give(self, member: Member, index: int) -> None:
        """Give a pod the task `index` of its ask."""
        slots = self.slots.setdefault(member.ask, [])
        slots += [None] * (index + 1 - len(slots))
        slots[index] = member
        member.index = index

    def take(self, member: Member) -> None:
        """Take a pod's task, if it has one, so that another pod can get it."""
        if member.index >= 0:
            self.slots[member.ask][member.index] = None
            member.index = -1

    def at(self, ask: str, index: int) -> Member | None:
        """Return the pod of a task."""
        slots = self.slots.get(ask, [])
        return slots[index] if index < len(slots) else None


class Pairing(msgspec.Struct):
    """The tasks of an ask with their pods, after the state of the partition was read."""

    live: list[tuple[Member, int, str, bool]] = []
    """Allocated tasks with the pods that run, or have to be bound, on their node: pod, index, node, and True if the
    task has to stop."""
    recover: list[tuple[Member, int]] = []
    """Bound pods that the partition does not have on their node, with the index of the task to book there."""
    waiting: list[tuple[Member, int]] = []
    """Pods that are not bound, with a waiting task."""
    free: list[int] = []
    """Allocated tasks without a pod."""
    surplus: list[int] = []
    """Waiting tasks without a pod."""


def pair(ask: wire.ManagerAsk, pods: list[Member]) -> Pairing:
    """Pair the tasks of an ask with its pods: first bound and nominated pods with tasks on their node, then the others
    in order. A nominated pod without a task on its node gets none: it is recovered when it is bound."""
    pairing = Pairing()
    by_node, unbound = _by_node(pods)
    later: list[tuple[int, str, bool]] = []
    for tasks in ask.live:
        stops = tasks.state == "stopping"
        for index in each_index(tasks.indices):
            if here := by_node.get(tasks.node):
                pairing.live.append((here.pop(0), index, tasks.node, stops))
            else:
                later.append((index, tasks.node, stops))
    unknown = [member for here in by_node.values() for member in here if member.bound or not member.nominated]
    # A bound pod that the partition does not have gets a task that is not allocated, or a new one.
    waiting = list(each_index(ask.waiting))
    indices = chain(reversed(waiting), reversed(list(each_index(ask.ended))), count(ask.count))
    pairing.recover = list(zip(unknown, indices, strict=False))
    for index, node, stops in later:
        if unbound:
            pairing.live.append((unbound.pop(0), index, node, stops))
        else:
            pairing.free.append(index)
    still = waiting[: max(0, len(waiting) - len(unknown))]
    pairing.waiting = list(zip(unbound, still, strict=False))
    pairing.surplus = still[len(unbound) :]
    return pairing


def _by_node(pods: list[Member]) -> tuple[dict[str, list[Member]], list[Member]]:
    """Return the pods that have a node, or are about to get it, by node, and the other pods."""
    by_node: dict[str, list[Member]] = {}
    unbound: list[Member] = []
    for member in pods:
        node = member.fixed or (member.placed if member.action is not None else "")
        (by_node.setdefault(node, []) if node else unbound).append(member)
    return by_node, unbound
