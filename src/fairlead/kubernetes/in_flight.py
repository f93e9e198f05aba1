"""In-flight pod actions and their results. `actions.py` makes the calls."""

from __future__ import annotations

import msgspec

from fairlead.kubernetes.actions import Target, Verb
from fairlead.kubernetes.adapter_state import Document, State
from fairlead.kubernetes.names import HOSTNAME, PINNED
from fairlead.kubernetes.nodes import MAX_REASON
from fairlead.kubernetes.objects import Pod
from fairlead.kubernetes.units import Member


def begin(state: State, member: Member, verb: Verb) -> None:
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
        target.body = pin_patch(member.pod, state.gate, target.node, state.hostname(target.node), member.placed)
    member.action = target
    state.act(target)


def done(state: State, target: Target) -> None:
    """Record a finished call: it succeeded, or the pod is gone or bound already, which the watch reports."""
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
    """Report a task that cannot be started as lost. A pod that cannot be evicted stays."""
    member = target.owner
    assert isinstance(member, Member)
    if member.action is not target:
        return
    member.action = None
    if target.verb in ("bind", "pin") and member.uid in state.members:
        lose(state, member, problem)


def lose(state: State, member: Member, problem: str) -> None:
    """Report a task whose pod could not be bound as lost; it follows `on_loss`."""
    unit = member.unit
    member.placed = ""
    if unit.sent and member.index >= 0:
        task = {"job": unit.job, "ask": member.ask, "index": member.index}
        state.out.releases.append(task if member.stopping else {**task, "lost": True, "reason": problem[:MAX_REASON]})
        state.changed.set()
    member.stopping = False


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
