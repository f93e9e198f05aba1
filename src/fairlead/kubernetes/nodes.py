"""Turns a Kubernetes node into items of an update: its resources, and its state from conditions and cordon."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from fairlead.kubernetes.names import node_name
from fairlead.kubernetes.objects import Node
from fairlead.kubernetes.pods import NODE_NAME, taint_text
from fairlead.kubernetes.quantities import CPU, MEMORY, capacities, documented

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
