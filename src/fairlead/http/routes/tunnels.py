"""Handler for tunnels to tasks: it finds the task, lets its agent connect, and copies bytes between both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fairlead.core.errors import Refused
from fairlead.engines.engine import Away, Closed, Connection
from fairlead.http.attempts import TaskAttempts
from fairlead.http.context import Request, check_streams, counted_stream
from fairlead.http.dispatch import serves
from fairlead.http.responses import Receive, Response, Send
from fairlead.http.routes.agents import Socket
from fairlead.http.routes.history import find_job
from fairlead.wire import operations as op
from fairlead.wire.agent_messages import OpenTunnel
from fairlead.wire.unserved import Unserved


class Copied(Response):
    """The answer to the client of a tunnel: the bytes that come from an agent, until one of both ends it."""

    def __init__(self, request: Request, agent: Connection, attempt: int) -> None:
        self._request = request
        self._agent = agent
        self._attempt = attempt

    async def send(self, receive: Receive, send: Send) -> None:
        client = Socket(receive, send, lambda: None)
        try:
            with counted_stream(self._request) as over:
                headers = [(b"fairlead-attempt", b"%d" % self._attempt)]
                await send({"type": "websocket.accept", "headers": headers})
                tasks = [
                    asyncio.create_task(_copy(client.recv, self._agent.send)),
                    asyncio.create_task(_copy(self._agent.recv, client.send)),
                    asyncio.create_task(over.wait()),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            with suppress(Closed):
                await self._agent.close(1000, "the client has gone")
            with suppress(Closed):
                await client.close(*((4401, "the token has ended") if over.is_set() else (1012, "connect again")))


async def _copy(source: Callable[[], Awaitable[bytes]], target: Callable[[bytes], Awaitable[None]]) -> None:
    with suppress(Closed):
        while True:
            await target(await source())


@serves(op.OpenTunnel)
async def open_tunnel(request: Request, asked: op.OpenTunnel) -> Response:
    if request.scope["type"] != "websocket":
        raise Refused("upgrade", "a tunnel is a WebSocket; ask for one", "malformed")
    if asked.kind != "command" and (asked.command or asked.environment or asked.directory or asked.terminal):
        raise Refused("kind", "command, environment, directory and terminal are only for the kind command")
    services = request.services
    number, user = await find_job(request, asked)
    if user != request.caller.user:
        problem = f"job {asked.job} belongs to {user}, and processes beside its tasks run as {user}; only {user} may"
        raise Refused("job", f"{problem} open a tunnel to them", "forbidden")
    attempts = TaskAttempts(services, asked.partition, asked.job, number, asked.stage, asked.index, "")
    if asked.attempt is not None:
        source = await attempts.numbered(asked.attempt)
    else:
        last = await attempts.last()
        source = last if last is not None else await attempts.following(0, False)
    if not source.node:
        raise Refused("task", f"task {asked.index} of job {asked.job} does not run", "conflict")
    wanted = OpenTunnel(
        "",
        number,
        source.stage,
        asked.index,
        source.attempt,
        user,
        asked.tunnel,
        asked.new,
        asked.kind,
        tuple(asked.command),
        tuple(_variable(text) for text in asked.environment),
        asked.directory,
        asked.terminal,
    )
    check_streams(request)
    try:
        agent = await services.hub.open_tunnel(request.leader(asked).name, source.node, wanted)
    except Away as away:
        raise Unserved("unavailable", str(away), 1) from None
    return Copied(request, agent, source.attempt)


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise Refused("environment", f"{text[:60]!r} is not a variable; write NAME=value")
    return name, value
