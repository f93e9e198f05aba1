"""Handlers for waiting work: lanes with their asks, and the nodes held for asks."""

from __future__ import annotations

from fairlead.core.commands import BringToFront, CancelAsk, ReleaseHold, ResetLane
from fairlead.core.reader import Reader
from fairlead.core.state import Partition
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import change_job
from fairlead.views.answers import hold_answers, lane_answers, promise_answers
from fairlead.wire import api as wire
from fairlead.wire import operations as op


@serves(op.Lanes)
async def lanes(request: Request, asked: op.Lanes) -> wire.Lanes:
    served = request.leader(asked)

    def look(state: Partition) -> wire.Lanes:
        figures = request.services.metrics.lanes(state.name)
        listed = lane_answers(state, figures, asked.limit, asked.first, request.sees, served.writer.reasons)
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
    return await change_job(request, asked, BringToFront(job=job, stage=stage))


@serves(op.CancelAsk)
async def cancel(request: Request, asked: op.CancelAsk) -> wire.Done:
    job, stage = _ask(asked.document)
    return await change_job(request, asked, CancelAsk(job=job, stage=stage))


@serves(op.ResetLane)
async def reset_lane(request: Request, asked: op.ResetLane) -> wire.Done:
    read = Reader(asked.document, "", "a reset")
    queue, job = read.text("queue", most=1_000), read.name("job")
    cancel = read.flag("cancel", False)
    read.close()
    return await change_job(request, asked, ResetLane(queue=queue, job=job, cancel=cancel))


@serves(op.Holds)
async def holds(request: Request, asked: op.Holds) -> wire.Holds:
    sees = request.sees
    served = await request.reader(asked)

    def look(state: Partition) -> wire.Holds:
        return wire.Holds(holds=hold_answers(state, sees, served.now), promises=promise_answers(state, sees))

    return await served.read(look)


@serves(op.ReleaseHold)
async def release_hold(request: Request, asked: op.ReleaseHold) -> wire.Done:
    read = Reader(asked.document, "", "a hold")
    job, stage = read.name("job"), read.name("stage", "")
    read.close()
    return await change_job(request, asked, ReleaseHold(job=job, stage=stage))
