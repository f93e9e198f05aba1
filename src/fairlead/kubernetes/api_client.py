"""A thin HTTP/1.1 client: requests on a pool of connections, and streams of lines.

General-purpose clients take longer for a request than the API server does (decision 0043). This one has what the
adapter needs: keep-alive, TLS, a bearer token, whole answers, and endless answers with a limit on what is buffered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

MAX_BUFFERED = 4 * 2**20
"""Bytes of a stream to buffer for a slow reader before the connection is paused."""
CONNECT_TIMEOUT = 10.0


class Lost(Exception):
    """Raised if the connection failed before the whole answer arrived. The request may have been executed."""


class Reply(NamedTuple):
    status: int
    content: bytes
    retry_after: float = 0.0


class Address(NamedTuple):
    """How to reach a server. `token` is called for each request and may return an empty text."""

    host: str
    port: int
    path: str = ""
    tls: ssl.SSLContext | None = None
    token: Callable[[], str] = str


def parse_url(url: str) -> tuple[bool, str, int, str]:
    """Return whether a URL is encrypted, its host, port and path. Raise `ValueError` if it is no server address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is no address of a server; write https://HOST:PORT")
    return parts.scheme == "https", parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), parts.path


class Http:
    """Requests to one server. At most `connections` requests are in progress; the others wait in order."""

    def __init__(self, address: Address, connections: int = 32) -> None:
        self._address = address
        self._free = connections
        self._idle: list[_Connection] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._streams: set[_Connection] = set()
        self._host = f"[{address.host}]" if ":" in address.host else address.host

    async def open(self, count: int) -> None:
        """Open connections ahead, so that the first requests need not wait for handshakes. Failures are ignored.

        The pods of a gang are bound by parallel requests, and a handshake takes longer than a binding.
        """
        opened = await asyncio.gather(
            *(self._connect() for _ in range(count - len(self._idle))), return_exceptions=True
        )
        self._idle += [link for link in opened if isinstance(link, _Connection)]

    async def call(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json", timeout: float = 30.0
    ) -> Reply:
        """Send a request and return the whole answer. Raise `Lost` if it does not arrive within the time."""
        await self._enter()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    reused = bool(self._idle)
                    link = self._idle.pop() if reused else await self._connect()
                    try:
                        reply = await link.request(self._head(method, path, content_type, len(body)) + body)
                    except _Closed:
                        if reused:  # the server has closed the idle connection meanwhile
                            continue
                        raise Lost("the server closed the connection") from None
                    except BaseException:
                        link.close()  # a late answer would be taken for the answer to the next request
                        raise
                    if link.usable:
                        self._idle.append(link)
                    return reply
        except TimeoutError:
            raise Lost(f"no answer within {timeout:g} s") from None
        except OSError as problem:
            raise Lost(str(problem) or type(problem).__name__) from None
        finally:
            self._leave()

    async def stream(self, path: str, quiet: float) -> AsyncIterator[Reply | bytes]:
        """Send a GET; yield the status first, with the content if it is not 200, and then the lines.

        Raise `Lost` if the connection breaks or nothing arrives for `quiet` seconds.
        """
        try:
            link = await self._connect()
        except OSError as problem:
            raise Lost(str(problem) or type(problem).__name__) from None
        self._streams.add(link)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT + quiet):
                status = await link.start(self._head("GET", path, "", 0))
            if status != 200:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    yield Reply(
                        status, b"".join([part async for part in link.parts(CONNECT_TIMEOUT)]), link.retry_after
                    )
                return
            yield Reply(status, b"")
            rest = b""
            async for part in link.parts(quiet):
                *lines, rest = (rest + part if rest else part).split(b"\n")
                for line in lines:
                    yield line
            if rest:
                yield rest
        except _Closed:
            raise Lost("the server closed the connection") from None
        except TimeoutError:
            raise Lost(f"nothing arrived for {quiet:g} s") from None
        except OSError as problem:
            raise Lost(str(problem) or type(problem).__name__) from None
        finally:
            self._streams.discard(link)
            link.close()

    def close(self) -> None:
        """Close all connections. Open streams end with `Lost`."""
        for link in (*self._idle, *self._streams):
            link.close()
        self._idle.clear()

    def _head(self, method: str, path: str, content_type: str, length: int) -> bytes:
        address = self._address
        token = address.token()
        lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {self._host}:{address.port}"]
        lines.append("Accept: application/json")
        if token:
            lines.append(f"Authorization: Bearer {token}")
        if length:
            lines.append(f"Content-Type: {content_type}")
        if length or method not in ("GET", "DELETE"):
            lines.append(f"Content-Length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _connect(self) -> _Connection:
        address = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, link = await loop.create_connection(
                    _Connection,
                    address.host,
                    address.port,
                    ssl=address.tls,
                    server_hostname=address.host if address.tls else None,
                )
        except TimeoutError:
            raise OSError(f"{address.host}:{address.port} did not answer within {CONNECT_TIMEOUT:g} s") from None
        return link

    async def _enter(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Closed(Exception):
    """Raised if the connection was closed before the first byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection: a request and its answer at a time. The methods `on_…` are called by the parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self._began: asyncio.Future[int] | None = None
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._news: asyncio.Future[None] | None = None
        self._complete = False
        self._heard = False
        self._problem: Exception | None = None
        self.retry_after = 0.0
        self.usable = True

    # -- used by `Http`

    def request(self, data: bytes) -> asyncio.Future[Reply]:
        """Send a request and return a future of its answer."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answer = future
        self._begin()
        if not self.usable or self._transport is None:
            future.set_exception(_Closed())
            return future
        self._transport.write(data)
        return future

    async def start(self, data: bytes) -> int:
        """Send a request and return the status as soon as the headers of the answer have arrived."""
        self._began = asyncio.get_running_loop().create_future()
        self._begin()
        if self._transport is None:
            raise _Closed
        self._transport.write(data)
        return await self._began

    async def parts(self, quiet: float) -> AsyncIterator[bytes]:
        """Yield the parts of an answer until it is complete. Raise `TimeoutError` after `quiet` silent seconds."""
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._size -= len(part)
                if self._paused and self._size < MAX_BUFFERED // 2 and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                yield part
            if self._complete:
                return
            if self._problem is not None:
                raise self._problem
            self._news = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(quiet):
                await self._news

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            with suppress(Exception):
                self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._fail(OSError(f"the answer is not HTTP: {problem}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._transport = None
        self._fail(OSError(str(exc) or "connection lost") if self._heard or exc else _Closed())

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            with suppress(ValueError):
                self.retry_after = float(value)

    def on_headers_complete(self) -> None:
        if self._began is not None and not self._began.done():
            self._began.set_result(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        if self._answer is None:
            self._size += len(body)
            if self._size > MAX_BUFFERED and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
            self._wake()

    def on_message_complete(self) -> None:
        self._complete = True
        if not self._parser.should_keep_alive():
            self.close()
        answer, self._answer = self._answer, None
        if answer is None:
            self._wake()
        elif not answer.done():
            answer.set_result(Reply(self._parser.get_status_code(), b"".join(self._parts), self.retry_after))

    def _begin(self) -> None:
        self._parts.clear()
        self._complete = self._heard = False
        self.retry_after = 0.0

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _fail(self, problem: Exception) -> None:
        self._problem = problem
        for future in (self._answer, self._began):
            if future is not None and not future.done():
                future.set_exception(problem)
        self._answer = self._began = None
        self._wake()
