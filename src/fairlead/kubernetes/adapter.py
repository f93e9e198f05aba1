"""The adapter: a resource manager whose nodes and jobs are those of a Kubernetes cluster.

It turns what the watches report into updates for a partition, and the partition's decisions into actions on pods. It
makes no call itself: `main.py` connects it with the watches, the link and the performer.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.kubernetes import adoption, cluster_events, in_flight, partition_events, updates, upkeep
from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.adapter_state import State
from fairlead.kubernetes.objects import Node, Pod
from fairlead.kubernetes.partition_link import Items
from fairlead.wire import api as wire


class Adapter(State):
    """The state between a cluster and a partition, with all functions that change it."""

    # -- reports of the watches

    def put_node(self, node: Node) -> None:
        cluster_events.put_node(self, node)

    def drop_node(self, uid: str) -> None:
        cluster_events.drop_node(self, uid)

    def put_pod(self, pod: Pod) -> None:
        cluster_events.put_pod(self, pod)

    def drop_pod(self, uid: str) -> None:
        cluster_events.drop_pod(self, uid)

    # -- decisions of the partition, and results of actions on pods

    def take_events(self, events: Iterable[wire.ManagerEvent]) -> None:
        partition_events.take_events(self, events)

    def done(self, target: Target) -> None:
        in_flight.done(self, target)

    def refused(self, target: Target, problem: str) -> None:
        in_flight.refused(self, target, problem)

    # -- updates for the partition

    def adopt(self, state: wire.ManagerState) -> None:
        adoption.adopt(self, state)

    def update(self) -> Items | None:
        """Return the next update, or None if there is nothing to send."""
        return updates.update(self)

    def answered(self, items: Items, answers: list[wire.UpdateItem]) -> list[str]:
        """Apply the answers to an update; return the problems for the log."""
        return updates.answered(self, items, answers)

    # -- changes driven by time

    def retry(self) -> None:
        upkeep.retry(self)
