"""Nodes of Kubernetes as items of an update: their state, from conditions and cordon, and their resources.

What pods use that the partition does not book is subtracted. Pods that were placed before the adapter started
count against the free capacity as the API server knows it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fairlead.kubernetes.groups import GroupObjects
from fairlead.kubernetes.names import node_name
from fairlead.kubernetes.objects import Node, Pod
from fairlead.kubernetes.pods import NODE_NAME, PORT, taint_text, used_by
from fairlead.kubernetes.quantities import CPU, MEMORY, add, capacities, documented
from fairlead.kubernetes.units import Member

MAX_LABELS = 999
MAX_REASON = 200
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""The taint of a cordoned node. It is left out, because the node is drained instead."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,126}")

State = Literal["enable", "drain", "disable"]


def node_items(
    node: Node, used: Mapping[str, int], ports: Iterable[str] = (), sent: Sequence[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the items of an update that bring a node to its state.

    A node is enabled only if the items sent before drained or disabled it. So a drain by an operator of Fairlead stays.
    """
    item = node_item(node, used, ports)
    action, reason = node_state(node)
    if action != "enable":
        return [item, {"name": item["name"], "action": action, "reason": reason}]
    if any(before.get("action") in ("drain", "disable") for before in sent or ()):
        return [item, {"name": item["name"], "action": "enable"}]
    return [item]


def node_item(node: Node, used: Mapping[str, int], ports: Iterable[str] = ()) -> dict[str, Any]:
    """Return the item that adds or updates a node: its resources minus the use by pods that are not booked.

    `ports` are the host ports of all known pods (`Needs.ports`): each node offers one of each. A port may be left out
    only if no pod with it is left; otherwise the use of the node would exceed its capacity.
    """
    free = capacities(node.status.allocatable)
    free |= dict.fromkeys(ports, 1000)
    # A resource that is fully used stays known, with less than any pod asks for: jobs that need it wait for it.
    free = {name: max(int(name not in (CPU, MEMORY)), amount - used.get(name, 0)) for name, amount in free.items()}
    labels = {key: value for key, value in (node.metadata.labels or {}).items() if _LABEL.fullmatch(key)}
    item: dict[str, Any] = {
        "name": node_name(node.metadata.name),
        "resources": documented(free),
        "labels": dict(sorted(labels.items())[:MAX_LABELS]) | {NODE_NAME: node.metadata.name},
    }
    taints = [
        taint_text(taint.key, taint.value, taint.effect)
        for taint in node.spec.taints or ()
        if taint.key != UNSCHEDULABLE
    ]
    if taints:
        item["taints"] = sorted(set(taints))
    return item


def node_state(node: Node) -> tuple[State, str]:
    """Return the action that brings a node to its state, and the reason.

    A cordoned node drains, and a node that is not ready is disabled: neither gets new pods, and pods there keep
    running. The cluster's controllers decide about pods on a node that stays away.
    """
    ready = next((each for each in node.status.conditions or () if each.type == "Ready"), None)
    if node.metadata.deletion_timestamp:
        return "drain", "the node is being deleted"
    if ready is not None and ready.status != "True":
        return "disable", (ready.message or ready.reason or "the node is not ready")[:MAX_REASON]
    if node.spec.unschedulable:
        return "drain", "cordoned"
    return "enable", ""


class FreeCapacity:
    """Capacity of some nodes beyond the use by pods: those of all schedulers, and those added by `take`."""

    def __init__(
        self, members: Iterable[Member], nodes: Collection[str], objects: GroupObjects, others: Others
    ) -> None:
        self._objects = objects
        self._others = others
        self._used: dict[str, Amounts] = {}
        if nodes:
            for member in members:
                node = member.fixed or (member.placed if member.action is not None else "")
                if node in nodes and (member.placed or member.uid not in others):
                    add(self._used.setdefault(node, {}), amounts_of(member, objects))

    def overbooked(self, node: Node) -> str:
        """Return which resource that a node offers its pods exceed, as text; empty if none."""
        offered = capacities(node.status.allocatable)
        used = dict(self._used.get(node_name(node.metadata.name), {}))
        add(used, self._others.used(node.metadata.name))
        for name, amount in used.items():
            if amount > offered.get(name, amount):
                return f"another scheduler used {name} of node {node.metadata.name} at the same moment"
        return ""

    def take(self, member: Member, node: Node) -> str:
        """Book a pod on its node. Return why it does not fit; empty if it does."""
        action, reason = node_state(node)
        if action != "enable":
            return f"node {member.placed}: {reason}"
        offered = capacities(node.status.allocatable)
        used = self._used.setdefault(node_name(node.metadata.name), {})
        other = self._others.used(node.metadata.name)
        wanted = amounts_of(member, self._objects)
        for name, amount in wanted.items():
            has = 1000 if name.startswith(PORT) else offered.get(name, 0)
            if used.get(name, 0) + other.get(name, 0) + amount > has:
                return f"node {member.placed} has too little free {name} by now"
        add(used, wanted)
        return ""


def amounts_of(member: Member, objects: GroupObjects) -> Amounts:
    """Return what a pod that Fairlead schedules uses of its node."""
    if member.ask in objects.asks:
        return dict(objects.asks[member.ask][1].resources)
    return used_by(member.pod) if member.pod is not None else {}


Amounts = dict[str, int]


class _Use(NamedTuple):
    node: str
    amounts: Amounts


class Others:
    """Bound pods that the partition does not book, and the sums of their use by node."""

    def __init__(self) -> None:
        self.node_of: dict[str, str] = {}
        """Name of a node → its uid."""
        self._pods: dict[str, _Use] = {}
        self._sums: dict[str, Amounts] = {}

    def put(self, pod: Pod) -> list[str]:
        """Add or change a pod of another scheduler. Return the uids of the nodes whose use changed."""
        uid = pod.metadata.uid
        if pod.ended or not pod.spec.node_name:
            return self.drop(uid)
        return self.count(uid, pod.spec.node_name, used_by(pod))

    def count(self, uid: str, node: str, amounts: Amounts) -> list[str]:
        """Add or change the use of a node by a pod. Return the uids of the nodes whose use changed."""
        use = _Use(node, amounts)
        if self._pods.get(uid) == use:
            return []
        changed = self.drop(uid)
        self._pods[uid] = use
        self._add(use, 1)
        return changed + self._uids(use.node)

    def drop(self, uid: str) -> list[str]:
        """Forget a pod. Return the uids of the nodes whose use changed."""
        use = self._pods.pop(uid, None)
        if use is None:
            return []
        self._add(use, -1)
        return self._uids(use.node)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def used(self, node: str) -> Amounts:
        """Return the total use of the pods on a node."""
        return self._sums.get(node, {})

    def _uids(self, node: str) -> list[str]:
        uid = self.node_of.get(node)
        return [uid] if uid is not None else []

    def _add(self, use: _Use, times: int) -> None:
        sums = self._sums.setdefault(use.node, {})
        add(sums, use.amounts, times)
        if not sums:
            del self._sums[use.node]
