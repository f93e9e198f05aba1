"""The socket that is listened on, the files of TLS, and connections as they are accepted.

The socket is made before anything that takes long, so that callers may already queue up. A connection is counted before
anything is read from it, so before its TLS handshake too.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fairlead.api.connections import Client, Connections
from fairlead.api.smallfile import FileProblem

BACKLOG = 1024
HANDSHAKE_SECONDS = 10.0
"""For TLS."""
FAULT_PAUSE = 0.1
"""Seconds to wait when the process is out of file descriptors."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches off Nagle's algorithm only where the protocol is named; with it answers would take 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


def check_tls(certificate: Path, key: Path) -> None:
    """Raise `FileProblem` if the files of TLS cannot be read, or do not belong together."""
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
        # With an empty password the terminal is not asked for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (ssl.SSLError, OSError) as problem:
        raise FileProblem(
            f"--certificate {certificate} and --key {key}: {problem}; name a certificate and its own key, which has no "
            "password"
        ) from None


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
