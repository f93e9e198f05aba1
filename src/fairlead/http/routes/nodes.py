"""Handlers for nodes: list, drain, disable, enable and remove them, and revoke their keys."""

from __future__ import annotations

import msgspec

from fairlead.core.commands import CloseNodes, MoveNode, RemoveNode
from fairlead.core.documents import MAX_LABEL
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, suggestion
from fairlead.core.resources import SECOND, shown
from fairlead.core.state import Partition
from fairlead.http.context import Request, change
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import number_of
from fairlead.views.answers import node_answer, node_state
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.unserved import Unserved


@serves(op.Nodes)
async def nodes(request: Request, asked: op.Nodes) -> wire.Nodes:
    after = number_of(asked.cursor) or 0

    def look(state: Partition) -> wire.Nodes:
        table = state.nodes
        page: list[wire.Node] = []
        last = 0
        for node_id in sorted(table.rows):
            row = table.rows[node_id]
            if (
                node_id <= after
                or asked.state not in (None, node_state(state, row))
                or asked.pool not in (None, table.pool[row])
            ):
                continue
            if len(page) == asked.limit:
                return wire.Nodes(nodes=page, next=str(last))
            page.append(node_answer(state, row, request.sees))
            last = node_id
        return wire.Nodes(nodes=page, next="")

    served = await request.reader(asked)
    answer = await served.read(look)
    return wire.Nodes(nodes=[_with_credential(request, served.name, node) for node in answer.nodes], next=answer.next)


def _with_credential(request: Request, partition: str, node: wire.Node) -> wire.Node:
    standing, expires = request.services.identities.about(partition, node.name)
    return msgspec.structs.replace(node, credential=standing, credential_expires=expires)


@serves(op.Node)
async def node(request: Request, asked: op.Node) -> wire.Node:
    def look(state: Partition) -> wire.Node:
        node_id = state.nodes.find(asked.node)
        if node_id is None:
            near = suggestion(asked.node, state.nodes.joins)
            problem = f"there is no node {shown(asked.node)}{near}; `fairlead node list` shows them"
            raise Refused("name", problem, "missing")
        return node_answer(state, state.nodes.rows[node_id], request.sees)

    served = await request.reader(asked)
    return _with_credential(request, served.name, await served.read(look))


@serves(op.MoveNode)
async def move_node(request: Request, asked: op.MoveNode) -> wire.Done:
    lasts = round(asked.lasts * SECOND)
    delay = round(asked.delay * SECOND)
    command = MoveNode(name=asked.node, action=asked.action, reason=asked.reason, lasts=lasts, delay=delay)
    return await change(request, asked, command, "name")


@serves(op.Closures)
async def closures(request: Request, asked: op.Closures) -> wire.Closures:
    def look(state: Partition) -> wire.Closures:
        return wire.Closures(
            closures=[
                wire.Closure(labels=dict(labels), until=closure.until / SECOND, reason=closure.reason)
                for labels, closure in sorted(state.closures.items(), key=lambda entry: entry[0])
            ]
        )

    return await request.leader(asked).read(look)


@serves(op.CloseNodes)
async def close_nodes(request: Request, asked: op.CloseNodes) -> wire.Done:
    read = Reader(asked.document, "", "a closure")
    labels = read.pairs("labels", most=100, longest=MAX_LABEL)
    lasts, reason = read.duration("lasts", 0), read.text("reason", "", most=200)
    read.close()
    if not lasts:
        raise Refused("lasts", "it is missing or 0; write how long the nodes are disabled, such as 2h")
    return await change(request, asked, CloseNodes(labels=labels, lasts=lasts, reason=reason), "labels")


@serves(op.OpenNodes)
async def open_nodes(request: Request, asked: op.OpenNodes) -> wire.Done:
    read = Reader(asked.document, "", "an opening")
    labels = read.pairs("labels", most=100, longest=MAX_LABEL)
    read.close()
    return await change(request, asked, CloseNodes(labels=labels), "labels")


@serves(op.RemoveNode)
async def remove_node(request: Request, asked: op.RemoveNode) -> wire.Done:
    return await change(request, asked, RemoveNode(name=asked.node), "name")


@serves(op.RevokeNode)
async def revoke_node(request: Request, asked: op.RevokeNode) -> wire.Done:
    services = request.services
    try:
        await services.threads.run(services.identities.revoke, request.leader(asked).name, asked.node)
    except Unserved as problem:
        services.log("revocation not written", {"node": asked.node, "problem": str(problem.__cause__)})
        raise
    return wire.Done()
