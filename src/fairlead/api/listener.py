"""Accepts connections. Each is counted before anything is read from it, so before its TLS handshake too."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from fairlead.api.connections import Client, Connections

HANDSHAKE_SECONDS = 10.0
"""For TLS."""
FAULT_PAUSE = 0.1
"""Seconds to wait when the process is out of file descriptors."""


class Listener:
    """One listening socket, as `asyncio.Server` is to its user."""

    def __init__(
        self,
        sock: socket.socket,
        backlog: int,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        connections: Connections,
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._tls = tls
        self._connections = connections
        self._shaking: set[asyncio.Task[None]] = set()
        """Connections whose handshake is under way."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more."""
        for task in (self._accepting, *self._shaking):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._shaking, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, address = await loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(FAULT_PAUSE)
                continue
            client: Client = address[:2]
            if not self._connections.enter(client, partial(_end, link)):
                link.close()
                continue
            task = asyncio.create_task(self._connect(link, client))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _connect(self, link: socket.socket, client: Client) -> None:
        loop = asyncio.get_running_loop()
        seconds = HANDSHAKE_SECONDS if self._tls else None
        try:
            await loop.connect_accepted_socket(self._protocol, link, ssl=self._tls, ssl_handshake_timeout=seconds)
        except (OSError, RuntimeError):  # no TLS at the other end, or not in time, or it was turned out
            self._connections.leave(client)
            link.close()


def _end(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
