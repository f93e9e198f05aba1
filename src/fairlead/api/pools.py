"""Handlers for pools: their sizes, orders and orphans; pause, resume and scale them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import PathParameter

from fairlead.api.cluster import order
from fairlead.api.context import (
    OPERATORS,
    USERS,
    Key,
    PartitionName,
    Services,
    Shaped,
    caller_fields,
    seen_by,
    services_of,
)
from fairlead.core.commands import MovePool, ScalePool
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, suggestion
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.pools.settings import kind_of
from fairlead.views.poolanswers import pool_answers, usage_answer
from fairlead.wire import api as wire

MAX_NODES = 100_000

HttpRequest = Request[Any, Any, Any]
PoolName = Annotated[str, PathParameter(max_length=63)]


@get("/usage", operation_id="usage", guards=[USERS], summary="Nodes in use, by pool")
async def usage(request: HttpRequest, partition: PartitionName = "") -> wire.Usage:
    """Return the numbers of nodes of each pool by use. Empty until the partition is ready."""
    services = services_of(request)
    answer = await services.control.find(partition).read(usage_answer)
    services.log("usage", msgspec.to_builtins(answer))
    return answer


@get("/pools", operation_id="pools", guards=[USERS], summary="Pools, by name")
async def pools(request: HttpRequest, partition: PartitionName = "") -> wire.Pools:
    """List pools with their sizes, their orders, the jobs that the orders are for, and orphaned machines."""
    services, sees = services_of(request), seen_by(request)
    served = services.control.find(partition)

    def look(state: Partition) -> list[wire.Pool]:
        listed = [state.pools[name] for name in sorted(state.pools)]
        return _complete(services, state, pool_answers(state, listed, sees, served.now))

    return wire.Pools(partition=served.name, pools=await served.read(look))


@get("/pools/{pool:str}", operation_id="pool", guards=[USERS], summary="One pool")
async def pool(request: HttpRequest, pool: PoolName, partition: PartitionName = "") -> wire.Pool:
    """Return a pool with its size, its orders, the jobs that the orders are for, and orphaned machines."""
    services, sees = services_of(request), seen_by(request)
    served = services.control.find(partition)

    def look(state: Partition) -> wire.Pool:
        if pool not in state.pools:
            problem = f"there is no pool {shown(pool)}{suggestion(pool, state.pools)}; `fairlead pool list` shows them"
            raise Refused("pool", problem, "missing")
        (answer,) = _complete(services, state, pool_answers(state, [state.pools[pool]], sees, served.now))
        return answer

    return await served.read(look)


@post("/pools/{pool:str}/{action:str}", operation_id="movePool", guards=[OPERATORS], status_code=200)
async def move_pool(
    request: HttpRequest,
    pool: PoolName,
    action: Annotated[str, PathParameter(pattern="^(pause|resume)$")],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Pause a pool, so that it neither grows nor shrinks by itself, or resume it at once."""
    command = MovePool(pool=pool, action=action, **caller_fields(request, key))  # type: ignore[arg-type]
    return await order(request, partition, command, "pool")


@post("/pools/{pool:str}/scale", operation_id="scalePool", guards=[OPERATORS], status_code=200)
async def scale_pool(
    request: HttpRequest,
    pool: PoolName,
    data: Annotated[Any, Shaped(wire.PoolSizeDocument)],
    partition: PartitionName = "",
    key: Key = None,
) -> wire.Done:
    """Order nodes, or give back idle ones, until the pool has this size. Later demand may change the size again."""
    read = Reader(data, "", "a size")
    nodes = read.count("nodes", high=MAX_NODES)
    read.close()
    return await order(request, partition, ScalePool(pool=pool, nodes=nodes, **caller_fields(request, key)), "pool")


def _complete(services: Services, partition: Partition, answers: list[wire.Pool]) -> list[wire.Pool]:
    """Return the answers with provider, problem and orphans filled in."""
    complete: list[wire.Pool] = []
    for answer in answers:
        problem, orphans = services.control.pools.about(partition.name, answer.name)
        complete.append(
            msgspec.structs.replace(
                answer,
                provider=kind_of(partition.pools[answer.name].settings),
                problem=answer.problem or problem,
                orphans=[wire.Orphan(name=machine.name, note=machine.note) for machine in orphans],
            )
        )
    return complete


HANDLERS = [usage, pools, pool, move_pool, scale_pool]
