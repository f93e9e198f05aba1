"""Closures: a closure disables all nodes with some labels until a time. Nodes that join before then are included."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.changes import NodeMoved
from fairlead.core.model import Pairs
from fairlead.core.outcomes import recall
from fairlead.core.plan import Plan


def open_again(plan: Plan, node_id: int) -> None:
    """Enable a node after its time ended, unless another closure still covers the node."""
    nodes = plan.partition.nodes
    if nodes.state[nodes.rows[node_id]] == "draining":
        plan.do(NodeMoved(node_id, "up"))
        close_if_covered(plan, node_id)
    elif not close_if_covered(plan, node_id):
        plan.do(NodeMoved(node_id, "up"))


def close_if_covered(plan: Plan, node_id: int) -> bool:
    """Disable a node if a closure covers it now; return True in that case.

    Nodes that are drained or lost, or that a person has disabled, are left as they are.
    """
    partition, nodes = plan.partition, plan.partition.nodes
    row = nodes.rows[node_id]
    active = [
        closure
        for labels, closure in sorted(partition.closures.items(), key=lambda entry: entry[0])
        if covers(labels, nodes.labels[row]) and closure.until > plan.now
    ]
    closed = nodes.state[row] == "disabled" and node_id in nodes.closed_until
    if not active or not (nodes.state[row] == "up" or closed):
        return False
    last = max(active, key=lambda closure: closure.until)
    if (nodes.state[row], nodes.closed_until.get(node_id)) != ("disabled", last.until):
        plan.do(NodeMoved(node_id, "disabled", last.reason, last.until))
        recall_waiting(plan, node_id)
    return True


def covers(labels: Pairs, of_node: Mapping[str, str]) -> bool:
    """True if a node has all labels of a closure."""
    return all(of_node.get(name) == value for name, value in labels)


def recall_waiting(plan: Plan, node_id: int) -> None:
    """Recall the tasks that wait in chains on a node if the node takes no new work."""
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    if not nodes.placeable(row):
        recall(plan, [nodes.allocations[row][number] for number in sorted(nodes.allocations[row])])


def written(labels: Pairs) -> str:
    """Return labels as `rack=r1,zone=a`."""
    return ",".join(f"{name}={value}" for name, value in labels)
