"""Answers to requests: documents, streams, and errors as RFC 9457 problem documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from fairlead.core.commands import Rejected
from fairlead.core.errors import Refused
from fairlead.wire.api import Problem
from fairlead.wire.operation import JSON
from fairlead.wire.unserved import Unserved

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


MEDIA_TYPE = "application/problem+json"

STATUS = {
    "invalid": 422,
    "unknown": 422,
    "missing": 404,
    "conflict": 409,
    "alarm": 409,
    "unconfirmed": 409,
    "forbidden": 403,
    "unauthenticated": 401,
    "gone": 404,
    "malformed": 400,
    "method": 405,
    "too large": 413,
    "too large a head": 431,
    "too slow": 408,
    "too many": 429,
    "unavailable": 503,
    "standby": 503,
    "behind": 503,
    "not ready": 503,
    "timeout": 504,
    "unwritten": 507,
}
"""Code of an error → HTTP status."""


PART_BYTES = 64 * 1024
"""Bytes of an answer that are passed on at a time, so that a slow reader keeps few of them in memory."""


async def send_body(send: Send, body: bytes) -> None:
    """Send the whole body of an answer."""
    for at in range(PART_BYTES, len(body), PART_BYTES):
        await send({"type": "http.response.body", "body": body[at - PART_BYTES : at], "more_body": True})
    await send({"type": "http.response.body", "body": body[(max(0, len(body) - 1)) // PART_BYTES * PART_BYTES :]})


class Unconfirmed(Refused):
    """Raised for a change that needs a confirmation. `problem` says what it would do."""

    def __init__(self, effect: str, code_to_confirm: str) -> None:
        problem = f"{effect}; to do it, send the request again with the header Fairlead-Confirm: {code_to_confirm}"
        super().__init__("", problem, "unconfirmed")
        self.code_to_confirm = code_to_confirm


class Response:
    """An answer. Content is sent as JSON, unless it is bytes or text."""

    body: bytes = b""

    def __init__(
        self, content: Any, status: int = 200, media: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        if isinstance(content, str):
            content = content.encode()
        self.body = content if isinstance(content, bytes) else msgspec.json.encode(content)
        self.status = status
        self.headers = {"content-type": media, "content-length": str(len(self.body)), **(headers or {})}

    async def send(self, receive: Receive, send: Send) -> None:
        await send(self._start())
        await send_body(send, self.body)

    def _start(self) -> dict[str, Any]:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        return {"type": "http.response.start", "status": self.status, "headers": headers}


class Stream(Response):
    """An answer that is sent in parts until the caller disconnects."""

    def __init__(self, parts: AsyncGenerator[bytes], media: str, headers: Mapping[str, str]) -> None:
        self.parts = parts
        self.status = 200
        self.headers = {"content-type": media, **headers}

    async def send(self, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._pass_on(send)), asyncio.create_task(disconnected(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.parts.aclose()

    async def _pass_on(self, send: Send) -> None:
        await send(self._start())
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def header(scope: Scope, wanted: bytes) -> bytes:
    """Return a header of a request; empty if it is absent."""
    return next((value for name, value in scope["headers"] if name == wanted), b"")


async def disconnected(receive: Receive) -> None:
    """Wait until the caller disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def cookie(name: str, value: str, path: str, seconds: int, secure: bool) -> dict[str, str]:
    """Return the header that sets a cookie, which only this server gets and no script can read."""
    text = f"{name}={value}; HttpOnly; Max-Age={seconds}; Path={path}; SameSite=strict"
    return {"set-cookie": f"{text}; Secure" if secure else text}


def problem_of(error: Refused | Rejected | Unserved) -> Problem:
    """Return the problem document of an error."""
    status = STATUS.get(error.code, 422)
    return Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=error.problem,
        code=error.code,
        field="" if isinstance(error, Unserved) else error.field,
        leader=error.leader if isinstance(error, Unserved) else "",
        confirm=error.code_to_confirm if isinstance(error, Unconfirmed) else "",
    )


def plain(status: int, detail: str, code: str) -> Problem:
    """Return a problem that is about no field."""
    return Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem, problem.status, MEDIA_TYPE, headers)
