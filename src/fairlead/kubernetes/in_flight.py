"""Actions on pods: how they begin, and what follows from their results. `actions.py` makes the calls."""

from __future__ import annotations

import msgspec

from fairlead.kubernetes.actions import Target, Verb
from fairlead.kubernetes.adapter_state import Document, State
from fairlead.kubernetes.names import HOSTNAME, PINNED
from fairlead.kubernetes.nodes import MAX_REASON
from fairlead.kubernetes.objects import Pod
from fairlead.kubernetes.units import Member


def begin(state: State, member: Member, verb: Verb) -> None:
    """Begin an action on a pod. If the node to bind or pin it to is gone, its task is lost instead."""
    target = Target(verb, member.namespace, member.name, member.uid, member)
    if verb in ("bind", "pin"):
        cluster_name = state.node_names.get(member.placed)
        if cluster_name is None:
            lose(state, member, f"node {member.placed} is gone")
            return
        target.node = cluster_name
        target.gang = member.unit.job
    if verb == "pin":
        assert member.pod is not None
        node = state.node(target.node)
        hostname = node.metadata.label(HOSTNAME) if node is not None else ""
        target.body = pin_patch(member.pod, state.gate, hostname or target.node, member.placed)
    member.action = target
    state.act(target)


def done(state: State, target: Target) -> None:
    """Record the end of an action: it succeeded, or the pod is gone or bound already, which the watch reports."""
    member = target.owner
    assert isinstance(member, Member)
    if member.action is not target:
        return
    member.action = None
    if target.confirmed and target.verb == "bind" and not member.bound:
        member.bound = member.placed
        member.pod = None
    elif target.confirmed and target.verb == "pin" and not member.fixed and member.uid in state.members:
        member.pinned, member.pinned_at = member.placed, state.clock()
        state.pinned[member.uid] = member
    if member.stopping and target.verb in ("bind", "pin") and member.uid in state.members:
        begin(state, member, "evict")


def refused(state: State, target: Target, problem: str) -> None:
    """Record that the API server refused an action: a task that could not start is lost, a stop has no effect."""
    member = target.owner
    assert isinstance(member, Member)
    if member.action is not target:
        return
    member.action = None
    if target.verb in ("bind", "pin") and member.uid in state.members:
        lose(state, member, problem)


def lose(state: State, member: Member, problem: str) -> None:
    """Report a task whose pod could not be bound as lost, so that it follows `on_loss`. One that has to stop is only
    released."""
    member.placed = ""
    if member.unit.sent and member.index >= 0:
        how = {} if member.stopping else {"lost": True, "reason": problem[:MAX_REASON]}
        state.out.releases.append(member.task.item(**how))
        state.changed.set()
    member.stopping = False


def pin_patch(pod: Pod, gate: str, hostname: str, name: str) -> bytes:
    """Return the JSON patch that pins a gated pod to the node with this hostname and removes Fairlead's gate."""
    gates = [other.name for other in pod.spec.scheduling_gates or ()]
    at = gates.index(gate)
    patch: list[Document] = [
        {"op": "test", "path": f"/spec/schedulingGates/{at}/name", "value": gate},
        {"op": "remove", "path": f"/spec/schedulingGates/{at}"},
    ]
    for path, has, key, value in (
        ("/spec/nodeSelector", pod.spec.node_selector, HOSTNAME, hostname),
        ("/metadata/annotations", pod.metadata.annotations, PINNED, name),
    ):
        if has:
            patch.append({"op": "add", "path": f"{path}/{key.replace('/', '~1')}", "value": value})
        else:  # the mapping does not exist yet
            patch.append({"op": "add", "path": path, "value": {key: value}})
    return msgspec.json.encode(patch)
