"""Handler for the table of a job: parameters, states and times of its tasks, each with the last line of its output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fairlead.core.errors import Refused
from fairlead.core.ranges import indices
from fairlead.core.resources import SECOND, shown
from fairlead.core.state import Partition
from fairlead.http.attempts import LogSource, TaskAttempts
from fairlead.http.context import Request, check_streams
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import PAGE_BYTES, find, number_of
from fairlead.http.routes.logs import read_log
from fairlead.views.answers import task_answers
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.agent_messages import LogRequest

TAIL = 1_000
"""Bytes at the end of a log in which the last line is looked for."""
AT_ONCE, LINE_TIMEOUT = 20, 5.0
"""Number of logs to read at a time, and seconds to wait for each."""


@serves(op.Table)
async def table(request: Request, asked: op.Table) -> wire.Table:
    after = number_of(asked.cursor) or 0
    services, served = request.services, request.leader(asked)

    def look(state: Partition) -> tuple[int, str, list[str], wire.TaskPage]:
        job = find(state, request, asked.job)
        stages = [stage for stage in job.stages if asked.stage in ("", stage.name)]
        if not stages:
            known = ", ".join(stage.name for stage in job.stages[:20])
            raise Refused("stage", f"job {job.id} has no stage {shown(asked.stage)}; it has {known}", "missing")
        names = list(dict.fromkeys(name for stage in stages for name, _ in stage.spec.parameters))
        return job.number, job.user, names, task_answers(state, stages, after, asked.limit, PAGE_BYTES)

    number, user, names, page = await served.read(look)
    wanted = {(task.stage, task.index): task.attempt for task in page.tasks if task.attempt}
    times: dict[tuple[str, int], tuple[float | None, float | None, str]] = {}
    stages = {stage for stage, _ in wanted}
    for stage in stages if wanted else ():
        of_stage = [index for name, index in wanted if name == stage]
        rows = await services.recorded(
            services.records.attempts_between, served.name, number, stage, min(of_stage), max(of_stage)
        )
        for row in rows:
            for index in indices(row.indices):
                if wanted.get((stage, index)) == row.attempt:
                    started = None if row.started is None else row.started / SECOND
                    times[stage, index] = started, row.ended / SECOND, row.node
    if asked.stream is not None:
        check_streams(request)
    gate = asyncio.Semaphore(AT_ONCE)

    async def line(task: wire.Task, node: str) -> str:
        if asked.stream is None or not task.attempt or not node:
            return ""
        attempts = TaskAttempts(services, asked.partition, asked.job, number, task.stage, task.index, asked.stream)
        source = LogSource(task.stage, task.attempt, node)
        tail = LogRequest(
            0, number, task.stage, task.index, task.attempt, asked.stream, offset=-TAIL, follow=False, user=user
        )
        parts = read_log(services, served.name, attempts, source, tail)
        data = b""
        try:
            async with gate, asyncio.timeout(LINE_TIMEOUT):
                async for part in parts:
                    data += part.data
        except TimeoutError:
            return ""
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
        lines = [text for text in data.decode(errors="replace").splitlines() if text.strip()]
        return lines[-1].strip() if lines else ""

    async def row_of(task: wire.Task) -> wire.TableRow:
        started, ended, node = times.get((task.stage, task.index), (task.started, None, task.node or ""))
        return wire.TableRow(
            stage=task.stage,
            index=task.index,
            parameters=task.parameters,
            state=task.state,
            attempt=task.attempt,
            node=task.node or node,
            exit_code=task.exit_code,
            reason=task.reason,
            started=started,
            ended=ended,
            line=await line(task, task.node or node),
        )

    return wire.Table(parameters=names, rows=await asyncio.gather(*map(row_of, page.tasks)), next=page.next)
