"""Recorded answers of an API server: a small server plays them in order, and notes the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from fairlead.client.async_pool import Address, Http

Json = dict[str, Any]


class Answer(NamedTuple):
    """One answer: its lines are sent as chunks. A `cut` closes the connection before the answer is complete."""

    status: int
    lines: Sequence[Any] = ()
    headers: Sequence[str] = ()
    cut: bool = False
    stays_open: bool = False
    """True for a watch in which nothing more happens."""


def pod(name: str, version: int, **spec: Any) -> Json:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, "spec": spec}


def listed(version: int, *items: Json, token: str = "") -> Answer:
    return Answer(200, [{"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(items)}])


def watched(*events: tuple[str, Json], cut: bool = False, stays_open: bool = False) -> Answer:
    lines = [{"type": kind, "object": found} for kind, found in events]
    return Answer(200, lines, cut=cut, stays_open=stays_open)


def refused(status: int, reason: str = "", *headers: str) -> Answer:
    return Answer(status, [{"kind": "Status", "code": status, "reason": reason, "message": reason}], headers)


class Recorded:
    """Plays answers; `requests` are the first lines and bodies of what was asked."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.left = list(answers)
        self.requests: list[tuple[str, bytes]] = []
        self.connections = 0
        self._idle = asyncio.Event()

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-len")), 0
                )
                body = await reader.readexactly(length)
                method, path, _ = head.split("\r\n")[0].split(" ")
                self.requests.append((f"{method} {path}", body))
                if not self.left:
                    await self._idle.wait()
                    return
                answer = self.left.pop(0)
                if not await self._send(writer, answer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> bool:
        lines = [f"HTTP/1.1 {answer.status} Whatever", "Transfer-Encoding: chunked", *answer.headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        for line in answer.lines:
            data = json.dumps(line).encode() + b"\n"
            middle = len(data) // 2  # an event may come in pieces
            for part in (data[:middle], data[middle:]):
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
        if answer.cut:
            return False
        if answer.stays_open:
            await self._idle.wait()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def with_answers(answers: Sequence[Answer], act: Callable[[Recorded, Http], Awaitable[None]]) -> None:
    """Play answers to a client."""
    recorded = Recorded(answers)
    server = await asyncio.start_server(recorded.play, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = Http(Address("127.0.0.1", port, token=lambda: "secret"), 4)
    try:
        async with asyncio.timeout(30):
            await act(recorded, http)
    finally:
        http.close()
        server.close()
