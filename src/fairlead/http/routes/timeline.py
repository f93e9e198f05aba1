"""The handler for the timeline of tasks on nodes."""

from __future__ import annotations

import msgspec

from fairlead.core.ranges import count
from fairlead.core.resources import HOUR, SECOND
from fairlead.core.state import Partition
from fairlead.history.recorder import AttemptRow
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.http.routes.history import span_of
from fairlead.http.routes.jobs import with_seconds
from fairlead.views.answers import amounts
from fairlead.wire import api as wire
from fairlead.wire import operations as op

MAX_BARS = 20_000


@serves(op.Timeline)
async def timeline(request: Request, asked: op.Timeline) -> wire.Timeline:
    services, caller, sees = request.services, request.caller, request.sees
    served = request.leader(asked)
    first, last = span_of(asked.since, asked.until)
    end = served.now if last is None else last
    start = end - HOUR if first is None else first

    def look(state: Partition) -> list[wire.Bar]:
        nodes = state.nodes
        return [
            wire.Bar(
                node=nodes.name[nodes.rows[allocation.node]],
                job=allocation.stage.job.id,
                name=allocation.stage.job.spec.name,
                stage=allocation.stage.name,
                user=allocation.stage.job.user,
                queue=allocation.stage.job.queue.path,
                tasks=count(allocation.indices),
                resources=amounts(allocation.stage.spec.resources),
                started=allocation.started / SECOND,
                ended=None,
                outcome="",
            )
            for allocation in state.allocations.values()
            if allocation.started is not None and allocation.started < end and sees(allocation.stage.job)
        ]

    running = await served.read(look)
    user = "" if caller.operator else caller.user
    rows = await services.recorded(services.records.ran, served.name, start, end, user, MAX_BARS)
    # The history has only the names of finished jobs.
    live = {row.job for row, name in rows if not name}
    names = await served.read(lambda state: {job: state.jobs[job].spec.name for job in live & state.jobs.keys()})
    return wire.Timeline(
        since=start / SECOND,
        until=end / SECOND,
        bars=[*running, *(_bar(row, name or names.get(row.job, "")) for row, name in rows if row.node)],
        complete=len(rows) < MAX_BARS,
    )


def _bar(row: AttemptRow, name: str) -> wire.Bar:
    fields = with_seconds(row, name=name, tasks=count(row.indices), resources=amounts(row.amounts))
    return msgspec.convert(fields, wire.Bar)
