"""The HTTP server: uvicorn with limits on the duration and size of requests, and on the number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import ssl
import sys
import termios
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from fairlead.http.connection_limits import Connections
from fairlead.http.listener import Listener
from fairlead.http.middleware import Gate
from fairlead.http.responses import MEDIA_TYPE, Scope, problem_of
from fairlead.identity.tokens import Token
from fairlead.wire.agent_messages import MAX_FIRST_MESSAGE_BYTES, MAX_MESSAGE_BYTES
from fairlead.wire.unserved import Unserved

HEAD_SECONDS = 20.0
"""Seconds from the start of a connection, or the first byte of a request, to the end of the request's head."""
IDLE_SECONDS = 75.0
"""Seconds from an answer to the next request. Other bytes, such as the rest of a body, do not extend them."""
STUCK_SECONDS = 30.0
"""Seconds after which a connection is dropped if its client reads nothing of an answer."""
HEAD_BYTES = 16 * 1024
"""Bytes of the head of a request, and of what a stranger may send ahead."""
HEAD_LINES = 102
"""A first line, 100 headers, and an empty line."""
PIECE_BYTES = 4 * 1024
"""Bytes of a body that are parsed at a time."""
MESSAGE_BYTES = 64 * 1024
"""Bytes of the messages of an agent or a user that are parsed at a time."""
MAX_TUNNEL_BYTES = 1 << 20
"""Largest message of a user."""
PARSED_AT_ONCE = 16 * 1024
"""Bytes of one connection that are parsed before other connections have their turn."""
SMALL_BYTES = 512
"""Bytes of which a stranger's WebSocket, or a body of unknown length, is parsed at a time."""
SHORTEST_HEAD = len(b"GET / HTTP/1.1")
GREETING_MESSAGES = 2
"""Messages of an agent before its key is checked."""
PINGS = 8
"""Pings that a stranger may send."""
FRAGMENTS = 1_000
"""Fragments of one message."""
UNREAD_BYTES = 64 * 1024
"""Unread bytes beyond the largest message at which a ping drops the connection instead of being answered."""
FAREWELL_SECONDS = 10.0
"""Seconds that the client of a closed WebSocket has to read the last messages."""
HSTS = ("strict-transport-security", "max-age=31536000")
"""The header that keeps browsers from using this host without TLS."""
CLOSING = 3
"""Seconds in which requests in progress have to finish when the server stops."""


def _connections(config: uvicorn.Config) -> Connections:
    return cast(Gate, config.app).connections


def unsent(transport: asyncio.Transport) -> tuple[int, int]:
    """Return the number of unsent bytes in this process, and in the kernel without an acknowledgement of the client.

    The kernel accepts bytes in large steps, so only both numbers together show a slow reader.
    """
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        queued = b""
    return transport.get_write_buffer_size(), int.from_bytes(queued, sys.byteorder)


class Protocol(HttpToolsProtocol):
    """HTTP with limits: drops clients whose request head is slow or too large, or that do not read their answers.

    Of the requests that a client sends ahead, one is parsed while another is in progress. A stranger's request waits
    for the turn of its address.
    """

    _alarm: asyncio.TimerHandle | None = None
    """Timer that drops the connection; it runs while no request is in progress."""
    _stuck: asyncio.TimerHandle | None = None
    """Timer for the next check of the unsent bytes; it runs while the client does not read its answer."""
    _head, _lines = 0, 0
    """Bytes and lines of the request head that have arrived."""
    _left: int | None = 0
    """Bytes of the request body that have not been parsed; None if their number is unknown."""
    _problem = ""
    """What is wrong with the head of a request; empty if nothing is."""
    _running: RequestResponseCycle | None = None
    """The request in progress."""
    _unknown = False
    """True if it has no valid token."""
    _upgrading = False
    """True while a WebSocket waits for the turn of its address."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gate = cast(Gate, self.config.app)
        self._unparsed = bytearray()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = self.client or ("", 0)
        self._expect(HEAD_SECONDS)
        if not self._gate.connections.stay(self.client, transport.abort):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_alarms()
        assert self.client is not None
        self._gate.connections.leave(self.client)
        self._gate.strangers.leave(self.client)
        self._unparsed.clear()
        self.pipeline.clear()
        if self._running is not None and self._is_busy():
            # uvicorn tells only the last request, which may be another one.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived, until a request waits for another one. Then read no more."""
        enough = len(self._unparsed) - PARSED_AT_ONCE
        while len(self._unparsed) > max(0, enough) and not (self._waits() or self.transport.is_closing()):
            piece = self._next_piece()
            if not self._problem:
                super().data_received(piece)
            if self._problem:
                self._refuse()
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            assert self.client is not None
            if self._unknown and self._is_busy() and self._left != 0 and not self.pipeline:
                self._unparsed.clear()  # the body of a request that is refused; the connection ends with the answer
            if len(self._unparsed) > HEAD_BYTES and self._gate.connections.is_stranger(self.client) and self._waits():
                self._give_up()
                return
            self.flow.pause_reading()
            if not self._waits():
                self.loop.call_soon(self._parse)
        elif self.flow.read_paused and not self._waits() and len(self.cycle.body) <= PARSED_AT_ONCE:
            self.flow.resume_reading()

    def _waits(self) -> bool:
        """True if nothing is parsed now: another request of the connection comes first."""
        return bool(self.pipeline) or self._upgrading or (self._unknown and self._is_busy())

    def _is_busy(self) -> bool:
        """True if a request is in progress."""
        return self._running is not None and not self._running.response_complete

    def _next_piece(self) -> bytes:
        """Take the rest of one head, or a part of one body, from what has arrived."""
        if self._left is None:
            size = SMALL_BYTES
        elif self._left:
            size = min(self._left, PIECE_BYTES)
        else:
            end = self._unparsed.find(b"\r\n\r\n", SHORTEST_HEAD)
            size = min(len(self._unparsed) if end < 0 else end + 4, HEAD_BYTES - self._head)
            self._head += size
            self._lines += self._unparsed.count(b"\n", 0, size)
            if not size:
                self._problem = f"the head of a request has at most {HEAD_BYTES:,} bytes; send less"
            elif self._lines > HEAD_LINES:
                self._problem = f"the head of a request has at most {HEAD_LINES} lines; send fewer headers"
        piece = bytes(memoryview(self._unparsed)[:size])
        del self._unparsed[:size]
        return piece

    def _refuse(self) -> None:
        """Answer that the head of a request is too large, and close the connection."""
        if self._is_busy():
            self._give_up()
            return
        problem = Unserved("too large a head", self._problem)
        body = msgspec.json.encode(problem_of(problem))
        headers = [
            *self.server_state.default_headers,
            (b"connection", b"close"),
            (b"content-length", b"%d" % len(body)),
            (b"content-type", MEDIA_TYPE.encode()),
        ]
        lines = (b"HTTP/1.1 431 Request Header Fields Too Large", *map(b": ".join, headers), b"", body)
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._stop_alarms()
        assert self.client is not None
        if self._unparsed or self._is_busy():
            self.transport.abort()  # no agent sends before the answer
            return
        self._upgrading = True
        self.flow.pause_reading()
        if self._gate.recognize(cast(Scope, {"headers": self.headers})) is not None:
            self._upgrade()
        else:
            self._gate.strangers.begin(self.client, self._upgrade)

    def _upgrade(self) -> None:
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect(HEAD_SECONDS)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._left == 0:  # else it follows a body, and no request here has such headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._head = self._lines = 0
        self._left = _body_bytes(self.headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._left is not None:
            self._left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._left = 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        assert self.client is not None
        self._running = cycle
        self._unknown = self._gate.recognize(cast(Scope, cycle.scope)) is None
        if not self._unknown:
            super()._start_asgi_task(cycle, app)
        else:
            # No request without a token has a body, so a body is not read.
            cycle.keep_alive = cycle.keep_alive and _body_bytes(cycle.scope["headers"]) == 0
            self._gate.strangers.begin(self.client, partial(self._start, cycle, app))

    def _start(self, cycle: RequestResponseCycle, app: Any) -> None:
        if not self.transport.is_closing():
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed:
            self._parse()
        if self._alarm is None and self.cycle.response_complete and not self.transport.is_closing():
            self._expect(IDLE_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._check_later(unsent(self.transport))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _check_later(self, before: tuple[int, int]) -> None:
        self._stuck = self.loop.call_later(STUCK_SECONDS, self._check_unsent, before)

    def _check_unsent(self, before: tuple[int, int]) -> None:
        """Drop the connection if no byte has been read since the last check. Slow readers may continue."""
        now = unsent(self.transport)
        if now == before:
            self._give_up()
        else:
            self._check_later(now)

    def _expect(self, seconds: float) -> None:
        """Drop the connection unless the head of a request is complete in time."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_later(seconds, self._give_up)

    def _stop_alarms(self) -> None:
        for alarm in (self._alarm, self._stuck):
            if alarm is not None:
                alarm.cancel()
        self._alarm = self._stuck = None

    def _give_up(self) -> None:
        self._stop_alarms()
        # `close` would wait until the peer has read everything.
        self.transport.abort()


def _body_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the number of bytes of a request's body; None if the headers do not say it."""
    sent = dict(headers)
    return None if b"transfer-encoding" in sent else int(sent.get(b"content-length", b"0"))


class SocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket of an agent or a user. Until its key or token has been checked, only small messages are accepted."""

    _messages, _pings = 0, 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.max_message_size = self._largest = MAX_FIRST_MESSAGE_BYTES
        self._trusted = False
        self._unparsed = bytearray()
        self._alarm: asyncio.TimerHandle | None = None
        """Timer that drops the connection after the application has closed it."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        self.scope["trust"] = self._trust  # type: ignore[typeddict-unknown-key]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self.client is not None:
            _connections(self.config).leave(self.client)
        self._unparsed.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            super().data_received(data)  # the head, which is limited already
            return
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived. What follows a stranger's greeting waits until its key has been checked."""
        while self._unparsed and not self.transport.is_closing():
            if not self._trusted and self._messages >= GREETING_MESSAGES:
                self.read_paused = True
                self.transport.pause_reading()
                return
            if not self._trusted and len(self._unparsed) > HEAD_BYTES:
                self.transport.abort()
                return
            size = MESSAGE_BYTES if self._trusted else SMALL_BYTES
            piece = bytes(memoryview(self._unparsed)[:size])
            del self._unparsed[:size]
            super().data_received(piece)
        if self._trusted and self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        self._messages += 1
        super().send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) > FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        # The peer can send any number of pings without reading the answers.
        self._pings += 1
        unread = self.transport.get_write_buffer_size() > UNREAD_BYTES + self._largest
        if unread or (not self._trusted and self._pings > PINGS):
            self.transport.abort()
        if not self.transport.is_closing():
            super().handle_ping()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close" and self._alarm is None and not self.disconnected:
            self._alarm = self.loop.call_later(FAREWELL_SECONDS, self.transport.abort)
        await super().send(message)

    def _trust(self, user: Token | None = None) -> None:
        """Accept more: the key of a node has been checked, or the token of a user."""
        self.conn.max_message_size = self._largest = MAX_MESSAGE_BYTES if user is None else MAX_TUNNEL_BYTES
        self._trusted = True
        if self.client is not None:
            _connections(self.config).trust(self.client, user)
        self._parse()


class Server(uvicorn.Server):
    """A server that runs in an existing asyncio loop and leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        """Listen with `Listener`, whose limits apply from the start of a connection."""
        config = self.config
        gate = cast(Gate, config.app)

        def protocol() -> Protocol:
            return Protocol(config, self.server_state, self.lifespan.state)

        self.servers = [
            cast(
                asyncio.Server,
                Listener(sock, config.backlog, protocol, config.ssl, _connections(config), gate.recognizes),
            )
            for sock in sockets
        ]
        self.started = True


def server(application: Gate, certificate: Path | None = None, key: Path | None = None) -> Server:
    """Return a server of an application, with TLS if there is a certificate."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # do not log bad requests of unauthenticated callers
    config = uvicorn.Config(
        application,
        http=Protocol,
        ws=SocketProtocol,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        timeout_graceful_shutdown=CLOSING,
        headers=[("x-content-type-options", "nosniff"), *([] if certificate is None else [HSTS])],
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    config.load()  # fail on a bad certificate before the server is announced as up
    return Server(config)
