"""Intake of commands for nodes: join, update, move between states, disconnect, leave."""

from __future__ import annotations

import msgspec

from fairlead.core.changes import (
    ClosureSet,
    NodeAdded,
    NodeMoved,
    NodeRemoved,
    NodesConnected,
    NodeSet,
    NodeSpec,
    spec_of,
)
from fairlead.core.closures import close_if_covered, covers, open_again, recall_waiting, written
from fairlead.core.commands import Accepted, AddNode, CloseNodes, DisconnectNodes, MoveNode, RemoveNode, UpdateNode
from fairlead.core.effects import stop_of
from fairlead.core.errors import Refused
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.lookup import find_node, need_operator
from fairlead.core.intake.pools import arrive
from fairlead.core.model import Micros, NodeState, Pairs
from fairlead.core.outcomes import lose
from fairlead.core.plan import Plan
from fairlead.core.reader import check_name, check_text
from fairlead.core.resources import DAY, parse_count, shown
from fairlead.core.state import Partition

MAX_REASON = 200
MAX_CLOSED = 366 * DAY
"""The longest time for which nodes are disabled."""
MAX_CLOSURES = 1_000
STATES: dict[str, NodeState] = {"drain": "draining", "disable": "disabled", "enable": "up", "lose": "lost"}


@handles(AddNode)
def add(plan: Plan, command: AddNode) -> Accepted:
    need_operator(command, "add a node")
    answer = join(plan, command.name, command.spec, "")
    node_id = find_node(plan.partition, command.name)
    plan.partition.readiness.note_node(node_id)
    plan.partition.readiness.absent.pop(node_id, None)
    if node_id in plan.partition.nodes.disconnected:
        plan.do(NodesConnected((node_id,), True))
    return answer


@handles(DisconnectNodes)
def disconnect(plan: Plan, command: DisconnectNodes) -> Accepted:
    """Give nodes without a connected agent no new work.

    Before the partition is ready, no change is made, because most agents come back.
    """
    need_operator(command, "disconnect a node")
    partition, nodes = plan.partition, plan.partition.nodes
    node_ids = [node_id for name in command.names if (node_id := nodes.find(name)) is not None]
    own = [node_id for node_id in node_ids if not nodes.manager[nodes.rows[node_id]]]
    if not partition.readiness.ready:
        partition.readiness.absent.update(dict.fromkeys(own))
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
        node_id = partition.counters.node_id
        plan.do(NodeAdded(node_id, name, spec, manager))
        close_if_covered(plan, node_id)
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
        nodes, until = partition.nodes, partition.nodes.closed_until.get(node_id, 0)
        if 0 < until <= plan.now:
            plan.do(NodeMoved(node_id, "up"))
        else:
            state, reason = nodes.lost_from.get(node_id, "up"), nodes.reasons.get(node_id, "")
            begin = nodes.closing.get(node_id, 0) if state == "draining" else 0
            plan.do(NodeMoved(node_id, state, reason, until, begin))
    if plan.mark() > before:
        close_if_covered(plan, node_id)
    return Accepted(note="" if plan.mark() > before else "no change")


@handles(UpdateNode)
def update(plan: Plan, command: UpdateNode) -> Accepted:
    need_operator(command, "change a node")
    node_id = find_node(plan.partition, command.name)
    _check(command.spec)
    if spec_of(plan.partition, node_id) == command.spec:
        return Accepted(note="no change")
    _set(plan, node_id, command.spec)
    close_if_covered(plan, node_id)
    return Accepted()


def _set(plan: Plan, node_id: int, spec: NodeSpec) -> None:
    plan.do(NodeSet(node_id, spec))
    recall_waiting(plan, node_id)


@handles(MoveNode)
def move(plan: Plan, command: MoveNode) -> Accepted:
    if command.action not in STATES:
        raise Refused("action", f"{shown(command.action)} is not one of {', '.join(STATES)}; write one of them")
    need_operator(command, f"{command.action} a node")
    check_text(command.reason, "reason", MAX_REASON)
    if command.reason and command.action not in ("drain", "disable"):
        raise Refused("reason", "only a node that is drained or disabled has one; leave it out")
    if command.lasts and command.action not in ("drain", "disable"):
        raise Refused("lasts", "only a node that is drained or disabled has one; leave it out")
    if command.delay and command.action != "drain":
        raise Refused("delay", "only a node that is drained has one; leave it out")
    begin = plan.now + parse_count(command.delay, "delay", 0, MAX_CLOSED) if command.delay else 0
    until = (begin or plan.now) + parse_count(command.lasts, "lasts", 0, MAX_CLOSED) if command.lasts else 0
    return move_to(plan, command.name, STATES[command.action], command.reason, until, begin)


def move_to(
    plan: Plan, name: str, state: NodeState, reason: str = "", until: Micros = 0, begin: Micros = 0
) -> Accepted:
    """Move a node to a state. If it is in this state already, only the reason and the times change.

    A node that is lost keeps its earlier reason and time.
    """
    node_id = find_node(plan.partition, name)
    nodes = plan.partition.nodes
    before = (nodes.reasons.get(node_id, ""), nodes.closed_until.get(node_id, 0), nodes.closing.get(node_id, 0))
    if state == "lost":
        reason, until, begin = before
    if nodes.state[nodes.rows[node_id]] == state:
        if (reason or before[0], until, begin) == before:
            return Accepted(note="no change")
        plan.do(NodeMoved(node_id, state, reason or before[0], until, begin))
        return Accepted()
    if state == "up" and node_id in plan.partition.unwanted:
        raise Refused("name", f"node {name} is given back to its pool; order another node instead", "conflict")
    plan.do(NodeMoved(node_id, state, reason, until, begin))
    if state == "lost":
        lose_tasks(plan, node_id, f"node {name} was lost", reported=True)
    else:
        recall_waiting(plan, node_id)
    return Accepted()


@handles(CloseNodes)
def close(plan: Plan, command: CloseNodes) -> Accepted:
    """Disable the nodes with some labels for a time, or enable those that were disabled for a time."""
    need_operator(command, "disable nodes by labels")
    check_text(command.reason, "reason", MAX_REASON)
    lasts = parse_count(command.lasts, "lasts", 0, MAX_CLOSED)
    labels = tuple(sorted(command.labels))
    _check_closure(plan.partition, labels, lasts)
    plan.do(ClosureSet(labels, plan.now + lasts if lasts else 0, command.reason))
    nodes, moved = plan.partition.nodes, 0
    for row in [row for row in nodes.in_order() if covers(labels, nodes.labels[row])]:
        node_id, state = nodes.node_id[row], nodes.state[row]
        closed = state == "disabled" and node_id in nodes.closed_until
        if lasts and (closed or state == "up"):
            moved += close_if_covered(plan, node_id)
        elif closed and not lasts:
            open_again(plan, node_id)
            moved += nodes.state[row] == "up"
    return Accepted(note=f"{moved} {'node is' if moved == 1 else 'nodes are'} {'disabled' if lasts else 'up'}")


def _check_closure(partition: Partition, labels: Pairs, lasts: Micros) -> None:
    if not labels:
        raise Refused("labels", "no label is named; write such as rack=r1")
    if labels in partition.closures:
        return
    if lasts and len(partition.closures) >= MAX_CLOSURES:
        raise Refused("labels", f"nodes are disabled by {MAX_CLOSURES} sets of labels already; enable some first")
    if not lasts:
        known = "; ".join(sorted(map(written, partition.closures))[:20]) or "none are"
        raise Refused(
            "labels", f"no nodes are disabled by {written(labels)}; disabled are those by: {known}", "unknown"
        )


@handles(RemoveNode)
def remove(plan: Plan, command: RemoveNode) -> Accepted:
    need_operator(command, "remove a node")
    leave(plan, command.name)
    return Accepted()


def leave(plan: Plan, name: str) -> None:
    node_id = find_node(plan.partition, name)
    tell_to_stop(plan, node_id)
    lose_tasks(plan, node_id, f"node {name} was removed")
    plan.do(NodeRemoved(node_id))


def tell_to_stop(plan: Plan, node_id: int) -> None:
    """Send stops for all tasks of a node that is removed. The tasks leave the state without a confirmation."""
    nodes = plan.partition.nodes
    row = nodes.rows[node_id]
    for number in sorted(nodes.allocations[row]):
        allocation = nodes.allocations[row][number]
        if not allocation.stage.job.manager:
            stop = stop_of(allocation)
            if stop.cause == "return":  # a recalled task may have started since, and must stop too
                stop = msgspec.structs.replace(stop, cause="kill")
            plan.strays.append((nodes.name[row], stop))


def lose_tasks(plan: Plan, node_id: int, reason: str, reported: bool = False) -> None:
    """Declare all tasks of a node lost, the oldest allocation first.

    With `reported`, `on_loss` also applies to tasks of managers.
    """
    partition = plan.partition
    row = partition.nodes.rows[node_id]
    for number in sorted(partition.nodes.allocations[row]):
        # Losing a task may end its job and thereby stop other allocations, but it removes none of them.
        allocation = partition.allocations[number]
        lose(plan, allocation, allocation.indices, reason, reported)
    # Tasks that were told to stop because of these losses have new allocations; lose these with the node, too.
    if partition.nodes.allocations[row]:
        lose_tasks(plan, node_id, reason, reported)


def _check(spec: NodeSpec) -> None:
    if not spec.capacity:
        raise Refused("resources", "a node without resources runs nothing; give it at least cpu and memory")
