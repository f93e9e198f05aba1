"""Handlers for the cluster: its nodes, queues, lanes and partitions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, delete, get, post
from litestar.params import PathParameter, QueryParameter

from fairlead.api.context import (
    OPERATORS,
    USERS,
    Key,
    MinRevision,
    PartitionName,
    Shaped,
    caller_fields,
    seen_by,
    services_of,
)
from fairlead.api.jobs import number_of, touch
from fairlead.api.problems import Unserved
from fairlead.core.commands import (
    AnyCommand,
    BringToFront,
    CancelAsk,
    MarkReady,
    MoveNode,
    MoveQueue,
    ReleaseHold,
    RemoveNode,
    ResetLane,
)
from fairlead.core.errors import Refused
from fairlead.core.intake.nodes import MAX_REASON
from fairlead.core.reader import Reader
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.views.answers import (
    hold_answers,
    lane_answers,
    node_answer,
    node_state,
    partition_answer,
    promise_answers,
    queue_answer,
)
from fairlead.views.loans import loan_answers
from fairlead.wire import api as wire

MAX_NODES = 1_000

HttpRequest = Request[Any, Any, Any]
NodeName = Annotated[str, PathParameter(max_length=63)]


async def order(request: HttpRequest, partition: str, command: AnyCommand, what: str) -> wire.Done:
    """Execute a command about the thing that the path names; answer 404 if it does not exist."""
    control = services_of(request).control
    try:
        accepted = await control.execute(control.find(partition), command)
    except Refused as refusal:
        if refusal.code == "unknown" and refusal.field == what:
            raise Refused(refusal.field, refusal.problem, "missing") from None
        raise
    return wire.Done(note=accepted.note)


# -- nodes -------------------------------------------------------------------------------------------------------


@get("/nodes", operation_id="nodes", guards=[USERS], summary="Nodes, in the order in which they joined")
async def nodes(
    request: HttpRequest,
    partition: PartitionName = "",
    min_revision: MinRevision = 0,
    wanted: Annotated[
        Literal["up", "disconnected", "draining", "disabled", "lost"] | None,
        QueryParameter(name="state", required=False),
    ] = None,
    pool: Annotated[str | None, QueryParameter(required=False, max_length=63)] = None,
    cursor: Annotated[
        str, QueryParameter(required=False, max_length=63, description="`next` of the page before.")
    ] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_NODES, required=False)] = MAX_NODES,
) -> wire.Nodes:
    """List nodes with their resources, use and state."""
    after = number_of(cursor) or 0
    sees = seen_by(request)

    def look(state: Partition) -> wire.Nodes:
        table = state.nodes
        page: list[wire.Node] = []
        last = 0
        for node_id in sorted(table.rows):
            row = table.rows[node_id]
            if node_id <= after or wanted not in (None, node_state(state, row)) or pool not in (None, table.pool[row]):
                continue
            if len(page) == limit:
                return wire.Nodes(nodes=page, next=str(last))
            page.append(node_answer(state, row, sees))
            last = node_id
        return wire.Nodes(nodes=page, next="")

    served = await services_of(request).control.reader(partition, min_revision)
    answer = await served.read(look)
    return wire.Nodes(nodes=[_with_credential(request, served.name, node) for node in answer.nodes], next=answer.next)


def _with_credential(request: HttpRequest, partition: str, node: wire.Node) -> wire.Node:
    standing, expires = services_of(request).identities.about(partition, node.name)
    return msgspec.structs.replace(node, credential=standing, credential_expires=expires)


@get("/nodes/{node:str}", operation_id="node", guards=[USERS], summary="One node")
async def node(
    request: HttpRequest, node: NodeName, partition: PartitionName = "", min_revision: MinRevision = 0
) -> wire.Node:
    """Return a node with its resources, use and state."""
    sees = seen_by(request)

    def look(state: Partition) -> wire.Node:
        node_id = state.nodes.find(node)
        if node_id is None:
            raise Refused("name", f"there is no node {shown(node)}; `fairlead node list` shows them", "missing")
        return node_answer(state, state.nodes.rows[node_id], sees)

    served = await services_of(request).control.reader(partition, min_revision)
    return _with_credential(request, served.name, await served.read(look))


@post("/nodes/{node:str}/{action:str}", operation_id="moveNode", guards=[OPERATORS], status_code=200)
async def move_node(
    request: HttpRequest,
    node: NodeName,
    action: Annotated[str, PathParameter(pattern="^(drain|disable|enable)$")],
    partition: PartitionName = "",
    reason: Annotated[
        str, QueryParameter(required=False, max_length=MAX_REASON, description="Why it is drained or disabled.")
    ] = "",
    key: Key = None,
) -> wire.Done:
    """Drain (running tasks finish), disable, or enable a node."""
    command = MoveNode(name=node, action=action, reason=reason, **caller_fields(request, key))  # type: ignore[arg-type]
    return await order(request, partition, command, "name")


@delete("/nodes/{node:str}", operation_id="removeNode", guards=[OPERATORS], status_code=200)
async def remove_node(
    request: HttpRequest, node: NodeName, partition: PartitionName = "", key: Key = None
) -> wire.Done:
    """Remove a node. Tasks running there are lost at once."""
    return await order(request, partition, RemoveNode(name=node, **caller_fields(request, key)), "name")


@delete("/nodes/{node:str}/credential", operation_id="revokeNode", guards=[OPERATORS], status_code=200)
async def revoke_node(request: HttpRequest, node: NodeName, partition: PartitionName = "") -> wire.Done:
    """Revoke the key of a node: its connection ends, and its tasks are lost when its lease expires. A new join token
    for the node admits it again."""
    services = services_of(request)
    try:
        await services.threads.run(services.identities.revoke, services.control.find(partition).name, node)
    except Unserved as problem:
        services.log("revocation not written", {"node": node, "problem": str(problem.__cause__)})
        raise
    return wire.Done()


# -- queues and lanes --------------------------------------------------------------------------------------------


@get("/queues", operation_id="queues", guards=[USERS], summary="The queue tree, by path")
async def queues(request: HttpRequest, partition: PartitionName = "", min_revision: MinRevision = 0) -> wire.Queues:
    """List queues with their settings, use and waiting asks."""
    served = await services_of(request).control.reader(partition, min_revision)

    def look(state: Partition) -> wire.Queues:
        paths = sorted(state.queues)
        return wire.Queues(queues=[queue_answer(state, state.queues[path], served.now) for path in paths])

    return await served.read(look)


@get("/queues/{queue:str}", operation_id="queue", guards=[USERS], summary="One queue")
async def queue(
    request: HttpRequest,
    queue: Annotated[str, PathParameter(max_length=1_000)],
    partition: PartitionName = "",
    min_revision: MinRevision = 0,
) -> wire.Queue:
    """Return a queue with its settings, use and waiting asks."""
    served = await services_of(request).control.reader(partition, min_revision)

    def look(state: Partition) -> wire.Queue:
        if queue not in state.queues:
            raise Refused("queue", f"there is no queue {shown(queue)}; `fairlead queue list` shows them", "missing")
        return queue_answer(state, state.queues[queue], served.now)

    return await served.read(look)


@post("/queues/{queue:str}/{action:str}", operation_id="moveQueue", guards=[OPERATORS], status_code=200)
async def move_queue(
    request: HttpRequest,
    queue: Annotated[str, PathParameter(max_length=1_000)],
    action: Annotated[str, PathParameter(pattern="^(start|stop)$")],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Stop a queue, so that it accepts and starts no jobs, or start it again."""
    command = MoveQueue(queue=queue, action=action, **caller_fields(request, key))  # type: ignore[arg-type]
    return await order(request, partition, command, "queue")


@get("/loans", operation_id="loans", guards=[USERS], summary="Loans of queues, and when they return")
async def loans(request: HttpRequest, partition: PartitionName = "", min_revision: MinRevision = 0) -> wire.Loans:
    """List the leaf queues that use more than they are entitled to, with when their loans return, by the estimates and
    time limits of their tasks."""
    served = await services_of(request).control.reader(partition, min_revision)
    return await served.read(lambda state: wire.Loans(loans=loan_answers(state, served.now)))


@get("/lanes", operation_id="lanes", guards=[USERS], summary="Lanes, with their waiting asks")
async def lanes(
    request: HttpRequest,
    partition: PartitionName = "",
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, required=False)] = 100,
    first: Annotated[
        int, QueryParameter(ge=0, le=100, required=False, description="Number of asks to show of each lane.")
    ] = 5,
) -> wire.Lanes:
    """List the lanes with the most waiting tasks, and all other lanes together as `other`."""
    services = services_of(request)
    sees = seen_by(request)
    served = services.control.find(partition)

    def look(state: Partition) -> wire.Lanes:
        figures = services.metrics.lanes(state.name)
        listed = lane_answers(state, figures, limit, first, sees, served.writer.reasons)
        return wire.Lanes(lanes=listed, ready=state.reign.ready)

    return await served.read(look)


def _ask(data: object) -> tuple[str, str]:
    read = Reader(data, "", "an ask")
    job, stage = read.name("job"), read.name("stage")
    read.close()
    return job, stage


@post("/lanes/front", operation_id="bringToFront", guards=[OPERATORS], status_code=200)
async def bring_to_front(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.AskDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Move the asks of a stage to the front of their lanes."""
    job, stage = _ask(data)
    return await touch(request, partition, job, BringToFront(job=job, stage=stage, **caller_fields(request, key)))


@post("/lanes/cancel", operation_id="cancelAsk", guards=[USERS], status_code=200)
async def cancel(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.AskDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Cancel the waiting tasks of a stage."""
    job, stage = _ask(data)
    return await touch(request, partition, job, CancelAsk(job=job, stage=stage, **caller_fields(request, key)))


@post("/lanes/reset", operation_id="resetLane", guards=[OPERATORS], status_code=200)
async def reset_lane(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.ResetDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Move the head of a stuck lane to the end of the lane, or cancel it, if it belongs to the given job."""
    read = Reader(data, "", "a reset")
    queue, job = read.text("queue", most=1_000), read.name("job")
    cancel = read.flag("cancel", False)
    read.close()
    command = ResetLane(queue=queue, job=job, cancel=cancel, **caller_fields(request, key))
    return await touch(request, partition, job, command)


@get("/holds", operation_id="holds", guards=[USERS], summary="Holds, oldest first")
async def holds(request: HttpRequest, partition: PartitionName = "", min_revision: MinRevision = 0) -> wire.Holds:
    """List the nodes that are held for jobs that have waited too long, and those promised to jobs."""
    sees = seen_by(request)
    served = await services_of(request).control.reader(partition, min_revision)

    def look(state: Partition) -> wire.Holds:
        return wire.Holds(holds=hold_answers(state, sees, served.now), promises=promise_answers(state, sees))

    return await served.read(look)


@post("/holds/release", operation_id="releaseHold", guards=[OPERATORS], status_code=200)
async def release_hold(
    request: HttpRequest,
    data: Annotated[Any, Shaped(wire.HoldDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Release the nodes held for a job, or for one of its stages, so that other work can use them."""
    read = Reader(data, "", "a hold")
    job = read.name("job")
    stage = read.name("stage") if "stage" in read.doc else ""
    read.close()
    return await touch(request, partition, job, ReleaseHold(job=job, stage=stage, **caller_fields(request, key)))


# -- partitions --------------------------------------------------------------------------------------------------


@get("/partitions", operation_id="partitions", guards=[USERS], summary="Partitions")
async def partitions(request: HttpRequest) -> wire.Partitions:
    """List partitions with their readiness, nodes and jobs."""
    control = services_of(request).control
    answers = []
    for name in control.names():
        served = await control.reader(name)
        answer = await served.read(partition_answer)
        if name not in control.led():  # only the leader of the partition knows its readiness
            answer = msgspec.structs.replace(answer, ready=None, waiting_for=[])
        answers.append(msgspec.structs.replace(answer, leader=control.leader(name)))
    return wire.Partitions(partitions=answers)


@post("/partitions/{partition_name:str}/ready", operation_id="markReady", guards=[OPERATORS], status_code=200)
async def mark_ready(request: HttpRequest, partition_name: Annotated[str, PathParameter(max_length=63)]) -> wire.Done:
    """Mark a partition ready: place tasks now, without waiting for nodes and managers to report after a start."""
    return await order(request, partition_name, MarkReady(**caller_fields(request)), "partition")


HANDLERS = [
    nodes,
    node,
    move_node,
    remove_node,
    revoke_node,
    queues,
    queue,
    move_queue,
    loans,
    lanes,
    bring_to_front,
    cancel,
    reset_lane,
    holds,
    release_hold,
    partitions,
    mark_ready,
]
