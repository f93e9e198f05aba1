"""Intake of commands for nodes: join, update, move between states, leave."""

from __future__ import annotations

import msgspec

from fairlead.core.changes import NodeAdded, NodeMoved, NodeRemoved, NodeSet, NodeSpec, spec_of
from fairlead.core.commands import Accepted, AddNode, MoveNode, RemoveNode, UpdateNode
from fairlead.core.effects import stop_of
from fairlead.core.errors import Refused
from fairlead.core.intake.access import need_operator
from fairlead.core.intake.pools import arrive
from fairlead.core.model import NodeState
from fairlead.core.outcomes import lose, recall
from fairlead.core.plan import Plan
from fairlead.core.reader import check_name, suggestion
from fairlead.core.resources import shown

STATES: dict[str, NodeState] = {"drain": "draining", "disable": "disabled", "enable": "up", "lose": "lost"}


def add(plan: Plan, command: AddNode) -> Accepted:
    need_operator(command, "add a node")
    answer = join(plan, command.name, command.spec, "")
    plan.partition.reign.hear_node(find(plan, command.name))
    return answer


def join(plan: Plan, name: str, spec: NodeSpec, manager: str) -> Accepted:
    """Add a node, or update one that joined before. A drained or disabled node stays in its state."""
    partition = plan.partition
    check_name(name, "name")
    _check(spec)
    node_id = partition.nodes.find(name)
    if node_id is None:
        plan.do(NodeAdded(partition.counters.node_id, name, spec, manager))
        if name in partition.order_of and not manager:
            arrive(plan, name)
        return Accepted()
    row = partition.nodes.rows[node_id]
    if partition.nodes.manager[row] != manager:
        owner = partition.nodes.manager[row] or "our own agents"
        raise Refused("name", f"node {name} belongs to {owner}; choose another name", "conflict")
    before = plan.mark()
    if spec_of(partition, node_id) != spec:
        _set(plan, node_id, spec)
    if partition.nodes.state[row] == "lost":
        plan.do(NodeMoved(node_id, partition.nodes.lost_from.get(node_id, "up")))
    return Accepted(note="" if plan.mark() > before else "no change")


def update(plan: Plan, command: UpdateNode) -> Accepted:
    need_operator(command, "change a node")
    node_id = find(plan, command.name)
    _check(command.spec)
    if spec_of(plan.partition, node_id) == command.spec:
        return Accepted(note="no change")
    _set(plan, node_id, command.spec)
    return Accepted()


def _set(plan: Plan, node_id: int, spec: NodeSpec) -> None:
    plan.do(NodeSet(node_id, spec))
    _recall(plan, node_id)


def _recall(plan: Plan, node_id: int) -> None:
    """Recall the tasks that wait in chains on a node, if the node takes no new work."""
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    if not nodes.placeable(row):
        recall(plan, [nodes.allocations[row][number] for number in sorted(nodes.allocations[row])])


def move(plan: Plan, command: MoveNode) -> Accepted:
    if command.action not in STATES:
        raise Refused("action", f"{shown(command.action)} is not one of {', '.join(STATES)}; write one of them")
    need_operator(command, f"{command.action} a node")
    return move_to(plan, command.name, STATES[command.action])


def move_to(plan: Plan, name: str, state: NodeState) -> Accepted:
    node_id = find(plan, name)
    if plan.partition.nodes.state[plan.partition.nodes.rows[node_id]] == state:
        return Accepted(note="no change")
    if state == "up" and node_id in plan.partition.unwanted:
        raise Refused("name", f"node {name} is given back to its pool; order another node instead", "conflict")
    plan.do(NodeMoved(node_id, state))
    if state == "lost":
        lose_tasks(plan, node_id, f"node {name} was lost")
    else:
        _recall(plan, node_id)
    return Accepted()


def remove(plan: Plan, command: RemoveNode) -> Accepted:
    need_operator(command, "remove a node")
    leave(plan, command.name)
    return Accepted()


def leave(plan: Plan, name: str) -> None:
    node_id = find(plan, name)
    tell_to_stop(plan, node_id)
    lose_tasks(plan, node_id, f"node {name} was removed")
    plan.do(NodeRemoved(node_id))


def tell_to_stop(plan: Plan, node_id: int) -> None:
    """Send stops for all tasks of a node that is removed. The state drops them at once, without a confirmation."""
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    for number in sorted(nodes.allocations[row]):
        allocation = nodes.allocations[row][number]
        if not allocation.stage.job.manager:
            stop = stop_of(allocation)
            if stop.cause == "return":  # a recalled task may have started since, and has to stop too
                stop = msgspec.structs.replace(stop, cause="kill")
            plan.strays.append((nodes.name[row], stop))


def lose_tasks(plan: Plan, node_id: int, reason: str) -> None:
    """Declare all tasks of a node lost, the oldest allocation first."""
    partition = plan.partition
    row = partition.nodes.rows[node_id]
    for number in sorted(partition.nodes.allocations[row]):
        # Losing one task may end its job, but removes no other allocation: these stop first.
        allocation = partition.allocations[number]
        lose(plan, allocation, allocation.indices, reason)
    # Tasks that these losses told to stop were split off under new numbers; they are lost with the node, too.
    if partition.nodes.allocations[row]:
        lose_tasks(plan, node_id, reason)


def find(plan: Plan, name: str, field: str = "name") -> int:
    nodes = plan.partition.nodes
    node_id = nodes.find(name)
    if node_id is None:
        raise Refused(
            field, f"there is no node {shown(name)}{suggestion(name, nodes.joins)}; name one that is known", "unknown"
        )
    return node_id


def _check(spec: NodeSpec) -> None:
    if not spec.capacity:
        raise Refused("resources", "a node without resources runs nothing; give it at least cpu and memory")
