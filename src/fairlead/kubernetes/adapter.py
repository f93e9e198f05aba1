"""The adapter: a resource manager whose nodes and jobs are those of a Kubernetes cluster.

It turns the events of the watches into updates for a partition, and the partition's decisions into actions on pods. It
makes no call itself: `runner.py` connects it with the watches, the link and the performer.
"""

from __future__ import annotations

from fairlead.kubernetes import adoption, handlers, in_flight, manager_updates
from fairlead.kubernetes.adapter_state import State


class Adapter(State):
    """The state between a cluster and a partition, with all functions that change it."""

    # events of the watches
    put_node = handlers.put_node
    drop_node = handlers.drop_node
    put_pod = handlers.put_pod
    drop_pod = handlers.drop_pod

    # decisions of the partition, and results of actions on pods
    take_events = handlers.take_events
    done = in_flight.done
    refused = in_flight.refused

    # updates for the partition
    adopt = adoption.adopt
    update = manager_updates.update
    answered = manager_updates.answered

    # changes driven by time
    retry = manager_updates.retry
