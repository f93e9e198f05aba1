"""Units: the pods that become one job of the partition, and which pod is which task.

A unit is a gang, or a single pod. Its asks are stages of the job, its pods the tasks. Equal pods of an ask can stand
for each other, so after a restart pods and tasks are paired by node, and no pod needs a mark.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.kubernetes.groups import Group, Membership
from fairlead.kubernetes.objects import Pod
from fairlead.wire import api as wire


class Member(msgspec.Struct, eq=False):
    """A pod of ours that has not ended."""

    uid: str
    namespace: str
    name: str
    unit: Unit
    membership: Membership
    gated: bool
    """True if it has our gate, or had it: the cluster's own scheduler binds it."""
    pod: Pod | None
    """The object, while it may be needed to ask for it. A bound pod whose job knows it is not kept."""
    ask: str = ""
    index: int = -1
    """Its task; below 0 while the job has none for it."""
    placed: str = ""
    """The node that the partition chose."""
    pinned: str = ""
    """The node that it was pinned to. Its gate is removed: the cluster's own scheduler binds it there or not at all."""
    pinned_at: float = 0.0
    bound: str = ""
    """The node that it is bound to, by the API server's word."""
    action: object = None
    """The action under way for it."""
    stopping: bool = False
    """True if it was told to stop."""
    lost: str = ""
    """Why its task counts as lost when it is gone: its scheduler refuses its node, or its node failed."""
    told: tuple[str, str] = ("", "")
    """The reason and the text of the last condition that was written."""

    @property
    def fixed(self) -> str:
        """The node that it is bound or pinned to: it can run there or nowhere."""
        return self.bound or self.pinned

    @property
    def live(self) -> bool:
        """True if its task is allocated, or its node is fixed."""
        return bool(self.placed or self.fixed)

    @property
    def can_be_asked_for(self) -> bool:
        """True if a task can be asked for or booked: a pinned pod is booked when it is bound."""
        return bool(self.ask) and (bool(self.bound) or not self.pinned)


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
    """True if the job was killed or has failed, and its pods have to go."""
    slots: dict[str, list[Member | None]] = {}
    """Ask → the pod of each task. A task without a pod has ended or was withdrawn."""
    why: tuple[str, str] = ("", "")
    """Reason and text of why it is not sent: pods are missing, or the partition refuses it."""
    retry_at: float = 0.0
    """When a job that was refused is sent again."""
    waiting_since: float = 0.0
    missing: bool = False
    """True if it waits for more capacity than there is."""
    explained: float = 0.0
    """When it was last asked why it waits."""

    def live(self) -> bool:
        """True if a task is allocated or a pod bound."""
        return any(member.live for member in self.members.values())

    def pods(self) -> list[Pod]:
        return [member.pod for member in self.members.values() if member.pod is not None]

    def forget_tasks(self) -> None:
        """Forget which pod is which task: the job is gone, or its state is read anew."""
        self.sent = self.ended = False
        self.slots = {}
        for member in self.members.values():
            member.index = -1

    def give(self, member: Member, index: int) -> None:
        """Make a pod a task of its ask."""
        slots = self.slots.setdefault(member.ask, [])
        slots += [None] * (index + 1 - len(slots))
        slots[index] = member
        member.index = index

    def take(self, member: Member) -> None:
        """Take the task from a pod that is gone."""
        if member.index >= 0:
            self.slots[member.ask][member.index] = None
            member.index = -1

    def at(self, ask: str, index: int) -> Member | None:
        """Return the pod of a task."""
        slots = self.slots.get(ask, [])
        return slots[index] if index < len(slots) else None


def expand(flat: list[int]) -> Iterator[int]:
    """Yield the indices of ranges: start and end, start and end, …"""
    for start, end in zip(flat[::2], flat[1::2], strict=True):
        yield from range(start, end)


class Pairing(msgspec.Struct):
    """How the tasks of an ask and its pods belong together, after the state of the partition was read."""

    running: list[tuple[Member, int, str]]
    """Live tasks with the pods that run there, or that have to be bound there: pod, index, node."""
    stopping: list[tuple[Member, int, str]]
    """Tasks that were told to stop, with their pods."""
    recover: list[tuple[Member, int]]
    """Bound pods that the partition does not know there, with free tasks."""
    waiting: list[tuple[Member, int]]
    free: list[int]
    """Live tasks without a pod."""
    surplus: list[int]
    """Waiting tasks without a pod."""
    rest: list[Member]
    """Pods without a task."""


def pair(ask: wire.ManagerAsk, pods: list[Member]) -> Pairing:
    """Pair the tasks of an ask with its pods: bound and pinned pods with tasks on their node first, then the others in
    order. A pinned pod whose node has no task of the ask gets none: it is recovered when it is bound.
    """
    pairing = Pairing([], [], [], [], [], [], [])
    live = [(index, tasks.node, tasks.state) for tasks in ask.live for index in expand(tasks.indices)]
    by_node: dict[str, list[Member]] = {}
    unbound: list[Member] = []
    for member in pods:
        node = member.fixed or (member.placed if member.action is not None else "")
        if node:
            by_node.setdefault(node, []).append(member)
        else:
            unbound.append(member)
    later: list[tuple[int, str, str]] = []
    for index, node, state in live:
        here = by_node.get(node)
        if here:
            (pairing.stopping if state == "stopping" else pairing.running).append((here.pop(0), index, node))
        else:
            later.append((index, node, state))
    left = [member for here in by_node.values() for member in here]
    astray = [member for member in left if member.bound or not member.pinned]
    waiting, ended = list(expand(ask.waiting)), list(expand(ask.ended))
    # A bound pod that the partition does not know takes a task that is not live, or a new one.
    top = ask.count
    for member in astray:
        if waiting:
            index = waiting.pop()
        elif ended:
            index = ended.pop()
        else:
            index, top = top, top + 1
        pairing.recover.append((member, index))
    for index, node, state in later:
        if unbound:
            (pairing.stopping if state == "stopping" else pairing.running).append((unbound.pop(0), index, node))
        else:
            pairing.free.append(index)
    for index in waiting:
        if unbound:
            pairing.waiting.append((unbound.pop(0), index))
        else:
            pairing.surplus.append(index)
    pairing.rest = unbound + [member for member in left if member.pinned and not member.bound]
    return pairing
