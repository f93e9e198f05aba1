"""The program that listens: uvicorn with bounds of its own on how long and how large the head of a request may be."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from fairlead.api.gate import Gate
from fairlead.wire.agent import FIRST_BYTES, MOST_BYTES

HEAD_SECONDS = 20.0
HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 10_000
CLOSING = 3
"""Seconds that requests under way get when the server ends."""


class Protocol(HttpToolsProtocol):
    """HTTP that gives up on a client which takes too long, or too much, to say what it wants."""

    _alarm: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._alarm is not None:
            self._head += len(data)
            # A body may follow in the same piece, so only what is far too much is a head out of bounds.
            if self._head > HEAD_BYTES + self._room_for_body():
                self._give_up()
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._have_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            # Until the next request begins, uvicorn's own clock for idle connections counts.
            self._have_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._alarm is None:
            self._expect_head()

    def _room_for_body(self) -> int:
        return 256 * 1024

    def _expect_head(self) -> None:
        self._head = 0
        self._alarm = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _have_head(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _give_up(self) -> None:
        self._have_head()
        if not self.transport.is_closing():
            self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets of agents. Messages are small until the application has seen proof of which node it is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.max_message_size = FIRST_BYTES

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        self.scope["trust"] = self._trust  # type: ignore[typeddict-unknown-key]

    def _trust(self) -> None:
        self.conn.max_message_size = MOST_BYTES


class Server(uvicorn.Server):
    """Runs inside our own loop. Signals are the caller's affair."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server(application: Gate, certificate: Path | None = None, key: Path | None = None) -> Server:
    """A server of this application, over TLS if it has a certificate."""
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
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=CLOSING,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    return Server(config)
