"""The connection of an agent to its server, with a real WebSocket at the other end."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from fairlead.agent.process import _Channel


def test_what_a_server_says_before_it_closes_is_heard() -> None:
    """A server may refuse an agent before the agent has said anything. The agent must learn why."""

    async def refuse(connection: ServerConnection) -> None:
        await connection.send(b"there is no such partition")
        await connection.close(1008, "refused")

    async def story() -> None:
        async with serve(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}") as connection:
                await connection.wait_closed()
                channel = _Channel(connection)
                await channel.send(b"a knock")
                assert await channel.recv() == b"there is no such partition"
                with pytest.raises(ConnectionClosed):
                    await channel.recv()

    asyncio.run(asyncio.wait_for(story(), 60))
