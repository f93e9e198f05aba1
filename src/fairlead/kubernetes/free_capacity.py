"""Free capacity of nodes as the API server knows it, for pods that were placed before the adapter started."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fairlead.kubernetes.groups import GroupObjects
from fairlead.kubernetes.names import node_name
from fairlead.kubernetes.nodes import node_state
from fairlead.kubernetes.objects import Node
from fairlead.kubernetes.others import Amounts, Others
from fairlead.kubernetes.pods import PORT, used_by
from fairlead.kubernetes.quantities import add, capacities
from fairlead.kubernetes.units import Member


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
                if node in nodes and member.uid not in others:
                    add(self._used.setdefault(node, {}), amounts_of(member, objects))

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
