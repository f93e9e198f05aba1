"""The adapter: a resource manager whose nodes and jobs are those of a Kubernetes cluster.

It holds what the watches told, and turns it into updates for a partition; it takes the partition's decisions, and turns
them into actions on pods. It makes no call itself: `main.py` connects it with the watches, the link and the performer.
Layout: what the watches tell, what the partition decides, what actions bring about, and updates for the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

import msgspec

from fairlead.kubernetes.actions import Target, Verb
from fairlead.kubernetes.groups import Group, GroupObjects, group_of, membership
from fairlead.kubernetes.link import Items
from fairlead.kubernetes.names import GATE, HOSTNAME, PINNED, SCHEDULER, job_id, node_name
from fairlead.kubernetes.nodes import MAX_REASON, node_items
from fairlead.kubernetes.objects import Node, Pod
from fairlead.kubernetes.others import Others
from fairlead.kubernetes.pods import Needs, needs_of
from fairlead.kubernetes.refusals import Refusals
from fairlead.kubernetes.rooms import Rooms, amounts_of
from fairlead.kubernetes.rules import Rules
from fairlead.kubernetes.units import Member, Unit, expand, pair
from fairlead.wire import api as wire

MOST_ITEMS = 1_000
"""Items of one update. More are sent in several."""
RETRY_REFUSED = 10.0
"""Seconds after which a job that the partition refused is sent again: its queue may exist by then."""
PINNED_WITHIN = 30.0
"""Seconds for which a pinned pod may be refused by its scheduler before it is taken back."""
MOST_ASKS = 1_000
"""Asks that are kept before those of pods that are gone are forgotten."""
OURS = "kubernetes: "
"""The start of the reason of a node that the adapter drained or disabled. What operators drain stays drained."""

Document = dict[str, Any]
Task = tuple[str, str, int]
"""Job, ask and index."""
ONE_BY_ONE: Document = {"scaling": "partial"}
"""Pods that come after the first of a group start as there is room, not all together."""


class KnownNode(msgspec.Struct, eq=False):
    """A node of the cluster, and the items that were last sent for it."""

    name: str
    """Its name in the partition."""
    node: Node
    sent: list[Document] | None = None


class Adapter:
    """The state between a cluster and a partition."""

    def __init__(
        self,
        act: Callable[[Target], None],
        rules: Rules | None = None,
        scheduler: str = SCHEDULER,
        gate: str = GATE,
    ) -> None:
        self._act = act
        self._rules = rules or Rules()
        self._scheduler = scheduler
        self._gate = gate
        self.objects = GroupObjects(self._touch_units)
        self.nodes: dict[str, KnownNode] = {}
        """Nodes by uid."""
        self._node_names: dict[str, str] = {}
        """Name in the partition → name in the cluster."""
        self.members: dict[str, Member] = {}
        self.pinned: dict[str, Member] = {}
        """Pinned pods that are not bound yet."""
        self.units: dict[str, Unit] = {}
        """Units by key."""
        self.jobs: dict[str, Unit] = {}
        """Units by job."""
        self.others = Others()
        self.changed = asyncio.Event()
        """Set when there is something to send."""
        self.adopted = False
        """True once the state of the partition was read; nothing is sent before."""
        self._ports: dict[str, None] = {}
        """Host ports that pods of ours ask for."""
        self._dirty_nodes: dict[str, None] = {}
        self._dirty_units: dict[str, None] = {}
        self._unbooked: dict[str, None] = {}
        """Units with bound pods that are neither booked nor counted: no other unit is sent before they are answered."""
        self._starting = False
        """True from `adopt` to the first update without `more`."""
        self._removed: list[Document] = []
        self._jobs: list[Document] = []
        self._recover: list[Document] = []
        self._asks: list[Document] = []
        self._releases: list[Document] = []
        self._ending: dict[Task, str] = {}
        """Tasks whose release or withdrawal is not answered yet, with the reason if they were lost; no pod may take
        them."""
        self._answering: list[Task] = []
        self._unstarted: list[Member] = []
        """Pods of tasks that the partition placed, and that are neither bound nor pinned."""
        self._refusals = Refusals()
        self._most_asks = MOST_ASKS

    # -- what the watches tell -----------------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        known = self.nodes.get(node.metadata.uid)
        if known is None:
            known = self.nodes[node.metadata.uid] = KnownNode(node_name(node.metadata.name), node)
            self._node_names[known.name] = node.metadata.name
            self.others.node_of[node.metadata.name] = node.metadata.uid
        known.node = node
        self._dirty_nodes[node.metadata.uid] = None
        self.changed.set()

    def drop_node(self, uid: str) -> None:
        known = self.nodes.pop(uid, None)
        self._dirty_nodes.pop(uid, None)
        if known is None:
            return
        if self.others.node_of.get(known.node.metadata.name) == uid:
            del self.others.node_of[known.node.metadata.name]
            del self._node_names[known.name]
        if known.sent is not None:
            self._removed.append({"name": known.name, "action": "remove"})
            for member in self.members.values():  # their tasks are lost with the node
                if known.name in (member.fixed, member.placed):
                    self._lost_with_node(member)
            self.changed.set()

    def put_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._is_ours(pod):
            self._put_own(pod)
            return
        member = self.members.get(uid)
        if member is not None:
            self._note_loss(member, pod)
            self._gone(member)
        self._touch_nodes(self.others.put(pod))

    def drop_pod(self, uid: str) -> None:
        member = self.members.get(uid)
        if member is not None:
            self._gone(member)
        self._touch_nodes(self.others.drop(uid))

    def _is_ours(self, pod: Pod) -> bool:
        if pod.ended:
            return False
        # A pod with a gate of another controller is not to be scheduled yet.
        gates = {gate.name for gate in pod.spec.scheduling_gates or ()}
        if gates - {self._gate}:
            return False
        return bool(gates) or pod.spec.scheduler_name == self._scheduler or bool(pod.metadata.annotation(PINNED))

    def _put_own(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        bound = node_name(pod.spec.node_name) if pod.spec.node_name else ""
        member = self.members.get(uid)
        if member is None:
            if pod.metadata.deletion_timestamp and not bound:
                return
            self._add(pod, bound)
            return
        if pod.metadata.deletion_timestamp and not bound and not member.bound and member.action is None:
            self._gone(member)
            return
        if not bound:
            member.pod = pod
            self._note_pin(member, pod)
        elif member.bound != bound:
            member.bound = bound
            member.lost = ""
            self.pinned.pop(member.uid, None)
            if member.placed == bound:
                member.pod = None
            else:  # bound by another scheduler, or before the partition decided
                self._astray(member)
        self._note_loss(member, pod)

    def _add(self, pod: Pod, bound: str) -> None:
        belongs = membership(pod)
        unit = self.units.get(belongs.key)
        if unit is None:
            unit = self.units[belongs.key] = Unit(belongs.key, job_id(belongs), {}, slots={})
            self.jobs[unit.job] = unit
        gated = pod.spec.scheduler_name != self._scheduler
        member = Member(
            pod.metadata.uid, pod.metadata.namespace, pod.metadata.name, unit, belongs, gated, pod, bound=bound
        )
        if not bound:
            self._note_pin(member, pod)
        self.members[member.uid] = unit.members[member.uid] = member
        self._touch_units((unit.key,))
        if bound:
            self._unbooked[unit.key] = None

    def _note_pin(self, member: Member, pod: Pod) -> None:
        """Take note that a pod has lost its gate, so that its node cannot be changed."""
        node = pod.metadata.annotation(PINNED)
        if node and not pod.spec.scheduling_gates and not member.pinned:
            member.pinned, member.pinned_at = node, monotonic()
            self.pinned[member.uid] = member

    def _note_loss(self, member: Member, pod: Pod) -> None:
        """Take note that the cluster removes or has ended a bound pod. A pod that was told to stop is no loss."""
        if member.bound and not member.stopping:
            member.lost = pod.disrupted

    def _gone(self, member: Member) -> None:
        """Forget a pod that has ended or was deleted, and release its task."""
        unit = member.unit
        del self.members[member.uid]
        self.pinned.pop(member.uid, None)
        del unit.members[member.uid]
        if isinstance(member.action, Target):
            member.action.cancelled = True
        follows = unit.group is not None and unit.group.follows_loss and bool(member.lost and member.placed)
        if unit.sent and member.index >= 0 and (unit.members or follows):
            task = {"job": unit.job, "ask": member.ask, "index": member.index}
            if follows:
                self._releases.append({**task, "lost": True, "reason": member.lost[:MAX_REASON]})
            else:
                (self._releases if member.live else self._asks).append({**task, "withdraw": True})
            self._ending[unit.job, member.ask, member.index] = member.lost if follows else ""
        unit.take(member)
        self._touch_units((unit.key,))

    def _lost_with_node(self, member: Member) -> None:
        """The partition loses the task with its node. The pod is deleted by the cluster, or asked for again."""
        unit = member.unit
        member.placed = ""
        if member.index >= 0:
            unit.take(member)
        if not member.fixed:
            self._touch_units((unit.key,))

    def _astray(self, member: Member) -> None:
        """Book a pod where it is bound, whatever the partition decided."""
        unit = member.unit
        if isinstance(member.action, Target):
            member.action.cancelled = True
            member.action = None
        if unit.sent and member.index >= 0:
            task = {"job": unit.job, "ask": member.ask, "index": member.index}
            if member.placed:
                self._releases.append({**task, "withdraw": True})
                self._ending[unit.job, member.ask, member.index] = ""
                unit.take(member)
            else:
                self._recover.append({**task, "node": member.bound})
                self.changed.set()
                return
        member.placed = ""
        self._touch_units((unit.key,))
        self._unbooked[unit.key] = None

    def _count_unbooked(self, unit: Unit) -> None:
        """Count bound pods without a task as use by others, until the partition books them."""
        for member in unit.members.values():
            if member.bound and member.index < 0 and member.uid not in self.others:
                node = self._node_names.get(member.bound, member.bound)
                self._touch_nodes(self.others.count(member.uid, node, amounts_of(member, self.objects)))

    def _touch_units(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.units:
                self._dirty_units[key] = None
                self.changed.set()

    def _touch_nodes(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._dirty_nodes[uid] = None
            self.changed.set()

    # -- what the partition decides ------------------------------------------------------------------------------

    def take_events(self, events: Iterable[wire.ManagerEvent]) -> None:
        for event in events:
            if event.what == "node":
                continue
            unit = self.jobs.get(event.job)
            if event.what == "ended":
                if unit is not None and unit.sent:
                    unit.ended = True
                    self._killed(unit)
            elif event.what == "allocated":
                for index in expand(event.indices):
                    self._allocated(unit, event.job, event.ask, index, event.node)
            elif event.what == "release":
                for index in expand(event.indices):
                    self._stop(unit, event.job, event.ask, index, event.reason)

    def _allocated(self, unit: Unit | None, job: str, ask: str, index: int, node: str) -> None:
        member = unit.at(ask, index) if unit is not None and unit.sent else None
        if member is None:
            if (job, ask, index) not in self._ending:
                self._release(job, ask, index)
            return
        if member.fixed:
            if member.fixed == node:
                member.placed = node
                if member.bound:
                    self._booked(member)
        elif not (member.placed == node and member.action is not None):
            member.placed = node
            member.stopping = False
            self._begin(member, "pin" if member.gated else "bind")

    def _booked(self, member: Member) -> None:
        """Take note that the partition books a bound pod where it is. Its object is not needed any more."""
        member.pod = None
        self._touch_nodes(self.others.drop(member.uid))

    def _stop(self, unit: Unit | None, job: str, ask: str, index: int, cause: str) -> None:
        """Stop a task: evict its pod, or take back a binding that was not sent."""
        member = unit.at(ask, index) if unit is not None and unit.sent else None
        if member is None:
            if (job, ask, index) not in self._ending:
                self._release(job, ask, index)
            return
        action = member.action
        if not member.fixed and isinstance(action, Target) and action.verb in ("bind", "pin") and not action.begun:
            action.cancelled = True
            action = member.action = None
        if not member.fixed and action is None:
            member.placed = ""
            self._releases.append({"job": job, "ask": ask, "index": index})
            self.changed.set()
            return
        member.stopping = True
        if action is None:
            self._begin(member, "delete" if cause == "kill" else "evict")

    def _killed(self, unit: Unit) -> None:
        """Delete the pods of a job that was killed. They would be asked for again otherwise."""
        for member in unit.members.values():
            member.stopping = True
            if not member.live and member.action is None:
                self._begin(member, "delete")

    def _release(self, job: str, ask: str, index: int, lost: str = "") -> None:
        """Release a task for which there is no pod. `lost` says why it follows `on_loss`; empty if it does not."""
        how = {"lost": True, "reason": lost[:MAX_REASON]} if lost else {"withdraw": True}
        self._releases.append({"job": job, "ask": ask, "index": index, **how})
        self._ending[job, ask, index] = lost
        self.changed.set()

    def _begin(self, member: Member, verb: Verb) -> None:
        target = Target(verb, member.namespace, member.name, member.uid, member)
        if verb in ("bind", "pin"):
            cluster_name = self._node_names.get(member.placed)
            if cluster_name is None:
                self._lose(member, f"node {member.placed} is gone")
                return
            target.node = cluster_name
        if verb == "pin":
            assert member.pod is not None
            target.body = pin_patch(member.pod, self._gate, target.node, self._hostname(target.node), member.placed)
        member.action = target
        self._act(target)

    def _hostname(self, name: str) -> str:
        known = self.nodes.get(self.others.node_of.get(name, ""))
        return known.node.metadata.label(HOSTNAME) if known is not None else ""

    # -- what actions bring about --------------------------------------------------------------------------------

    def done(self, target: Target) -> None:
        """Take note of a call that succeeded, or of a pod that is gone or bound already, which the watch tells."""
        member = target.owner
        assert isinstance(member, Member)
        if member.action is not target:
            return
        member.action = None
        if target.confirmed and target.verb == "bind" and not member.bound:
            member.bound = member.placed
            member.pod = None
        elif target.confirmed and target.verb == "pin" and not member.fixed and member.uid in self.members:
            member.pinned, member.pinned_at = member.placed, monotonic()
            self.pinned[member.uid] = member
        if member.stopping and target.verb in ("bind", "pin") and member.uid in self.members:
            self._begin(member, "evict")

    def refused(self, target: Target, problem: str) -> None:
        """Report a task that cannot be started as lost. A pod that cannot be evicted stays."""
        member = target.owner
        assert isinstance(member, Member)
        if member.action is not target:
            return
        member.action = None
        if target.verb in ("bind", "pin") and member.uid in self.members:
            self._lose(member, problem)

    def _lose(self, member: Member, problem: str) -> None:
        """Give back a task whose pod could not be bound: it follows `on_loss`."""
        unit = member.unit
        member.placed = ""
        if unit.sent and member.index >= 0:
            task = {"job": unit.job, "ask": member.ask, "index": member.index}
            self._releases.append(task if member.stopping else {**task, "lost": True, "reason": problem[:MAX_REASON]})
            self.changed.set()
        member.stopping = False

    # -- updates for the partition -------------------------------------------------------------------------------

    def adopt(self, state: wire.ManagerState) -> None:
        """Compare the state of the partition with the cluster, and queue what differs. Call it when all lists are
        complete, and again after each new connection to the partition."""
        self._removed, self._jobs, self._recover, self._asks, self._releases = [], [], [], [], []
        # The partition may not have heard of losses. Tasks of an ask are equal, so any of them without a pod is lost.
        losses: dict[tuple[str, str], list[str]] = {}
        for (job_name, ask, _), reason in self._ending.items():
            if reason:
                losses.setdefault((job_name, ask), []).append(reason)
        self._ending.clear()
        self._answering.clear()
        self._dirty_units = dict.fromkeys(self.units)
        self._unbooked = {}
        self._starting = True
        names = {known.name for known in self.nodes.values()}
        states = {node.name: node for node in state.nodes}
        self._removed += [{"name": name, "action": "remove"} for name in states if name not in names]
        for uid, known in self.nodes.items():
            before = states.get(known.name)
            mine = before is not None and before.state != "up" and before.reason.startswith(OURS)
            known.sent = [{"action": "drain"}] if mine else None
            self._dirty_nodes[uid] = None
        for unit in self.units.values():
            unit.forget_tasks()
        for job in state.jobs:
            known_unit = self.jobs.get(job.job)
            if known_unit is None or not known_unit.members:
                self._drop_job(job)
            else:
                self._adopt_job(known_unit, job, losses)
        # Tasks that wait there can be placed at any moment.
        waits = any(ask.waiting for job in state.jobs for ask in job.asks)
        for unit in self.units.values():
            if any(member.bound and not member.placed for member in unit.members.values()):
                self._unbooked[unit.key] = None
                if waits:
                    self._count_unbooked(unit)
        self._start_again()
        self.adopted = True
        self.changed.set()

    def _drop_job(self, job: wire.ManagerJob) -> None:
        if job.over:
            self._releases.append({"job": job.job, "withdraw": True})
        else:
            self._jobs.append({"job": job.job, "remove": True})

    def _adopt_job(self, unit: Unit, job: wire.ManagerJob, losses: Mapping[tuple[str, str], list[str]]) -> None:
        self._shape(unit)
        unit.sent = True
        unit.ended = job.over
        by_ask: dict[str, list[Member]] = {}
        for member in unit.members.values():
            by_ask.setdefault(member.ask, []).append(member)
        for ask in job.asks:
            unit.slots[ask.ask] = [None] * ask.count
            pairing = pair(ask, by_ask.pop(ask.ask, []))
            for member, index, node in pairing.running:
                unit.give(member, index)
                member.placed = node
                if member.bound:
                    self._booked(member)
                elif not member.pinned and member.action is None:
                    self._unstarted.append(member)
            for member, index, node in pairing.stopping:
                unit.give(member, index)
                member.placed = node
                self._stop(unit, unit.job, ask.ask, index, "")
            for member, index in pairing.recover:
                unit.give(member, index)
                node = member.fixed or member.placed
                self._recover.append({"job": unit.job, "ask": ask.ask, "index": index, "node": node})
            for member, index in pairing.waiting:
                unit.give(member, index)
                member.placed = ""
            for index in pairing.free:
                lost = losses.get((unit.job, ask.ask))
                self._release(unit.job, ask.ask, index, lost.pop() if lost else "")
            for index in pairing.surplus:
                self._asks.append({"job": unit.job, "ask": ask.ask, "index": index, "withdraw": True})
                self._ending[unit.job, ask.ask, index] = ""

    def _start_again(self) -> None:
        """Bind or pin pods that the partition placed before. The cluster may have changed since, so their nodes are
        looked at again; a task without room is lost."""
        unstarted, self._unstarted = self._unstarted, []
        rooms = Rooms(self.members.values(), {member.placed for member in unstarted}, self.objects, self.others)
        for member in unstarted:
            known = self.nodes.get(self.others.node_of.get(self._node_names.get(member.placed, ""), ""))
            problem = rooms.take(member, known.node) if known is not None else ""
            if problem:
                self._lose(member, problem)
            else:
                self._begin(member, "pin" if member.gated else "bind")

    def update(self) -> Items | None:
        """Return the next update, or None if there is nothing to send."""
        self.changed.clear()
        if not self.adopted:
            return None
        items: Items = {"nodes": self._removed, "jobs": self._jobs}
        self._removed, self._jobs = [], []
        for uid in list(self._dirty_nodes):
            if len(items["nodes"]) >= MOST_ITEMS:
                break
            del self._dirty_nodes[uid]
            items["nodes"] += self._node_items(uid)
        now = monotonic()
        first = bool(self._unbooked)
        if not self._dirty_nodes:  # no job before all nodes are there
            for key in list(self._unbooked or self._dirty_units):
                if len(items["jobs"]) + len(self._asks) + len(self._recover) >= MOST_ITEMS or self._dirty_nodes:
                    break
                unit = self.units.get(key)
                self._unbooked.pop(key, None)
                if unit is not None and unit.retry_at > now:
                    self._count_unbooked(unit)
                    continue
                self._dirty_units.pop(key, None)
                if unit is not None:
                    items["jobs"] += self._job_items(unit)
        items["recover"], items["asks"], items["releases"] = self._recover, self._asks, self._releases
        self._recover, self._asks, self._releases = [], [], []
        self._answering = list(self._ending)
        # Units that are tried again later do not hold up readiness; bound pods that may be refused do.
        more = (
            first
            or bool(self._dirty_nodes)
            or any(key in self.units and self.units[key].retry_at <= now for key in self._dirty_units)
        )
        if more:
            items["more"] = True
            self.changed.set()
        if not more and not any(items.values()) and not self._starting:
            return None
        self._starting = self._starting and more
        return {key: value for key, value in items.items() if value}

    def _node_items(self, uid: str) -> list[Document]:
        known = self.nodes.get(uid)
        if known is None:
            return []
        used = self.others.used(known.node.metadata.name)
        items = node_items(known.node, used, self._ports, known.sent)
        for item in items:
            if item.get("reason"):
                item["reason"] = OURS + item["reason"]
        if items == known.sent:
            return []
        known.sent = items
        return items

    def _job_items(self, unit: Unit) -> list[Document]:
        """Return the items that bring the job of a unit up to date; its asks and recoveries are queued."""
        if not unit.members:
            if any(job == unit.job for job, _, _ in self._ending):
                return []  # the loss of its last task is told first
            del self.units[unit.key]
            del self.jobs[unit.job]
            return [{"job": unit.job, "remove": True}] if unit.sent else []
        removed: list[Document] = []
        if unit.ended:
            if any(member.live or member.stopping for member in unit.members.values()):
                return []  # pods that came since are a new job, when the old ones are gone
            unit.forget_tasks()
            removed = [{"job": unit.job, "remove": True}]
        self._shape(unit)
        if self._dirty_nodes:  # a port that no node has yet: the nodes come first
            self._dirty_units[unit.key] = None
            self._count_unbooked(unit)
            return removed
        if unit.sent and unit.why[1] and not unit.live():
            unit.forget_tasks()  # part of a gang is of no use: it waits for the other pods
            unit.waiting_since = 0.0
            return [{"job": unit.job, "remove": True}]
        if unit.sent:
            self._grow(unit)
            self._count_unbooked(unit)
            return []
        if unit.why[1] or unit.group is None or not any(member.can_be_asked_for for member in unit.members.values()):
            self._count_unbooked(unit)
            return removed
        return [*removed, self._new_job(unit, unit.group)]

    def _shape(self, unit: Unit) -> None:
        """Work out the group of a unit and the asks of its pods. `unit.why` tells if it cannot be asked for."""
        pods = unit.pods()
        group = unit.group
        if group is None or len(pods) == len(unit.members):  # objects of bound pods are not kept
            first = next(iter(unit.members.values()))
            group = unit.group = group_of(first.membership, pods, self.objects, self._rules)
        unit.why = ("GangIncomplete", group.waits_for) if group.waits_for and not unit.live() else ("", "")
        for member in unit.members.values():
            if member.ask or member.pod is None:
                continue
            needs = needs_of(member.pod, group, member.gated)
            if not isinstance(needs, Needs):
                unit.why = ("NotHonoured", "; ".join(map(str, needs)))
                continue
            controller = member.pod.metadata.controller
            if member.gated and controller is not None:
                needs = self._refusals.apply(controller.uid, needs)
            member.ask = group.ask(member.membership, needs)
            for port in needs.ports:
                if port not in self._ports:  # every node has one of each port that pods ask for
                    self._ports[port] = None
                    self._dirty_nodes = dict.fromkeys(self.nodes)

    def _new_job(self, unit: Unit, group: Group) -> Document:
        counts: dict[str, int] = {}
        bound = False
        for member in unit.members.values():
            if not member.can_be_asked_for:
                continue
            index = counts.get(member.ask, 0)
            counts[member.ask] = index + 1
            unit.give(member, index)
            if member.bound:
                bound = True
                self._recover.append({"job": unit.job, "ask": member.ask, "index": index, "node": member.bound})
        unit.sent = True
        unit.waiting_since = monotonic()
        stages = [{**stage, **ONE_BY_ONE} for stage in group.stages(counts)]
        whole = len(stages) > 1 and not bound and group.is_gang
        return {**group.job_item(), "stages": stages, **({"gang": "job"} if whole else {})}

    def _grow(self, unit: Unit) -> None:
        """Find tasks for pods without one: a task that has ended, or a new one."""
        grown: dict[str, bool] = {}
        for member in unit.members.values():
            if member.index >= 0 or not member.can_be_asked_for:
                continue
            known = member.ask in unit.slots
            slots = unit.slots.setdefault(member.ask, [])
            free = [at for at, other in enumerate(slots) if other is None]
            index = next((at for at in free if (unit.job, member.ask, at) not in self._ending), None)
            if index is None and free:
                continue  # the next update asks for it, when its release is answered
            if index is None:
                index = len(slots)
                grown.setdefault(member.ask, known)
            elif not member.bound:
                self._asks.append({"job": unit.job, "ask": member.ask, "index": index})
            unit.give(member, index)
            if member.bound:
                self._recover.append({"job": unit.job, "ask": member.ask, "index": index, "node": member.bound})
        for ask, known in grown.items():
            count = len(unit.slots[ask])
            if known:
                self._asks.append({"job": unit.job, "ask": ask, "count": count})
            elif unit.group is not None:
                (stage,) = unit.group.stages({ask: count})
                del stage["name"]
                self._asks.append({"job": unit.job, "ask": ask, **stage, **ONE_BY_ONE})

    def answered(self, items: Items, answers: list[wire.UpdateItem]) -> list[str]:
        """Take the answers of an update; return the problems for the log."""
        for task in self._answering:
            self._ending.pop(task, None)
            unit = self.jobs.get(task[0])
            if unit is not None and (not unit.members or any(member.index < 0 for member in unit.members.values())):
                self._touch_units((unit.key,))
        self._answering = []
        problems: list[str] = []
        recoveries = iter(items.get("recover", ()))
        for answer in answers:
            recovery = next(recoveries, None) if answer.what == "recover" else None
            if answer.accepted:
                continue
            if recovery is not None:
                self._not_recovered(recovery)
            problems.append(f"{answer.what} {answer.name}: {answer.reason}")
            unit = self.jobs.get(answer.name.partition("/")[0]) if answer.what != "node" else None
            if unit is not None and answer.what in ("job", "recover", "ask"):
                self._refused_job(unit, answer)
        return problems

    def _not_recovered(self, recovery: Document) -> None:
        """Take the task back from a bound pod that the partition does not book. It gets one when it is sent again."""
        unit = self.jobs.get(recovery["job"])
        member = unit.at(recovery["ask"], recovery["index"]) if unit is not None and unit.sent else None
        if unit is not None and member is not None:
            self._asks.append({key: recovery[key] for key in ("job", "ask", "index")} | {"withdraw": True})
            self._ending[unit.job, member.ask, member.index] = ""
            unit.take(member)

    def _refused_job(self, unit: Unit, answer: wire.UpdateItem) -> None:
        if answer.what == "job" and unit.sent:
            unit.forget_tasks()
        # A resource that no node has may come with nodes that an autoscaler buys.
        unit.why = ("Unschedulable" if "no node or pool offers" in answer.reason else "Refused", answer.reason)
        unit.retry_at = monotonic() + RETRY_REFUSED
        self._dirty_units[unit.key] = None
        self._count_unbooked(unit)

    def retry(self) -> None:
        """Look again at units that were refused a while ago, and at pinned pods. Called from time to time."""
        now = monotonic()
        self._forget_asks()
        self._forget_refusals(now)
        for member in list(self.pinned.values()):
            if now - member.pinned_at > PINNED_WITHIN and not member.stopping and member.action is None:
                self._take_back(member)
        if any(key in self.units and 0 < self.units[key].retry_at <= now for key in self._dirty_units):
            self.changed.set()

    def _take_back(self, member: Member) -> None:
        """Evict a pinned pod that its scheduler refuses, if its controller makes another one."""
        pod = member.pod
        if pod is None:
            return
        problem = pod.refused if member.pinned in self._node_names else f"node {member.pinned} is gone"
        if not problem:
            member.lost = ""
        elif not member.lost:
            member.lost = f"{pod.spec.scheduler_name} does not bind it to {member.pinned}: {problem}"
            if pod.metadata.controller is not None:
                if member.pinned in self._node_names:
                    self._refusals.add(pod.metadata.controller.uid, self._node_names[member.pinned], monotonic())
                self._begin(member, "evict")

    def _forget_refusals(self, now: float) -> None:
        """Ask anew for waiting pods that may use a node again which was refused before."""
        over = self._refusals.expire(now)
        for member in self.members.values() if over else ():
            controller = member.pod.metadata.controller if member.pod is not None else None
            if member.gated and not member.live and controller is not None and controller.uid in over:
                if member.unit.sent and member.index >= 0:
                    task = {"job": member.unit.job, "ask": member.ask, "index": member.index}
                    self._asks.append({**task, "withdraw": True})
                    self._ending[member.unit.job, member.ask, member.index] = ""
                member.unit.take(member)
                member.ask = ""
                self._touch_units((member.unit.key,))

    def _forget_asks(self) -> None:
        """Forget asks and host ports of pods that are gone, when they may be the most of all that are known."""
        if len(self.objects.asks) < self._most_asks:
            return
        self.objects.keep_asks({member.ask for member in self.members.values()})
        self._most_asks = max(MOST_ASKS, 2 * len(self.objects.asks))
        ports = {port: None for _, needs in self.objects.asks.values() for port in needs.ports}
        if ports != self._ports:
            self._ports = ports
            self._dirty_nodes = dict.fromkeys(self.nodes)
            self.changed.set()


def pin_patch(pod: Pod, gate: str, node: str, hostname: str, name: str) -> bytes:
    """Return the JSON patch that pins a gated pod to a node and removes our gate."""
    gates = [other.name for other in pod.spec.scheduling_gates or ()]
    at = gates.index(gate)
    patch: list[Document] = [
        {"op": "test", "path": f"/spec/schedulingGates/{at}/name", "value": gate},
        {"op": "remove", "path": f"/spec/schedulingGates/{at}"},
    ]
    if pod.spec.node_selector:
        patch.append({"op": "add", "path": "/spec/nodeSelector/kubernetes.io~1hostname", "value": hostname or node})
    else:
        patch.append({"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME: hostname or node}})
    escaped = PINNED.replace("~", "~0").replace("/", "~1")
    if pod.metadata.annotations:
        patch.append({"op": "add", "path": f"/metadata/annotations/{escaped}", "value": name})
    else:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {PINNED: name}})
    return msgspec.json.encode(patch)
