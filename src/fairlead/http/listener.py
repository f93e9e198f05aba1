"""The listening socket, checks of the TLS files, and accepting connections.

The socket is opened before the slow steps of the start, so that early connections wait in its backlog. A connection
counts from its start, so that clients in a TLS handshake are limited too.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fairlead.http.connection_limits import Client, Connections
from fairlead.http.strangers import Strangers
from fairlead.identity.smallfile import FileProblem

BACKLOG = 1024
HANDSHAKE_SECONDS = 10.0
"""Seconds in which a client has to complete the TLS handshake."""
SET_UPS, HANDSHAKES = 200, 100
"""Connections per second from one address that are set up without a valid token; with TLS the second number, because no
token can be seen before the handshake. All addresses together have four times as many."""
PEEKED_BYTES = 4096
"""Bytes of the first request in which a token is looked for before the connection is set up."""
ACCEPTED_AT_ONCE = 100
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
        recognizes: Callable[[bytes], bool],
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._tls = tls
        self._connections = connections
        self._recognizes = recognizes
        rate = SET_UPS if tls is None else HANDSHAKES
        self._turns = Strangers(rate, 4 * rate)
        self._waiting: dict[Client, socket.socket] = {}
        """Connections that wait for their turn."""
        self._setting_up: set[asyncio.Task[None]] = set()
        self._poll = select.poll()
        self._over = False
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop accepting connections."""
        self._over = True
        self._loop.remove_reader(self._sock)
        for client in list(self._waiting):
            self._drop(self._take(client), client)
        for task in self._setting_up:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._setting_up, return_exceptions=True)

    def _accept(self) -> None:
        """Accept what waits. Connections without a valid token are set up when it is their address's turn."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                link, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._sock)
                self._loop.call_later(FAULT_PAUSE, self._resume)
                return
            client: Client = address[:2]
            if self._has_gone(link) or not self._connections.enter(client, partial(self._end, link, client)):
                link.close()
                continue
            link.setblocking(False)
            if self._tls is None and self._is_known(link):
                self._set_up(link, client)
                return
            self._waiting[client] = link
            self._turns.begin(client, partial(self._start, client))
            if client in self._waiting:
                self._loop.add_reader(link, self._look_again, client)

    def _look_again(self, client: Client) -> None:
        """Set up a waiting connection now if a valid token has arrived on it. Drop it if its client has gone."""
        link = self._waiting[client]
        self._loop.remove_reader(link)
        if self._has_gone(link):
            self._drop(self._take(client), client)
        elif self._tls is None and self._is_known(link):
            self._set_up(self._take(client), client)

    def _take(self, client: Client) -> socket.socket:
        """Remove a connection from those that wait."""
        self._turns.leave(client)
        link = self._waiting.pop(client)
        self._loop.remove_reader(link)
        return link

    def _end(self, link: socket.socket, client: Client) -> None:
        if client in self._waiting:
            self._drop(self._take(client), client)
        else:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _is_known(self, link: socket.socket) -> bool:
        """True if a request with a valid token has arrived."""
        try:
            return self._recognizes(link.recv(PEEKED_BYTES, socket.MSG_PEEK))
        except OSError:
            return False

    def _resume(self) -> None:
        if not self._over:
            self._loop.add_reader(self._sock, self._accept)

    def _start(self, client: Client) -> None:
        link = self._take(client)
        if self._has_gone(link):
            self._drop(link, client)
        else:
            self._set_up(link, client)

    def _set_up(self, link: socket.socket, client: Client) -> None:
        task = self._loop.create_task(self._connect(link, client))
        self._setting_up.add(task)
        task.add_done_callback(self._setting_up.discard)

    def _has_gone(self, link: socket.socket) -> bool:
        """True if the client has closed its end, also if it sent something before."""
        self._poll.register(link, select.POLLRDHUP)
        gone = bool(self._poll.poll(0))
        self._poll.unregister(link)
        return gone

    def _drop(self, link: socket.socket, client: Client) -> None:
        self._connections.leave(client)
        link.close()

    async def _connect(self, link: socket.socket, client: Client) -> None:
        seconds = HANDSHAKE_SECONDS if self._tls else None
        try:
            await self._loop.connect_accepted_socket(self._protocol, link, ssl=self._tls, ssl_handshake_timeout=seconds)
        except (OSError, RuntimeError):  # no TLS handshake in time, or the connection was closed
            self._drop(link, client)
