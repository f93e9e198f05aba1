"""Remembers nodes that a gated pod's own scheduler refused. Later pods of its controller avoid them for a while.

The partition does not know the cause, such as a volume in another zone, affinity to other pods, or a resource claim. So
only pods of this controller avoid the node.
"""

from __future__ import annotations

import msgspec

from fairlead.kubernetes.pods import NODE_NAME, Needs

KEPT = 300.0
"""Seconds for which a refusal counts, because its cause may be gone later."""


class Refusals:
    """Refused nodes by the uid of the pods' controller."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, float]] = {}

    def add(self, controller: str, node: str, now: float) -> None:
        self._until.setdefault(controller, {})[node] = now + KEPT

    def apply(self, controller: str, needs: Needs) -> Needs:
        """Return needs that exclude the refused nodes."""
        nodes = sorted(self._until.get(controller, ()))
        if not nodes:
            return needs
        others = f"{NODE_NAME} notin ({','.join(nodes)})"
        where = tuple(f"{term}, {others}" for term in needs.where) or (others,)
        return msgspec.structs.replace(needs, where=where)

    def expire(self, now: float) -> set[str]:
        """Forget old refusals. Return the controllers whose pods may use more nodes."""
        before = self._until
        left = {key: {node: until for node, until in nodes.items() if until > now} for key, nodes in before.items()}
        self._until = {key: nodes for key, nodes in left.items() if nodes}
        return {key for key, nodes in left.items() if len(nodes) < len(before[key])}
