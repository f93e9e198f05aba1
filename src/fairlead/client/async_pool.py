"""Reusable connections to a server, for asyncio: the transport of `AsyncClient` and of the Kubernetes adapter.

It has HTTP/1.1 with keep-alive, TLS, a bearer token, whole answers, and endless answers with a limit on what is
buffered. General-purpose libraries need ten times the CPU time for a request (decision 0043).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, cast

import httptools

MAX_BUFFERED = 4 * 2**20
"""Bytes of a stream to buffer for a slow reader before the connection is paused."""
CONNECT_TIMEOUT = 10.0


class Lost(Exception):
    """Raised if the connection failed before the whole answer arrived. The request may have been executed."""


class Reply(NamedTuple):
    status: int
    content: bytes
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """The headers as received."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers by their names in lower case."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.fields}

    @property
    def text(self) -> str:
        """The start of the content, for messages."""
        return self.content[:300].decode(errors="replace")

    @property
    def retry_after(self) -> float:
        """The seconds to wait before a retry, as the server asks; 0 if it does not."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdigit() else 0.0


class Address(NamedTuple):
    """How to reach a server. `token` is called for each request and may return an empty text."""

    host: str
    port: int
    path: str = ""
    tls: ssl.SSLContext | None = None
    token: Callable[[], str] = str


class Http:
    """Requests to one server. At most `connections` requests are in progress; the others wait in order."""

    def __init__(self, address: Address, connections: int = 32) -> None:
        self._address = address
        self._free = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []
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
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "application/json",
        timeout: float = 30.0,
        headers: Mapping[str, str] = {},
    ) -> Reply:
        """Send a request and return the whole answer. Raise `Lost` if it does not arrive within the time."""
        async with self._free:
            try:
                async with asyncio.timeout(timeout):
                    return await self._exchange(self._head(method, path, headers, content_type, len(body)) + body)
            except TimeoutError:
                raise Lost(f"no answer within {timeout:g} s") from None
            except OSError as problem:
                raise _lost(problem) from None

    async def _exchange(self, request: bytes) -> Reply:
        while True:
            reused = bool(self._idle)
            link = self._idle.pop() if reused else await self._connect()
            try:
                reply = await link.request(request)
            except _Closed:
                if reused:  # the server has closed the idle connection meanwhile
                    continue
                raise
            except BaseException:
                link.close()  # a late answer would be taken for the answer to the next request
                raise
            if link.usable:
                self._idle.append(link)
            return reply

    @asynccontextmanager
    async def stream(
        self, path: str, quiet: float | None = None, headers: Mapping[str, str] = {}
    ) -> AsyncIterator[tuple[Reply, AsyncIterator[bytes]]]:
        """Send a GET. Yield the answer as soon as its headers have arrived, and an iterator of its parts.

        If the status is not 200, the answer has its whole content, and there are no parts. Raise `Lost` if the
        connection breaks, or if nothing arrives for `quiet` seconds.
        """
        try:
            link = await self._connect()
        except OSError as problem:
            raise _lost(problem) from None
        self._streams.add(link)
        try:
            parts = link.parts(quiet)
            reply = await link.start(
                self._head("GET", path, headers), None if quiet is None else CONNECT_TIMEOUT + quiet
            )
            if reply.status != 200:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    reply = reply._replace(content=b"".join([part async for part in parts]))
            yield reply, parts
        finally:
            self._streams.discard(link)
            link.close()

    def close(self) -> None:
        """Close all connections. Open streams end with `Lost`."""
        for link in (*self._idle, *self._streams):
            link.close()
        self._idle.clear()

    def _head(
        self, method: str, path: str, headers: Mapping[str, str], content_type: str = "", length: int = 0
    ) -> bytes:
        address = self._address
        token = address.token()
        fields = {"host": f"{self._host}:{address.port}", "accept": "application/json, */*"}
        if token:
            fields["authorization"] = f"Bearer {token}"
        if length:
            fields["content-type"] = content_type
        if length or method not in ("GET", "DELETE"):
            fields["content-length"] = str(length)
        fields |= headers
        lines = [f"{method} {address.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
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


async def lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream as they are completed, without their ends."""
    rest = b""
    async for part in parts:
        *whole, rest = (rest + part if rest else part).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _lost(problem: OSError) -> Lost:
    return Lost(str(problem) or type(problem).__name__)


class _Closed(OSError):
    """Raised if the connection was closed before the first byte of an answer."""

    def __init__(self) -> None:
        super().__init__("the server closed the connection")


class _Connection(asyncio.Protocol):
    """One connection: a request and its answer at a time. The methods `on_…` are called by the parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        """The answer of a request: whole, or of a stream without its content."""
        self._streams = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._news: asyncio.Future[None] | None = None
        self._complete = False
        self._heard = False
        self._problem: Exception | None = None
        self.usable = True

    # -- used by `Http`

    def request(self, data: bytes) -> asyncio.Future[Reply]:
        """Send a request and return a future of its answer."""
        self._parts.clear()
        self._fields.clear()
        self._complete = self._heard = False
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if not self.usable or self._transport is None:
            future.set_exception(_Closed())
            return future
        self._answer = future
        self._transport.write(data)
        return future

    async def start(self, data: bytes, timeout: float | None) -> Reply:
        """Send a request and return its answer, without the content, as soon as its headers have arrived."""
        self._streams = True
        try:
            async with asyncio.timeout(timeout):
                return await self.request(data)
        except TimeoutError:
            raise Lost(f"nothing arrived for {timeout:g} s") from None
        except OSError as problem:
            raise _lost(problem) from None

    async def parts(self, quiet: float | None) -> AsyncIterator[bytes]:
        """Yield the parts of an answer until it is complete. Raise `Lost` after `quiet` silent seconds."""
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
                raise Lost(str(self._problem))
            self._news = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(quiet):
                    await self._news
            except TimeoutError:
                raise Lost(f"nothing arrived for {quiet:g} s") from None

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
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        if self._streams:
            self._reply(b"")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        if self._streams:
            self._size += len(body)
            if self._size > MAX_BUFFERED and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
            self._wake()

    def on_message_complete(self) -> None:
        self._complete = True
        if not self._parser.should_keep_alive():
            self.close()
        if self._streams:
            self._wake()
        else:
            self._reply(b"".join(self._parts))

    def _reply(self, content: bytes) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(Reply(self._parser.get_status_code(), content, tuple(self._fields)))

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _fail(self, problem: Exception) -> None:
        self._problem = problem
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(problem)
        self._wake()
