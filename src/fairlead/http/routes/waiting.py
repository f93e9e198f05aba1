"""Routes of what waits: lanes with their asks, and nodes that are held for asks."""

from __future__ import annotations

from fairlead.core.commands import BringToFront, CancelAsk, ReleaseHold, ResetLane
from fairlead.core.reader import Reader
from fairlead.core.state import Partition
from fairlead.http.context import Request, caller_fields, seen_by
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import touch
from fairlead.views.answers import hold_answers, lane_answers, promise_answers
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Lanes)
async def lanes(request: Request, asked: op.Lanes) -> wire.Lanes:
    services = request.services
    sees = seen_by(request)
    served = services.control.find(asked.partition)

    def look(state: Partition) -> wire.Lanes:
        figures = services.metrics.lanes(state.name)
        listed = lane_answers(state, figures, asked.limit, asked.first, sees, served.writer.reasons)
        return wire.Lanes(lanes=listed, ready=state.readiness.ready)

    return await served.read(look)


def _ask(data: object) -> tuple[str, str]:
    read = Reader(data, "", "an ask")
    job, stage = read.name("job"), read.name("stage")
    read.close()
    return job, stage


@serves(op.BringToFront)
async def bring_to_front(request: Request, asked: op.BringToFront) -> wire.Done:
    job, stage = _ask(asked.document)
    return await touch(
        request, asked.partition, job, BringToFront(job=job, stage=stage, **caller_fields(request, asked.key))
    )


@serves(op.CancelAsk)
async def cancel(request: Request, asked: op.CancelAsk) -> wire.Done:
    job, stage = _ask(asked.document)
    return await touch(
        request, asked.partition, job, CancelAsk(job=job, stage=stage, **caller_fields(request, asked.key))
    )


@serves(op.ResetLane)
async def reset_lane(request: Request, asked: op.ResetLane) -> wire.Done:
    read = Reader(asked.document, "", "a reset")
    queue, job = read.text("queue", most=1_000), read.name("job")
    cancel = read.flag("cancel", False)
    read.close()
    command = ResetLane(queue=queue, job=job, cancel=cancel, **caller_fields(request, asked.key))
    return await touch(request, asked.partition, job, command)


@serves(op.Holds)
async def holds(request: Request, asked: op.Holds) -> wire.Holds:
    sees = seen_by(request)
    served = await request.services.control.reader(asked.partition, asked.min_revision)

    def look(state: Partition) -> wire.Holds:
        return wire.Holds(holds=hold_answers(state, sees, served.now), promises=promise_answers(state, sees))

    return await served.read(look)


@serves(op.ReleaseHold)
async def release_hold(request: Request, asked: op.ReleaseHold) -> wire.Done:
    read = Reader(asked.document, "", "a hold")
    job = read.name("job")
    stage = read.name("stage") if "stage" in read.doc else ""
    read.close()
    return await touch(
        request, asked.partition, job, ReleaseHold(job=job, stage=stage, **caller_fields(request, asked.key))
    )
