"""Handler for logs of tasks, which are read on the node of the task or from the server's copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

import msgspec

from fairlead.control.partition import PartitionService
from fairlead.core.errors import Refused
from fairlead.core.state import Partition
from fairlead.engines.engine import Away
from fairlead.http.attempts import LogSource, TaskAttempts
from fairlead.http.context import Request, Services, check_streams, counted_stream, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response, disconnected
from fairlead.http.routes.history import find_job
from fairlead.wire import operations as op
from fairlead.wire.agent_messages import LogPart, LogRequest
from fairlead.wire.unserved import Unserved

Result = TypeVar("Result")

AWAY_PAUSE = 0.5
"""Seconds between two tries to reach a node that is not connected."""
COPY_PART = 1 << 18
"""Bytes to read at a time from the server's copy."""
ASKED_AT_ONCE, NODE_TIMEOUT = 100, 5.0
"""Number of nodes to ask at a time for a log whose node is unknown, and seconds to wait for their answers."""


@serves(op.Log)
async def log(request: Request, asked: op.Log) -> Response:
    if asked.attempt is not None and asked.after is not None:
        raise Refused("after", "give `attempt` or `after`, not both")
    services = request.services
    number, user = await find_job(request, asked)
    served = request.leader(asked)
    attempts = TaskAttempts(services, asked.partition, asked.job, number, asked.stage, asked.index, asked.stream)
    check_streams(request)
    with counted_stream(request) as over:
        source = await _unless_gone(request, over, _choose(attempts, asked.attempt, asked.after, asked.follow))
        log_request = LogRequest(
            0, number, source.stage, asked.index, source.attempt, asked.stream, asked.offset, asked.follow, user
        )
        if not source.node and await _copied_size(services, served.name, log_request) is None:
            source = source._replace(node=await _node_with(services, served, source, number, asked.index, user))
        parts = aiter(read_log(services, served.name, attempts, source, log_request))
        first = await _unless_gone(request, over, anext(parts))
    if first.problem and not asked.follow:
        raise Refused("log", first.problem, "conflict")
    answer = streamed(request, _data(first, parts), "text/plain; charset=utf-8")
    answer.headers["fairlead-attempt"] = str(source.attempt)
    return answer


async def _node_with(
    services: Services, served: PartitionService, source: LogSource, number: int, index: int, user: str
) -> str:
    """Return the node with the log of an attempt. Ask the connected nodes that take tasks of the user for it."""

    def look(state: Partition) -> list[str]:
        nodes = state.nodes
        return [nodes.name[row] for _, row in sorted(nodes.rows.items()) if user in (nodes.users[row] or (user,))]

    connected = services.hub.connected(served.name)
    candidates = [name for name in await served.read(look) if name in connected]
    wanted = LogRequest(0, number, source.stage, index, source.attempt, user=user)

    async def has_log(node: str) -> bool:
        parts = services.hub.log(served.name, node, wanted)
        try:
            async with asyncio.timeout(NODE_TIMEOUT):
                return not (await anext(aiter(parts))).problem
        except (Away, TimeoutError):
            return False
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()

    for start in range(0, len(candidates), ASKED_AT_ONCE):
        asked = candidates[start : start + ASKED_AT_ONCE]
        for name, having in zip(asked, await asyncio.gather(*map(has_log, asked)), strict=True):
            if having:
                return name
    raise Refused("log", "it is not known on which node the task ran, and no connected node has its log", "conflict")


async def _choose(attempts: TaskAttempts, attempt: int | None, after: int | None, follow: bool) -> LogSource:
    if attempt is not None:
        return await attempts.numbered(attempt)
    if after is None:
        last = await attempts.last()
        if last is not None:
            return last
    return await attempts.following(after or 0, follow)


async def read_log(
    services: Services, partition: str, attempts: TaskAttempts, source: LogSource, log_request: LogRequest
) -> AsyncIterator[LogPart]:
    """Yield the log of an attempt, from its node, or from the server's copy if the node does not have it any more.

    With `follow`, wait for a disconnected node as long as the attempt runs.
    """
    problem = ""
    while source.node:
        try:
            async for part in services.hub.log(partition, source.node, log_request):
                problem = part.problem
                if not problem:
                    yield part
                log_request = msgspec.structs.replace(log_request, offset=part.offset + len(part.data))
            if not problem:
                return
            break
        except Away as away:
            problem = str(away)
        if not (log_request.follow and await attempts.is_running(source.attempt)):
            break
        await asyncio.sleep(AWAY_PAUSE)
    copied = False
    async for part in _copy(services, partition, log_request):
        copied = True
        yield part
    if not copied:
        yield LogPart(0, 0, b"", True, problem)


async def _copy(services: Services, partition: str, log_request: LogRequest) -> AsyncIterator[LogPart]:
    """Yield the server's copy of a log, or nothing if there is none."""
    size = await _copied_size(services, partition, log_request)
    if services.outputs is None or size is None:
        return
    offset = max(0, size + log_request.offset) if log_request.offset < 0 else log_request.offset
    while data := await services.threads.run(services.outputs.read, partition, log_request, offset, COPY_PART):
        yield LogPart(0, offset, data)
        offset += len(data)
    yield LogPart(0, offset, b"", True)


async def _copied_size(services: Services, partition: str, log_request: LogRequest) -> int | None:
    """Return the size of the server's copy of a log; None if there is no copy."""
    outputs = services.outputs
    return None if outputs is None else await services.threads.run(outputs.size, partition, log_request)


async def _unless_gone(request: Request, over: asyncio.Event, work: Awaitable[Result]) -> Result:
    """Return the result of slow work. Raise if the caller disconnects, or its token is revoked or expires, first."""
    result = asyncio.ensure_future(work)
    others = [asyncio.create_task(disconnected(request.receive)), asyncio.create_task(over.wait())]
    try:
        await asyncio.wait((result, *others), return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if over.is_set():
            raise Unserved("unauthenticated", "the token was revoked or has expired; ask with another one")
        others[0].result()
        raise Refused("log", "the caller has disconnected", "conflict")  # no reader gets this answer
    finally:
        for task in (result, *others):
            task.cancel()  # this ends the stream of log parts too


async def _data(part: LogPart, others: AsyncIterator[LogPart]) -> AsyncGenerator[bytes]:
    while True:
        yield part.data + (f"\n[fairlead: {part.problem}]\n".encode() if part.problem else b"")
        try:
            part = await anext(others)
        except StopAsyncIteration:
            return
