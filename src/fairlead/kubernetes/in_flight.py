"""Actions on pods: how they begin, and what follows from their results. `actions.py` makes the calls."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.kubernetes.actions import Target, Verb
from fairlead.kubernetes.adapter_state import Document, State
from fairlead.kubernetes.names import HOSTNAME, KEPT_OFF, NOMINATED
from fairlead.kubernetes.nodes import MAX_REASON
from fairlead.kubernetes.objects import REQUIRED, Pod
from fairlead.kubernetes.units import Member


def begin(state: State, member: Member, verb: Verb) -> None:
    """Begin an action on a pod. If its node is gone, its task is lost instead."""
    target = Target(verb, member.namespace, member.name, member.uid, member)
    if verb in ("bind", "admit"):
        cluster_name = state.node_names.get(member.placed)
        if cluster_name is None:
            lose(state, member, f"node {member.placed} is gone")
            return
        target.node = cluster_name
        target.gang = member.unit.job
    if verb == "admit":
        assert member.pod is not None
        target.body = admit_patch(member.pod, state.gate, member.placed, state.kept_off())
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
        state.events.append((member, "Scheduled", f"bound to {target.node}"))
    elif target.confirmed and target.verb == "admit" and not member.fixed and member.uid in state.members:
        member.nominated, member.nominated_at = member.placed, state.clock()
        state.nominated[member.uid] = member
    if member.stopping and target.verb in ("bind", "admit") and member.uid in state.members:
        begin(state, member, "evict")


def refused(state: State, target: Target, problem: str) -> None:
    """Record that the API server refused an action: a task that could not start is lost, a stop has no effect."""
    member = target.owner
    assert isinstance(member, Member)
    if member.action is not target:
        return
    member.action = None
    if target.verb in ("bind", "admit") and member.uid in state.members:
        lose(state, member, problem)
    elif target.verb == "evict" and member.bound and member.stopping and member.uid in state.members:
        _keep(state, member)


def _keep(state: State, member: Member) -> None:
    """Book a pod again whose task had to stop and whose eviction is refused: it goes on running."""
    unit = member.unit
    member.stopping, member.placed = False, ""
    if unit.sent and member.index >= 0:
        state.release(member.task)
        unit.take(member)
    state.count_unbooked(unit)
    state.unbooked[unit.key] = None
    state.touch_units((unit.key,))


def lose(state: State, member: Member, problem: str) -> None:
    """Report a task whose pod could not be bound as lost, so that it follows `on_loss`. One that has to stop is only
    released."""
    member.placed = ""
    if member.unit.sent and member.index >= 0:
        how = {} if member.stopping else {"lost": True, "reason": problem[:MAX_REASON]}
        state.out.releases.append(member.task.item(**how))
        state.changed.set()
    member.stopping = False


def admit_patch(pod: Pod, gate: str, node: str, kept_off: Sequence[str] = ()) -> bytes:
    """Return the JSON patch that removes Fairlead's gate from a pod whose room is reserved on a node.

    The pod's own scheduler may choose another node, but none of `kept_off` (hostnames).
    """
    gates = [other.name for other in pod.spec.scheduling_gates or ()]
    patch: list[Document] = []
    marks = {NOMINATED: node}
    if gates:  # without a gate, only the reserved node changes
        at = gates.index(gate)
        patch.append({"op": "test", "path": f"/spec/schedulingGates/{at}/name", "value": gate})
        patch.append({"op": "remove", "path": f"/spec/schedulingGates/{at}"})
        if kept_off:
            patch += _keep_off(pod, kept_off)
            marks[KEPT_OFF] = ",".join(kept_off)
    if pod.metadata.annotations:
        for key, value in marks.items():
            patch.append({"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value})
    else:  # the mapping does not exist yet
        patch.append({"op": "add", "path": "/metadata/annotations", "value": marks})
    return msgspec.json.encode(patch)


def _keep_off(pod: Pod, hostnames: Sequence[str]) -> list[Document]:
    """Return the steps that add a condition to each term of the pod's required node affinity."""
    condition = {"key": HOSTNAME, "operator": "NotIn", "values": list(hostnames)}
    affinity = pod.spec.affinity
    node = affinity.node_affinity if affinity is not None else None
    path = "/spec/affinity"
    if node is not None and node.required is not None:
        path += f"/nodeAffinity/{REQUIRED}/nodeSelectorTerms"
        return [
            {"op": "add", "path": f"{path}/{at}/matchExpressions", "value": [condition]}
            if not term.match_expressions
            else {"op": "add", "path": f"{path}/{at}/matchExpressions/-", "value": condition}
            for at, term in enumerate(node.required.node_selector_terms or ())
            if term.match_expressions or term.match_fields  # an empty term matches no node
        ]
    value: Document = {"nodeSelectorTerms": [{"matchExpressions": [condition]}]}
    for key, exists in ((REQUIRED, node is not None), ("nodeAffinity", affinity is not None)):
        if exists:
            prefix = "/nodeAffinity" if key == REQUIRED else ""
            return [{"op": "add", "path": f"{path}{prefix}/{key}", "value": value}]
        value = {key: value}
    return [{"op": "add", "path": path, "value": value}]
