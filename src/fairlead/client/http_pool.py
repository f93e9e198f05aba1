"""Connections of the blocking client to a server, which are used again.

They use the HTTP client of the standard library: a request takes a quarter of the time that it takes with httpx
(decision 0025), and the command line starts faster.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from select import POLLIN, poll
from typing import Any, NamedTuple

from fairlead.client.calls import REQUEST_TIMEOUT, REVISION, Call, addresses_of, tls_context
from fairlead.client.endpoint import Endpoint

LOST = (OSError, HTTPException)
"""Errors that mean that no answer arrived, or only a part of it."""

MAX_IDLE = 10
"""Largest number of idle connections."""


class Reply(NamedTuple):
    status: int
    content: bytes
    retry_after: str | None
    revision: str


class Connections:
    """A pool of connections. Threads may share it: a connection serves one request at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._addresses = addresses_of(endpoint)
        self._at = 0
        """The index of the address that requests go to."""
        self._trust = tls_context(endpoint)
        self._headers = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        self._idle: list[HTTPConnection] = []
        self._streams: set[socket.socket] = set()
        self._closed = False

    def turn(self) -> None:
        """Send further requests to the next server, if there are several: this one does not lead or does not answer."""
        if len(self._addresses) > 1:
            self._at = (self._at + 1) % len(self._addresses)
            while self._idle:
                self._idle.pop().close()

    def close(self) -> None:
        """Close all connections, including streams that other threads read; those would wait forever otherwise."""
        self._closed = True
        for sock in list(self._streams):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        while self._idle:
            self._idle.pop().close()

    def request(self, call: Call[Any], seconds: float = REQUEST_TIMEOUT) -> Reply:
        """Send a call and read its whole answer. It must arrive within `seconds`, plus the extra time of the call."""
        link = self._take()
        try:
            answer = self._send(link, call, seconds + call.seconds)
            reply = Reply(
                answer.status, answer.read(), answer.getheader("retry-after"), answer.getheader(REVISION, "0")
            )
        except BaseException:
            link.close()  # a late answer would be taken for the answer to the next request
            raise
        if answer.will_close or self._closed or len(self._idle) >= MAX_IDLE:
            link.close()
        else:
            self._idle.append(link)
        return reply

    @contextmanager
    def stream(self, call: Call[Any]) -> Iterator[HTTPResponse]:
        """Send a call with a streaming answer, and yield the answer. Reading it has no time limit."""
        link = self._take()
        try:
            answer = self._send(link, call, REQUEST_TIMEOUT)
            assert link.sock is not None
            link.sock.settimeout(None)
            self._streams.add(link.sock)
            try:
                yield answer
            finally:
                self._streams.discard(link.sock)
        finally:
            link.close()

    def _send(self, link: HTTPConnection, call: Call[Any], seconds: float) -> HTTPResponse:
        link.timeout = seconds
        if link.sock is not None:
            link.sock.settimeout(seconds)
        link.request(
            call.method, self._addresses[self._at].path + call.target, call.content, {**self._headers, **call.headers}
        )
        return link.getresponse()

    def _take(self) -> HTTPConnection:
        if self._closed:
            raise RuntimeError("the client is closed")
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._new()
            # No request is open on an idle connection: if it is readable, the server has closed it.
            readable = poll()
            readable.register(link.sock, POLLIN)
            if not readable.poll(0):
                return link
            link.close()

    def _new(self) -> HTTPConnection:
        address = self._addresses[self._at]
        if address.secure:
            return HTTPSConnection(address.host, address.port, context=self._trust)
        return HTTPConnection(address.host, address.port)
