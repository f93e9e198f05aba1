"""The gate before all routes: limits the size, duration and rate of requests, and finds the caller by the token.

It is plain ASGI, so that refused requests cost little. The scope of a request that passes has its `caller`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec

from fairlead.control.control import Control
from fairlead.control.partition import REQUEST_USER, REVISION, Revision
from fairlead.http.connection_limits import Connections, network_of
from fairlead.http.page import Page
from fairlead.http.responses import MEDIA_TYPE, App, Receive, Scope, Send, header, problem_of, problem_response
from fairlead.http.strangers import Buckets, Strangers
from fairlead.identity.sessions import HEADER, Sessions
from fairlead.identity.smallfile import FileProblem
from fairlead.identity.tokens import Token, Tokens
from fairlead.wire.agent_messages import PATH
from fairlead.wire.operations import rows
from fairlead.wire.unserved import Unserved

OPEN_PATHS = frozenset(row.route.path for row in rows() if not row.route.role)
"""Paths that need no token. Their answers contain nothing about users."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for callers."""

    body: int = 8 * 2**20
    """Bytes of one request."""
    bodies: int = 4 * 8 * 2**20
    """Bytes of all requests in progress of one user."""
    written: float = 4 * 2**20
    """Bytes per second of all requests of one user, in the long run: most of them are written to the disk."""
    written_burst: float = 512 * 2**20
    """Bytes that a user may send faster than that. With a data directory, at most a quarter of its disk."""
    body_seconds: float = 30.0
    """Seconds in which a whole request has to arrive."""
    requests: float = 5_000.0
    """Requests per second with one token."""
    burst: float = 10_000.0
    failures: float = 5.0
    """Requests without a valid token per second from one address."""
    failures_burst: float = 50.0
    streams: int = 100
    """Open streams of one token."""
    connections: int = 0
    """Open connections of all callers. 0 means one for each available file descriptor."""
    poll_seconds: float = 60.0
    """Seconds that a request may wait for a job to end."""
    mail_domains: tuple[str, ...] = ()
    """Domains to which jobs may send mail; empty for all."""


REVISION_HEADER = b"fairlead-revision"
"""The header of answers with the number of the last record that the answer reflects."""


class Gate:
    """The outermost ASGI application, which checks requests and passes them on."""

    def __init__(
        self, app: App, agents: App, tokens: Tokens, sessions: Sessions, bounds: Bounds, control: Control
    ) -> None:
        """`app` is the application for requests and tunnels, `agents` the one for WebSockets of agents."""
        self._control = control
        self._page = Page()
        self._sessions = sessions
        self._app = app
        self._agents = agents
        self._tokens = tokens
        self._bounds = bounds
        self.connections = Connections(bounds.connections)
        self.strangers = Strangers()
        self._arrived: Counter[str] = Counter()
        """User → bytes of the user's requests in progress."""
        self._written = Buckets(bounds.written, bounds.written_burst)
        self._requests = Buckets(bounds.requests, bounds.burst)
        self._failures = Buckets(bounds.failures, bounds.failures_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        try:
            if scope["type"] == "websocket":
                if scope["path"].startswith(PATH):
                    return await self._agents(scope, receive, send)
                return await self._tunnel(scope, receive, send)
            if self._page.has(scope["path"]) and scope["method"] in ("GET", "HEAD"):
                return await self._page(scope, receive, send)
            caller = scope["caller"] = None if scope["path"] in OPEN_PATHS else await self._caller(scope)
            REQUEST_USER.set(caller.user if caller is not None and not caller.operator else "")
            if scope["method"] == "OPTIONS":
                raise Unserved("method", "OPTIONS is not served: pages of other sites may not use this API")
            body = Body(scope, receive, self._bounds, self._arrived, self._written)
        except Unserved as refusal:
            return await turn_away(scope, receive, send, refusal)
        revision = Revision()
        REVISION.set(revision)

        async def send_with_revision(message: Any) -> None:
            if message["type"] == "http.response.start" and revision.seq:
                message["headers"] = [*message.get("headers", ()), (REVISION_HEADER, b"%d" % revision.seq)]
            await send(message)

        try:
            await self._app(scope, body.receive, send_with_revision)
        finally:
            body.close()

    async def _tunnel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request for a tunnel, whose answer may be a refusal like any other."""
        await receive()

        async def send_on(message: Any) -> None:
            if message["type"].startswith("http."):
                message["type"] = f"websocket.{message['type']}"
            await send(message)

        try:
            caller = scope["caller"] = await self._caller(scope)
            scope["trust"](caller)
        except Unserved as refusal:
            return await problem_response(problem_of(refusal)).send(receive, send_on)
        REQUEST_USER.set("" if caller.operator else caller.user)
        scope["method"] = "GET"
        await self._app(scope, receive, send_on)

    def recognize(self, scope: Scope) -> Token | None:
        """Return the token of a request if it is valid."""
        if "token" not in scope:
            secret, key = _bearer(scope), header(scope, HEADER).decode("latin-1")
            if secret:
                scope["token"] = self._tokens.find(secret)
            else:
                scope["token"] = self._sessions.find(header(scope, b"cookie").decode("latin-1"), key) if key else None
        token: Token | None = scope["token"]
        return token

    def recognizes(self, head: bytes) -> bool:
        """True if the first bytes of a connection have a valid token. They are not parsed strictly."""
        lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        pairs = (line.partition(b":") for line in lines)
        return self.recognize({"headers": [(name.lower(), value.strip()) for name, _, value in pairs]}) is not None

    async def _caller(self, scope: Scope) -> Token:
        client = scope.get("client") or ("", 0)
        token = self.recognize(scope)
        if token is None:
            secret, key = _bearer(scope), header(scope, HEADER)
            # Tokens cannot be guessed; the limit bounds the cost of wrong ones.
            if not self._failures.take(network_of(client[0])):
                raise Unserved("too many", "too many requests without a valid token; wait a while", 10)
            if key and not secret:
                raise Unserved("unauthenticated", "the session has ended; log in again")
            if secret:  # another server may have created it just now
                with suppress(FileProblem):
                    await asyncio.to_thread(self._tokens.refresh)
                token = self._tokens.find(secret)
        if token is None:
            problem = "the token is not known, was revoked or has expired" if secret else "a token is needed"
            raise Unserved("unauthenticated", f"{problem}; send Authorization: Bearer TOKEN")
        if not self._requests.take(token.id):
            raise Unserved("too many", f"more than {self._bounds.requests:g} requests a second; slow down", 1)
        self.connections.trust(client, token)
        return token


class Body:
    """The body of a request. `receive` raises if it is too large or slow, or if its user sends too much at once."""

    def __init__(self, scope: Scope, receive: Receive, bounds: Bounds, arrived: Counter[str], written: Buckets) -> None:
        self._receive = receive
        self._bounds = bounds
        self._arrived = arrived
        self._written = written
        self._user: str = scope["caller"].user if scope["caller"] is not None else ""
        self._seen = 0
        self._whole = False
        self._deadline = asyncio.get_running_loop().time() + bounds.body_seconds
        length = header(scope, b"content-length")
        if length.isdigit() and int(length) > bounds.body:
            raise self._too_large()

    async def receive(self) -> Any:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Unserved("too slow", "the request took too long to arrive; send it again") from None
        more = len(message.get("body", b""))
        self._seen += more
        self._arrived[self._user] += more
        self._whole = not message.get("more_body", False)
        if self._seen > self._bounds.body:
            raise self._too_large()
        if more and not self._written.take(self._user, more):
            raise Unserved(
                "too many",
                f"body: {self._user} has sent {self._bounds.written_burst:,.0f} bytes, and may go on with "
                f"{self._bounds.written:,.0f} bytes a second; send the request again later, or send fewer bytes: an "
                "array instead of many equal jobs, and large data in files",
                max(1, round(more / self._bounds.written)),
            )
        if self._arrived[self._user] > self._bounds.bodies:
            most = self._bounds.bodies
            raise Unserved(
                "too many",
                f"the unfinished requests of one user may have {most:,} bytes together; wait until one has ended",
                1,
            )
        return message

    def close(self) -> None:
        """Stop counting the bytes of the request as in progress."""
        self._arrived[self._user] -= self._seen
        if not self._arrived[self._user]:
            del self._arrived[self._user]

    def _too_large(self) -> Unserved:
        return Unserved("too large", f"a request has at most {self._bounds.body:,} bytes; send less at once")


def _bearer(scope: Scope) -> str:
    kind, _, secret = header(scope, b"authorization").partition(b" ")
    return secret.strip().decode("latin-1") if kind.lower() == b"bearer" else ""


async def turn_away(scope: Scope, receive: Receive, send: Send, refusal: Unserved) -> None:
    """Refuse a request or a WebSocket, and close its connection."""
    problem = problem_of(refusal)
    if scope["type"] == "websocket":
        await receive()
        return await send({"type": "websocket.close", "code": 4000 + problem.status, "reason": problem.detail[:100]})
    body = msgspec.json.encode(problem)
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
