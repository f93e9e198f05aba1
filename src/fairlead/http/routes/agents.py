"""The WebSocket endpoint of agents. It needs no token: the hub checks the key of the agent's node, or the ticket of a
tunnel that it has asked the agent for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs

from fairlead.core.errors import Refused
from fairlead.engines.engine import Closed
from fairlead.http.context import Services
from fairlead.http.middleware import turn_away
from fairlead.http.responses import App, Receive, Scope, Send
from fairlead.wire.agent_messages import PATH, Refusal, encode
from fairlead.wire.unserved import Unserved


class Socket:
    """A WebSocket as a `Connection` of the hub, or of the client of a tunnel."""

    def __init__(self, receive: Receive, send: Send, trust: Callable[[], None]) -> None:
        self.trust = trust
        self._receive = receive
        self._send = send
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended or was closed."""

    async def send(self, data: bytes) -> None:
        if self.closed.done():
            raise Closed
        try:
            await self._send({"type": "websocket.send", "bytes": data})
        except OSError:
            self._end()
            raise Closed from None

    async def recv(self) -> bytes:
        if self.closed.done():
            raise Closed
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._end()
            raise Closed
        data = message.get("bytes")
        return data if data is not None else str(message.get("text", "")).encode()

    def _end(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    async def close(self, code: int, reason: str) -> None:
        if not self.closed.done():
            self._end()
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


async def _tunnel(services: Services, scope: Scope, receive: Receive, send: Send) -> None:
    """Give the connection of an agent to the tunnel that its ticket is for, and serve it until it ends."""
    await receive()
    connection = Socket(receive, send, scope["trust"])
    ticket = scope["path"].removeprefix(f"{PATH}/")
    await send({"type": "websocket.accept"})
    if services.hub.claim(ticket, connection):
        await connection.closed
    else:
        await connection.close(1008, "no tunnel waits for this connection")


def agents(services: Services) -> App:
    """Return the ASGI application for agents."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        problem = ""
        try:
            if scope["path"].startswith(f"{PATH}/"):
                return await _tunnel(services, scope, receive, send)
            if scope["path"] != PATH:
                raise Unserved("missing", f"agents connect to {PATH}")
            query = parse_qs(scope["query_string"].decode("latin-1"))
            name = query.get("partition", [""])[0]
            epoch = 0
            try:
                name = services.control.find(name).name
            except Refused:
                name = name or "default"
                epoch = await services.control.removed(name)
                if not epoch:
                    raise
        except Refused as refusal:
            problem = str(refusal)
        except Unserved as unserved:
            return await turn_away(scope, receive, send, unserved)
        await receive()
        await send({"type": "websocket.accept"})
        connection = Socket(receive, send, scope["trust"])
        if problem:
            with suppress(Closed):
                await connection.send(encode(Refusal(problem, final=True)))
                await connection.close(1008, "there is no such partition")
        elif epoch:
            await services.hub.dismiss(name, epoch, connection)
        else:
            await services.hub.serve(name, connection)

    return application
