"""The gate before every route: how large, how slow and how often a request may be, and who asks.

Plain ASGI, so that what is turned away costs next to nothing. A request that passes has `caller` in its scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import msgspec

from fairlead.api.problems import MEDIA_TYPE, Unserved, encoded, problem_of
from fairlead.api.tokens import Token, Tokens

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset(("/healthz", "/readyz", "/api/v1/openapi.json"))
"""Served to anybody: they tell nothing about anyone."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one caller may do."""

    body: int = 8 * 2**20
    """Bytes of a request."""
    body_seconds: float = 30.0
    """How long a request may take to arrive."""
    requests: float = 5_000.0
    """A second, for one token."""
    burst: float = 10_000.0
    failures: float = 5.0
    """Wrong tokens a second, from one address."""
    failures_burst: float = 50.0
    streams: int = 100
    """How many answers without an end one token may be reading."""
    poll_seconds: float = 60.0
    """How long a question may wait for something to happen."""


class Buckets:
    """So many a second, and a burst on top, for each of many names."""

    def __init__(self, rate: float, burst: float, names: int = 10_000) -> None:
        self._rate, self._burst, self._names = rate, burst, names
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str, amount: float = 1.0) -> bool:
        """Whether one more is allowed now; with the amount 0, whether one would be."""
        now = monotonic()
        level, since = self._levels.get(name, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1.0
        if amount and allowed:
            if len(self._levels) >= self._names and name not in self._levels:
                self._levels.clear()  # rather generous for a moment than larger and larger
            self._levels[name] = (level - amount, now)
        return allowed


class Gate:
    def __init__(self, app: App, agents: App, tokens: Tokens, bounds: Bounds) -> None:
        """`app` is for requests, `agents` for the WebSockets of agents."""
        self._app = app
        self._agents = agents
        self._tokens = tokens
        self._bounds = bounds
        self._requests = Buckets(bounds.requests, bounds.burst)
        self._failures = Buckets(bounds.failures, bounds.failures_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        try:
            if scope["type"] == "websocket":
                return await self._agents(scope, receive, send)
            scope["caller"] = None if scope["path"] in OPEN_PATHS else self._caller(scope)
            if scope["method"] == "OPTIONS":
                raise Unserved("method", "pages of other sites have no business here, and others need not ask")
            receive = self._bounded(scope, receive)
        except Unserved as refusal:
            return await turn_away(scope, receive, send, refusal)
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Token:
        address = (scope.get("client") or ("",))[0]
        secret = _bearer(scope)
        token = self._tokens.find(secret) if secret else None
        if token is None:
            # Guessing is hopeless, but it should not cost us much either.
            if not self._failures.take(address):
                raise Unserved("too many", "too many requests without a valid token; wait a while", 10)
            said = "the token is not known, was revoked or has expired" if secret else "a token is needed"
            raise Unserved("unauthenticated", f"{said}; send Authorization: Bearer TOKEN")
        if not self._requests.take(token.id):
            raise Unserved("too many", f"more than {self._bounds.requests:g} requests a second; slow down", 1)
        return token

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """The request's body, as long as it is neither too large nor too slow."""
        most = self._bounds.body
        too_large = Unserved("too large", f"a request has at most {most:,} bytes; send less at once")
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > most:
            raise too_large
        seen = 0
        whole = False
        deadline = asyncio.get_running_loop().time() + self._bounds.body_seconds

        async def bounded() -> Any:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Unserved("too slow", "the request took too long to arrive; send it again") from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > most:
                raise too_large
            return message

        return bounded


def _bearer(scope: Scope) -> str:
    kind, _, secret = _header(scope, b"authorization").partition(b" ")
    return secret.strip().decode("latin-1") if kind.lower() == b"bearer" else ""


def _header(scope: Scope, wanted: bytes) -> bytes:
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value)
    return b""


async def turn_away(scope: Scope, receive: Receive, send: Send, refusal: Unserved) -> None:
    problem = problem_of(refusal)
    if scope["type"] == "websocket":
        await receive()
        return await send({"type": "websocket.close", "code": 4000 + problem.status, "reason": problem.detail[:100]})
    body = encoded(problem)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
