"""Handlers for queues and the loans between them."""

from __future__ import annotations

from functools import partial

from fairlead.core.commands import MoveQueue
from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.core.state import Partition
from fairlead.http.context import Request, change
from fairlead.http.dispatch import serves, serves_command
from fairlead.views.answers import all_queues, queue_answer
from fairlead.views.loan_answers import loan_answers
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Queues)
async def queues(request: Request, asked: op.Queues) -> wire.Queues:
    served = await request.reader(asked)
    return await served.read(lambda state: all_queues(state, served.now, request.sees_use))


@serves(op.Queue)
async def queue(request: Request, asked: op.Queue) -> wire.Queue:
    served = await request.reader(asked)

    def look(state: Partition) -> wire.Queue:
        if asked.queue not in state.queues:
            raise Refused(
                "queue", f"there is no queue {shown(asked.queue)}; `fairlead queue list` shows them", "missing"
            )
        return queue_answer(state, state.queues[asked.queue], served.now, request.sees_use)

    return await served.read(look)


serves_command(op.MoveQueue, MoveQueue, partial(change, what="queue"))


@serves(op.Loans)
async def loans(request: Request, asked: op.Loans) -> wire.Loans:
    served = await request.reader(asked)
    return await served.read(lambda state: wire.Loans(loans=loan_answers(state, served.now)))
