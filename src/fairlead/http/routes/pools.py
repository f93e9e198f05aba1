"""Handlers for pools: their sizes, orders and orphans; pause, resume and scale them."""

from __future__ import annotations

import msgspec

from fairlead.core.commands import MovePool, ScalePool
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, suggestion
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.http.context import Request, Services, caller_fields, order, seen_by
from fairlead.http.dispatch import serves
from fairlead.pools.provider_settings import kind_of
from fairlead.views.poolanswers import pool_answers, usage_answer
from fairlead.wire import api as wire
from fairlead.wire import operations as op

MAX_NODES = 100_000


@serves(op.Usage)
async def usage(request: Request, asked: op.Usage) -> wire.Usage:
    services = request.services
    answer = await services.control.find(asked.partition).read(usage_answer)
    services.log("usage", msgspec.to_builtins(answer))
    return answer


@serves(op.Pools)
async def pools(request: Request, asked: op.Pools) -> wire.Pools:
    services, sees = request.services, seen_by(request)
    served = services.control.find(asked.partition)

    def look(state: Partition) -> list[wire.Pool]:
        listed = [state.pools[name] for name in sorted(state.pools)]
        return _complete(services, state, pool_answers(state, listed, sees, served.now))

    return wire.Pools(partition=served.name, pools=await served.read(look))


@serves(op.Pool)
async def pool(request: Request, asked: op.Pool) -> wire.Pool:
    services, sees = request.services, seen_by(request)
    served = services.control.find(asked.partition)

    def look(state: Partition) -> wire.Pool:
        if asked.pool not in state.pools:
            near = suggestion(asked.pool, state.pools)
            problem = f"there is no pool {shown(asked.pool)}{near}; `fairlead pool list` shows them"
            raise Refused("pool", problem, "missing")
        (answer,) = _complete(services, state, pool_answers(state, [state.pools[asked.pool]], sees, served.now))
        return answer

    return await served.read(look)


@serves(op.MovePool)
async def move_pool(request: Request, asked: op.MovePool) -> wire.Done:
    command = MovePool(pool=asked.pool, action=asked.action, **caller_fields(request, asked.key))
    return await order(request, asked.partition, command, "pool")


@serves(op.ScalePool)
async def scale_pool(request: Request, asked: op.ScalePool) -> wire.Done:
    read = Reader(asked.document, "", "a size")
    nodes = read.count("nodes", high=MAX_NODES)
    read.close()
    return await order(
        request, asked.partition, ScalePool(pool=asked.pool, nodes=nodes, **caller_fields(request, asked.key)), "pool"
    )


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
