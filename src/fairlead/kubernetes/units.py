"""Units: the pods that become one job of the partition, and the task of each pod.

A unit is a gang, or a single pod. Its asks are stages of the job, its pods the tasks. Equal pods of an ask are
interchangeable, so after a restart pods and tasks are paired by node, and pods need no mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count

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
    """True if the pod has or had our gate: the cluster's own scheduler binds it."""
    pod: Pod | None
    """The pod's object, while it may be needed for an ask. Dropped once the job knows the bound pod."""
    ask: str = ""
    index: int = -1
    """The index of the pod's task; below 0 if it has none."""
    placed: str = ""
    """The node that the partition chose."""
    pinned: str = ""
    """The node that the pod was pinned to. The cluster's own scheduler binds the ungated pod there or not at all."""
    pinned_at: float = 0.0
    bound: str = ""
    """The node that the pod is bound to, according to the API server."""
    action: object = None
    """The action in progress for the pod."""
    stopping: bool = False
    """True if the pod was asked to stop."""
    lost: str = ""
    """Why the task counts as lost when the pod is gone: its scheduler refuses its node, or its node failed."""
    told: tuple[str, str] = ("", "")
    """Reason and text of the last condition that was written."""

    @property
    def fixed(self) -> str:
        """The node that the pod is bound or pinned to: it can run only there."""
        return self.bound or self.pinned

    @property
    def live(self) -> bool:
        """True if the pod's task is allocated, or its node is fixed."""
        return bool(self.placed or self.fixed)

    @property
    def can_be_asked_for(self) -> bool:
        """True if a task can be asked for or booked. A pinned pod is booked when it is bound."""
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
    """True if the job was killed or has failed, and its pods have to be deleted."""
    slots: dict[str, list[Member | None]] = {}
    """Ask → the pod of each task. A task without a pod has ended or was withdrawn."""
    why: tuple[str, str] = ("", "")
    """Reason and text why the unit is not sent: pods are missing, or the partition refuses it."""
    retry_at: float = 0.0
    """When to send a refused job again."""
    waiting_since: float = 0.0
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
        """Forget the tasks of all pods, because the job is gone or its state is read anew."""
        self.sent = self.ended = False
        self.slots = {}
        for member in self.members.values():
            member.index = -1

    def give(self, member: Member, index: int) -> None:
        """Assign a task of its ask to a pod."""
        slots = self.slots.setdefault(member.ask, [])
        slots += [None] * (index + 1 - len(slots))
        slots[index] = member
        member.index = index

    def take(self, member: Member) -> None:
        """Separate a pod from its task, so that another pod can have the task."""
        if member.index >= 0:
            self.slots[member.ask][member.index] = None
            member.index = -1

    def at(self, ask: str, index: int) -> Member | None:
        """Return the pod of a task."""
        slots = self.slots.get(ask, [])
        return slots[index] if index < len(slots) else None


def expand(flat: list[int]) -> Iterator[int]:
    """Yield the indices of ranges: start, end, start, end, …"""
    for start, end in zip(flat[::2], flat[1::2], strict=True):
        yield from range(start, end)


class Pairing(msgspec.Struct):
    """The tasks of an ask and their pods, matched after the state of the partition was read."""

    running: list[tuple[Member, int, str]]
    """Live tasks with the pods that run, or have to be bound, on their node: pod, index, node."""
    stopping: list[tuple[Member, int, str]]
    """Tasks that were asked to stop, with their pods."""
    recover: list[tuple[Member, int]]
    """Bound pods that the partition does not know on their node, with free tasks."""
    waiting: list[tuple[Member, int]]
    free: list[int]
    """Live tasks without a pod."""
    surplus: list[int]
    """Waiting tasks without a pod."""
    rest: list[Member]
    """Pods without a task."""

    def live(self, state: str) -> list[tuple[Member, int, str]]:
        """Return the list for live tasks in this state."""
        return self.stopping if state == "stopping" else self.running


def pair(ask: wire.ManagerAsk, pods: list[Member]) -> Pairing:
    """Pair the tasks of an ask with its pods: first bound and pinned pods with tasks on their node, then the others in
    order. A pinned pod without a task on its node gets none: it is recovered when it is bound."""
    pairing = Pairing([], [], [], [], [], [], [])
    by_node: dict[str, list[Member]] = {}
    unbound: list[Member] = []
    for member in pods:
        node = member.fixed or (member.placed if member.action is not None else "")
        (by_node.setdefault(node, []) if node else unbound).append(member)
    later: list[tuple[int, str, str]] = []
    for tasks in ask.live:
        for index in expand(tasks.indices):
            if here := by_node.get(tasks.node):
                pairing.live(tasks.state).append((here.pop(0), index, tasks.node))
            else:
                later.append((index, tasks.node, tasks.state))
    left = [member for here in by_node.values() for member in here]
    astray = [member for member in left if member.bound or not member.pinned]
    # A bound pod that the partition does not know gets a task that is not live, or a new one.
    waiting = list(expand(ask.waiting))
    indices = chain(reversed(waiting), reversed(list(expand(ask.ended))), count(ask.count))
    pairing.recover = list(zip(astray, indices, strict=False))
    for index, node, state in later:
        if unbound:
            pairing.live(state).append((unbound.pop(0), index, node))
        else:
            pairing.free.append(index)
    still = waiting[: max(0, len(waiting) - len(astray))]
    pairing.waiting = list(zip(unbound, still, strict=False))
    pairing.surplus = still[len(unbound) :]
    pairing.rest = unbound[len(still) :] + [member for member in left if member.pinned and not member.bound]
    return pairing
