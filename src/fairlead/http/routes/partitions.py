"""Handlers for partitions: list them, and mark one as ready."""

from __future__ import annotations

from functools import partial

import msgspec

from fairlead.core.commands import MarkReady
from fairlead.http.context import Request, change
from fairlead.http.dispatch import serves, serves_command
from fairlead.views.answers import partition_answer
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Partitions)
async def partitions(request: Request, asked: op.Partitions) -> wire.Partitions:
    control = request.services.control
    answers = []
    for name in control.names():
        served = await control.reader(name)
        answer = await served.read(partition_answer)
        if name not in control.led():  # only the leader of the partition knows its readiness
            answer = msgspec.structs.replace(answer, ready=None, waiting_for=[])
        answers.append(msgspec.structs.replace(answer, leader=control.leader(name)))
    return wire.Partitions(partitions=answers)


serves_command(op.MarkReady, MarkReady, partial(change, what="partition"))
