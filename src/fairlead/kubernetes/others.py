"""Sums up what nodes have to provide for pods that the partition does not book. Nodes offer that much less to it.

These are pods of other schedulers, and running pods of Fairlead's scheduler whose job the partition does not have.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.kubernetes.objects import Pod
from fairlead.kubernetes.pods import used_by
from fairlead.kubernetes.quantities import add

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
