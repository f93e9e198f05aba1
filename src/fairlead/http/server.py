"""The HTTP server: uvicorn with limits on the duration and size of requests, and on the number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import ssl
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from fairlead.http.connection_limits import Connections
from fairlead.http.listener import Listener
from fairlead.http.middleware import Gate
from fairlead.wire.agent_messages import MAX_FIRST_MESSAGE_BYTES, MAX_MESSAGE_BYTES

HEAD_SECONDS = 20.0
"""Seconds from the start of a connection, or the first byte of a request, to the end of the request's head."""
IDLE_SECONDS = 75.0
"""Seconds from an answer to the next request. Other bytes, such as the rest of a body, do not extend them."""
STUCK_SECONDS = 30.0
"""Seconds after which a connection is dropped if its client reads nothing of an answer."""
HEAD_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
UNREAD_BYTES = 64 * 1024
"""Unread bytes beyond the largest message at which a ping drops the connection instead of being answered."""
FAREWELL_SECONDS = 10.0
"""Seconds that the client of a closed WebSocket has to read the last messages."""
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
    """HTTP with limits: drops clients whose request head is slow or too large, or that do not read their answers."""

    _alarm: asyncio.TimerHandle | None = None
    """Timer that drops the connection; it runs while no request is in progress."""
    _stuck: asyncio.TimerHandle | None = None
    """Timer for the next check of the unsent bytes; it runs while the client does not read its answer."""
    _head = 0
    """Bytes of the request head that have arrived."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect(HEAD_SECONDS)
        if self.client is not None and not _connections(self.config).stay(self.client, transport.abort):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_alarms()
        if self.client is not None:
            _connections(self.config).leave(self.client)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._alarm is not None:
            self._head += len(data)
            # A body may follow in the same chunk, so the head is too large only if the chunk exceeds both limits.
            if self._head > HEAD_BYTES + CHUNK_BYTES:
                self._give_up()
                return
        super().data_received(data)

    def handle_websocket_upgrade(self) -> None:
        self._stop_alarms()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._alarm is None and self.cycle.response_complete:
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
        self._head = 0
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


class SocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket of an agent. Before the key of its node is checked, only small messages are accepted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.max_message_size = self._largest = MAX_FIRST_MESSAGE_BYTES
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
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        # The peer can send any number of pings without reading the answers.
        if self.transport.get_write_buffer_size() > UNREAD_BYTES + self._largest:
            self.transport.abort()
        if not self.transport.is_closing():
            super().handle_ping()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close" and self._alarm is None and not self.disconnected:
            self._alarm = self.loop.call_later(FAREWELL_SECONDS, self.transport.abort)
        await super().send(message)

    def _trust(self) -> None:
        self.conn.max_message_size = self._largest = MAX_MESSAGE_BYTES
        if self.client is not None:
            _connections(self.config).trust(self.client)


class Server(uvicorn.Server):
    """A server that runs in an existing asyncio loop and leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        """Listen with `Listener`, whose limits apply from the start of a connection."""
        config = self.config

        def protocol() -> Protocol:
            return Protocol(config, self.server_state, self.lifespan.state)

        self.servers = [
            cast(asyncio.Server, Listener(sock, config.backlog, protocol, config.ssl, _connections(config)))
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
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    config.load()  # fail on a bad certificate before the server is announced as up
    return Server(config)
