"""The listening socket, checks of the TLS files, and accepting connections.

The socket is opened before the slow steps of the start, so that early connections wait in its backlog. A connection
counts from its start, so that clients in a TLS handshake are limited too.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fairlead.http.connection_limits import Client, Connections
from fairlead.identity.smallfile import FileProblem

BACKLOG = 1024
HANDSHAKE_SECONDS = 10.0
"""Seconds in which a client has to complete the TLS handshake."""
FAULT_PAUSE = 0.1
"""Seconds to wait if the process has no free file descriptor."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 means any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is named; with it, answers would take 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def check_tls(certificate: Path, key: Path) -> None:
    """Raise `FileProblem` if the TLS files cannot be read or do not belong together."""
    for option, path, mark, wanted in (
        ("--certificate", certificate, b"CERTIFICATE-----", "certificate"),
        ("--key", key, b"PRIVATE KEY-----", "private key"),
    ):
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise FileProblem(f"{option} {path}: {problem.strerror}; name a file that the server can read") from None
        if mark not in content:
            raise FileProblem(f"{option} {path}: there is no {wanted} in it; name a PEM file that has one")
    try:
        # An empty password keeps OpenSSL from asking for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (ssl.SSLError, OSError) as problem:
        raise FileProblem(
            f"--certificate {certificate} and --key {key}: {problem}; name a certificate and its own key, which has no "
            "password"
        ) from None


class Listener:
    """One listening socket, with the interface of `asyncio.Server`."""

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
        """Tasks of connections that are in their TLS handshake."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections."""
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
        except (OSError, RuntimeError):  # no TLS handshake in time, or the connection was closed
            self._connections.leave(client)
            link.close()


def _end(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
