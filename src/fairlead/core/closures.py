"""A closure disables all nodes with given labels until a given time, including nodes that join before then."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.changes import NodeMoved
from fairlead.core.model import Pairs
from fairlead.core.outcomes import recall
from fairlead.core.plan import Plan


def open_again(plan: Plan, node_id: int) -> None:
    """Enable a node that was disabled for a time, unless other labels of it are disabled for longer."""
    if not close_if_covered(plan, node_id):
        plan.do(NodeMoved(node_id, "up"))


def close_if_covered(plan: Plan, node_id: int) -> bool:
    """Disable a node that is up, or disabled for a time, if its labels are disabled now; True if they are."""
    partition, nodes = plan.partition, plan.partition.nodes
    row = nodes.rows[node_id]
    active = [
        closure
        for labels, closure in sorted(partition.closures.items(), key=lambda entry: entry[0])
        if covers(labels, nodes.labels[row]) and closure.until > plan.now
    ]
    if not active or not (nodes.state[row] == "up" or node_id in nodes.closed_until):
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
    """Recall the tasks that wait in chains on a node, if the node takes no new work."""
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    if not nodes.placeable(row):
        recall(plan, [nodes.allocations[row][number] for number in sorted(nodes.allocations[row])])


def written(labels: Pairs) -> str:
    """Return labels as `rack=r1,zone=a`."""
    return ",".join(f"{name}={value}" for name, value in labels)
