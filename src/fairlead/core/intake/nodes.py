"""Intake of commands for nodes: join, update, move between states, disconnect, leave."""

from __future__ import annotations

import msgspec

from fairlead.core.changes import NodeAdded, NodeMoved, NodeRemoved, NodesConnected, NodeSet, NodeSpec, spec_of
from fairlead.core.commands import Accepted, AddNode, DisconnectNodes, MoveNode, RemoveNode, UpdateNode
from fairlead.core.effects import stop_of
from fairlead.core.errors import Refused
from fairlead.core.intake.access import need_operator
from fairlead.core.intake.pools import arrive
from fairlead.core.model import NodeState
from fairlead.core.outcomes import lose, recall
from fairlead.core.plan import Plan
from fairlead.core.reader import check_name, check_text, suggestion
from fairlead.core.resources import shown

MAX_REASON = 200
STATES: dict[str, NodeState] = {"drain": "draining", "disable": "disabled", "enable": "up", "lose": "lost"}


def add(plan: Plan, command: AddNode) -> Accepted:
    need_operator(command, "add a node")
    answer = join(plan, command.name, command.spec, "")
    node_id = find(plan, command.name)
    plan.partition.reign.hear_node(node_id)
    plan.partition.reign.absent.pop(node_id, None)
    if node_id in plan.partition.nodes.disconnected:
        plan.do(NodesConnected((node_id,), True))
    return answer


def disconnect(plan: Plan, command: DisconnectNodes) -> Accepted:
    """Give nodes without a connected agent no new work.

    Before the partition is ready, no change is made, because most agents come back.
    """
    need_operator(command, "disconnect a node")
    partition, nodes = plan.partition, plan.partition.nodes
    node_ids = [node_id for name in command.names if (node_id := nodes.find(name)) is not None]
    own = [node_id for node_id in node_ids if not nodes.manager[nodes.rows[node_id]]]
    if not partition.reign.ready:
        partition.reign.absent.update(dict.fromkeys(own))
        return Accepted()
    parted = tuple(sorted({node_id for node_id in own if node_id not in nodes.disconnected}))
    if not parted:
        return Accepted(note="no change")
    plan.do(NodesConnected(parted, False))
    return Accepted()


def join(plan: Plan, name: str, spec: NodeSpec, manager: str) -> Accepted:
    """Add a node, or update a node that joined before. A drained or disabled node keeps its state."""
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
        nodes = partition.nodes
        plan.do(NodeMoved(node_id, nodes.lost_from.get(node_id, "up"), nodes.reasons.get(node_id, "")))
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
    check_text(command.reason, "reason", MAX_REASON)
    if command.reason and command.action not in ("drain", "disable"):
        raise Refused("reason", "only a node that is drained or disabled has one; leave it out")
    return move_to(plan, command.name, STATES[command.action], command.reason)


def move_to(plan: Plan, name: str, state: NodeState, reason: str = "") -> Accepted:
    """Move a node to a state.

    If the node has this state already, only the reason changes; a lost node keeps its first reason.
    """
    node_id = find(plan, name)
    nodes = plan.partition.nodes
    if state == "lost":
        reason = nodes.reasons.get(node_id, "")
    if nodes.state[nodes.rows[node_id]] == state:
        if not reason or reason == nodes.reasons.get(node_id):
            return Accepted(note="no change")
        plan.do(NodeMoved(node_id, state, reason))
        return Accepted()
    if state == "up" and node_id in plan.partition.unwanted:
        raise Refused("name", f"node {name} is given back to its pool; order another node instead", "conflict")
    plan.do(NodeMoved(node_id, state, reason))
    if state == "lost":
        lose_tasks(plan, node_id, f"node {name} was lost", told=True)
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
    """Send stops for all tasks of a node that is removed.

    The tasks leave the state immediately, without confirmation.
    """
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    for number in sorted(nodes.allocations[row]):
        allocation = nodes.allocations[row][number]
        if not allocation.stage.job.manager:
            stop = stop_of(allocation)
            if stop.cause == "return":  # a recalled task may have started since, and must stop too
                stop = msgspec.structs.replace(stop, cause="kill")
            plan.strays.append((nodes.name[row], stop))


def lose_tasks(plan: Plan, node_id: int, reason: str, told: bool = False) -> None:
    """Declare all tasks of a node lost, the oldest allocation first.

    With `told`, `on_loss` also applies to tasks of managers.
    """
    partition = plan.partition
    row = partition.nodes.rows[node_id]
    for number in sorted(partition.nodes.allocations[row]):
        # Losing a task may end its job and thereby stop other allocations, but it removes none of them.
        allocation = partition.allocations[number]
        lose(plan, allocation, allocation.indices, reason, told)
    # Tasks that were told to stop because of these losses have new allocations; lose these with the node, too.
    if partition.nodes.allocations[row]:
        lose_tasks(plan, node_id, reason, told)


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
