"""Handles events of the watches (nodes and pods that exist, changed, or are gone), and decisions of the partition."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.adapter_state import KnownNode, State
from fairlead.kubernetes.groups import membership
from fairlead.kubernetes.in_flight import begin
from fairlead.kubernetes.names import NOMINATED, node_name
from fairlead.kubernetes.objects import Node, Pod
from fairlead.kubernetes.units import Member, Task, Unit
from fairlead.wire import api as wire
from fairlead.wire.index_spans import each_index


def put_node(state: State, node: Node) -> None:
    known = state.nodes.get(node.metadata.uid)
    if known is None:
        known = state.nodes[node.metadata.uid] = KnownNode(node_name(node.metadata.name), node)
        state.node_names[known.name] = node.metadata.name
        state.others.node_of[node.metadata.name] = node.metadata.uid
    known.node = node
    state.dirty_nodes[node.metadata.uid] = None
    state.changed.set()


def drop_node(state: State, uid: str) -> None:
    known = state.nodes.pop(uid, None)
    state.dirty_nodes.pop(uid, None)
    if known is None:
        return
    if known.sent is not None:
        state.out.nodes.append({"name": known.name, "action": "remove"})
        for member in list(state.members.values()):  # their tasks are lost with the node
            if known.name in (member.fixed, member.placed):
                _lost_with_node(state, member)
        state.changed.set()
    successor = state.others.node_of.get(known.node.metadata.name, "")
    if successor == uid:
        del state.others.node_of[known.node.metadata.name]
        del state.node_names[known.name]
    elif successor in state.nodes:  # the node was made again under this name, and is sent again
        state.nodes[successor].sent = None
        state.dirty_nodes[successor] = None


def put_pod(state: State, pod: Pod) -> None:
    uid = pod.metadata.uid
    if _is_ours(state, pod):
        _put_own(state, pod)
        return
    member = state.members.get(uid)
    if member is not None:
        _note_loss(state, member, pod)
        _gone(state, member)
    state.touch_nodes(state.others.put(pod))


def drop_pod(state: State, uid: str) -> None:
    member = state.members.get(uid)
    if member is not None:
        _gone(state, member)
    state.touch_nodes(state.others.drop(uid))


def _is_ours(state: State, pod: Pod) -> bool:
    """True if Fairlead schedules the pod: it has not ended, and no other controller's gate holds it back."""
    if pod.ended:
        return False
    gates = {gate.name for gate in pod.spec.scheduling_gates or ()}
    if gates - {state.gate}:
        return False
    return bool(gates) or pod.spec.scheduler_name in state.schedulers or bool(pod.metadata.annotation(NOMINATED))


def _put_own(state: State, pod: Pod) -> None:
    uid = pod.metadata.uid
    bound = node_name(pod.spec.node_name) if pod.spec.node_name else ""
    member = state.members.get(uid)
    if member is None:
        if pod.metadata.deletion_timestamp and not bound:
            return
        _add(state, pod, bound)
        return
    if pod.metadata.deletion_timestamp and not bound and not member.bound and member.action is None:
        _gone(state, member)
        return
    if not bound:
        member.pod = pod
        _note_pin(state, member, pod)
    elif member.bound != bound:
        member.bound = bound
        member.lost = member.refused = ""
        state.nominated.pop(member.uid, None)
        if member.placed == bound:
            member.pod = None
        else:  # bound by another scheduler, or before the partition decided
            _bound_elsewhere(state, member)
    elif member.placed == bound:
        state.count_resize(member, pod)
    _note_loss(state, member, pod)


def _add(state: State, pod: Pod, bound: str) -> None:
    belongs = membership(pod)
    unit = state.units.get(belongs.key)
    if unit is None:
        unit = state.units[belongs.key] = Unit(belongs.key, belongs.job)
        state.jobs[unit.job] = unit
    gated = pod.spec.scheduler_name not in state.schedulers
    meta = pod.metadata
    member = Member(meta.uid, meta.namespace, meta.name, unit, belongs, gated, pod, bound=bound)
    member.labels = meta.labels or {}
    if not bound:
        _note_pin(state, member, pod)
    state.members[member.uid] = unit.members[member.uid] = member
    state.touch_units((unit.key,))
    if bound:
        state.unbooked[unit.key] = None


def _note_pin(state: State, member: Member, pod: Pod) -> None:
    """Record that a pod was nominated: its gate is gone, and room is reserved for it on a node."""
    node = pod.metadata.annotation(NOMINATED)
    if node in state.node_names and not pod.spec.scheduling_gates and not member.nominated:
        member.nominated, member.nominated_at = node, state.clock()
        state.nominated[member.uid] = member


def _note_loss(state: State, member: Member, pod: Pod) -> None:
    """Record whether and why the cluster removes or has ended a bound pod. A pod that was told to stop is not lost."""
    if member.bound and not member.stopping:
        member.lost = pod.disrupted


def _gone(state: State, member: Member) -> None:
    """Forget a pod that has ended or was deleted, and release its task."""
    unit = member.unit
    del state.members[member.uid]
    state.nominated.pop(member.uid, None)
    del unit.members[member.uid]
    if isinstance(member.action, Target):
        member.action.cancelled = True
    follows = unit.group is not None and unit.group.follows_loss and bool(member.lost and member.placed)
    if unit.sent and member.index >= 0 and (unit.members or follows):
        if follows or member.live:
            state.release(member.task, member.lost if follows else "")
        else:
            state.withdraw(member.task)
    unit.take(member)
    state.touch_units((unit.key,))


def _lost_with_node(state: State, member: Member) -> None:
    """Forget that a task was placed on a node that is gone. The partition counts the task as lost with its node. A pod
    that is not bound there is asked for again, and a bound one is booked again if a node of this name comes back."""
    unit = member.unit
    member.placed = member.nominated = ""
    state.nominated.pop(member.uid, None)
    if member.index >= 0:
        unit.take(member)
    state.count_unbooked(unit)
    if member.bound:
        state.unbooked[unit.key] = None
    state.touch_units((unit.key,))


def _bound_elsewhere(state: State, member: Member) -> None:
    """Tell the partition on which node a pod was bound, because it is not the node that the partition chose."""
    unit = member.unit
    if isinstance(member.action, Target):
        member.action.cancelled = True
        member.action = None
    if unit.sent and member.index >= 0:
        if not member.placed:
            state.recover(member.task, member.bound)
            state.changed.set()
            return
        state.release(member.task)
        unit.take(member)
    member.placed = ""
    state.touch_units((unit.key,))
    state.unbooked[unit.key] = None
    state.count_unbooked(unit)
    state.suspects[member.bound] = member.uid


def take_events(state: State, events: Iterable[wire.ManagerEvent]) -> None:
    for event in events:
        if event.what == "node":
            state.note_state(event.node, event.reason)
        elif event.what == "ended":
            unit = state.jobs.get(event.job)
            if unit is not None and unit.sent:
                unit.ended = True
                _delete_waiting(state, unit)
        elif event.what in ("allocated", "release"):
            for index in each_index(event.indices):
                member = _pod_of(state, Task(event.job, event.ask, index))
                if member is None:
                    continue
                if event.what == "allocated":
                    _allocated(state, member, event.node)
                else:
                    stop(state, member, event.reason)


def _pod_of(state: State, task: Task) -> Member | None:
    """Return the pod of a task. A task without a pod is released."""
    unit = state.jobs.get(task.job)
    member = unit.at(task.ask, task.index) if unit is not None and unit.sent else None
    if member is None and task not in state.ending:
        state.release(task)
    return member


def _allocated(state: State, member: Member, node: str) -> None:
    if member.fixed:
        if member.fixed == node:
            member.placed = node
            if member.bound:
                state.booked(member)
    elif not (member.placed == node and member.action is not None):
        member.placed = node
        member.stopping = False
        begin(state, member, "admit" if member.gated else "bind")


def stop(state: State, member: Member, cause: str) -> None:
    """Stop the task of a pod: evict the pod, or cancel its binding if that was not sent."""
    action = member.action
    if not member.fixed and isinstance(action, Target) and action.verb in ("bind", "admit") and not action.begun:
        action.cancelled = True
        action = member.action = None
    if not member.fixed and action is None:
        member.placed = ""
        state.out.releases.append(member.task.item())
        state.changed.set()
        return
    member.stopping = True
    if cause != "kill":
        state.events.append((member, "Preempted", "Fairlead stops it for other pods" + (f": {cause}" if cause else "")))
    if action is None:
        begin(state, member, "delete" if cause == "kill" else "evict")


def _delete_waiting(state: State, unit: Unit) -> None:
    """Delete the waiting pods of a job that has ended. They would be asked for again as a new job."""
    for member in unit.members.values():
        member.stopping = True
        if not member.live and member.action is None:
            begin(state, member, "delete")
