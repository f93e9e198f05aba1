"""Handlers for pools: list, pause, resume and scale them, and show the use of nodes by pool."""

from __future__ import annotations

from functools import partial

import msgspec

from fairlead.core.commands import MovePool, ScalePool
from fairlead.core.errors import Refused
from fairlead.core.model import Micros, Pool
from fairlead.core.reader import Reader, suggestion
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.http.context import Request, change
from fairlead.http.dispatch import serves, serves_command
from fairlead.pools.provider import kind_of
from fairlead.views.pool_answers import pool_answers, usage_answer
from fairlead.wire import api as wire
from fairlead.wire import operations as op

MAX_NODES = 100_000


@serves(op.Usage)
async def usage(request: Request, asked: op.Usage) -> wire.Usage:
    answer = await request.leader(asked).read(usage_answer)
    request.services.log("usage", msgspec.to_builtins(answer))
    return answer


@serves(op.Pools)
async def pools(request: Request, asked: op.Pools) -> wire.Pools:
    served = request.leader(asked)

    def look(state: Partition) -> list[wire.Pool]:
        listed = [state.pools[name] for name in sorted(state.pools)]
        return _pool_answers(request, state, listed, served.now)

    return wire.Pools(partition=served.name, pools=await served.read(look))


@serves(op.Pool)
async def pool(request: Request, asked: op.Pool) -> wire.Pool:
    served = request.leader(asked)

    def look(state: Partition) -> wire.Pool:
        if asked.pool not in state.pools:
            near = suggestion(asked.pool, state.pools)
            problem = f"there is no pool {shown(asked.pool)}{near}; `fairlead pool list` shows them"
            raise Refused("pool", problem, "missing")
        (answer,) = _pool_answers(request, state, [state.pools[asked.pool]], served.now)
        return answer

    return await served.read(look)


serves_command(op.MovePool, MovePool, partial(change, what="pool"))


@serves(op.ScalePool)
async def scale_pool(request: Request, asked: op.ScalePool) -> wire.Done:
    read = Reader(asked.document, "", "a size")
    nodes = read.count("nodes", high=MAX_NODES)
    read.close()
    return await change(request, asked, ScalePool(pool=asked.pool, nodes=nodes), "pool")


def _pool_answers(request: Request, partition: Partition, pools: list[Pool], now: Micros) -> list[wire.Pool]:
    """Return the answers about pools, with their providers, and the problems and orphans that these report."""
    answers: list[wire.Pool] = []
    for answer in pool_answers(partition, pools, request.sees, now):
        problem, orphans = request.services.control.pools.about(partition.name, answer.name)
        provider = kind_of(partition.pools[answer.name].settings)
        strays = [wire.Orphan(name=machine.name, note=machine.note) for machine in orphans]
        problem = answer.problem or problem
        answers.append(msgspec.structs.replace(answer, provider=provider, problem=problem, orphans=strays))
    return answers
