"""The agent's hop of a tunnel: it copies bytes between the server and a spawner, until one of them ends it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fairlead.agent.spawner.frames import pack
from fairlead.wire.agent_messages import OpenTunnel

PIECE = 1 << 18
"""Bytes to copy at a time."""
OLD = "409 the spawner is of an earlier version, which has no tunnels; try again when its running tasks have ended"
NONE = "409 the task does not run here"
UNKNOWN = "404 "
"""Begins the answer of a spawner that does not have the tunnel."""
ANSWER_TIME = 10.0


class ServerSide(Protocol):
    """A WebSocket to the server. Both methods raise when it has ended."""

    async def send(self, data: bytes) -> None: ...

    async def recv(self) -> bytes: ...


class Tunnels:
    """The tunnels of an agent that are connected now."""

    def __init__(self, most: int, each: int) -> None:
        """Allow `most` connected tunnels, and `each` of one user."""
        self._most = most
        self._each = each
        self._users: dict[str, int] = {}

    async def serve(
        self, request: OpenTunnel, folders: Iterable[Path], dial: Callable[[], Awaitable[ServerSide]]
    ) -> None:
        """Connect a tunnel: ask the spawners in `folders` one after another, and tell the server what they say.

        `dial` opens the connection to the server.
        """
        here = self._users.get(request.user, 0)
        self._users[request.user] = here + 1
        try:
            if here >= self._each or sum(self._users.values()) > self._most:
                return await self._refuse(dial, "429 too many tunnels are open to this node; close some")
            answer = NONE
            for folder in folders:
                answer, link = await _ask(folder, request)
                if link is not None:
                    server = await dial()
                    await server.send(b"+")
                    return await _copy_both(server, *link)
                if not answer.startswith((UNKNOWN, NONE)):
                    break
            await self._refuse(dial, answer)
        finally:
            self._users[request.user] -= 1
            if not self._users[request.user]:
                del self._users[request.user]

    async def _refuse(self, dial: Callable[[], Awaitable[ServerSide]], answer: str) -> None:
        server = await dial()
        await server.send(answer.encode())
        with suppress(Exception):  # the server ends the connection
            await server.recv()


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _ask(folder: Path, request: OpenTunnel) -> tuple[str, Link | None]:
    """Ask a spawner for a tunnel. Return its answer, and the connection if it accepts."""
    sock = _connect(folder)
    if sock is None:
        return (OLD if (folder / "socket").exists() else NONE), None
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=PIECE)
    task = (request.number, request.stage, request.attempt, request.index)
    writer.write(
        pack(
            {
                "task": task,
                "tunnel": request.tunnel,
                "new": request.new,
                "kind": request.kind,
                "command": request.command,
                "environment": request.environment,
                "directory": request.directory,
                "terminal": request.terminal,
            }
        )
    )
    try:
        async with asyncio.timeout(ANSWER_TIME):
            answer = (await reader.readline()).decode("utf-8", "replace").strip()
    except (TimeoutError, ValueError):  # a line without an end
        answer = "503 the spawner does not answer"
    if answer == "+":
        return answer, (reader, writer)
    writer.close()
    return answer or NONE, None


def _connect(folder: Path) -> socket.socket | None:
    """Return a connection to the socket for tunnels of a spawner; None if none listens."""
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(f"/proc/self/fd/{at}/tunnels")
    except OSError:
        sock.close()
        return None
    finally:
        os.close(at)
    return sock


async def _copy_both(server: ServerSide, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def down() -> None:
        while True:
            writer.write(await server.recv())
            await writer.drain()

    async def up() -> None:
        while data := await reader.read(PIECE):
            await server.send(data)

    tasks = [asyncio.create_task(down()), asyncio.create_task(up())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
