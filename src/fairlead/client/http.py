"""Connections to a server that are kept and used again, for programs that wait for their answers.

They speak the HTTP of the standard library: a request takes a quarter of the time that it takes with a library for
every purpose (decision 0025), and a command of the command line starts sooner.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from select import POLLIN, poll
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from fairlead.client.calls import REQUEST_TIMEOUT, Call, Problem, trusted
from fairlead.client.endpoint import Endpoint

LOST = (OSError, HTTPException)
"""What is raised when there was no answer, or only a part of one."""

MOST_IDLE = 10
"""Connections that are kept for later."""


class Reply(NamedTuple):
    status: int
    content: bytes
    retry_after: str | None


class Links:
    """May be used by several threads: each has a connection to itself while it asks."""

    def __init__(self, place: Endpoint) -> None:
        self._host, self._port, self._path = _address(place.url)
        if not place.token.isascii() or not place.token.isprintable():
            raise Problem("the token has characters that no token has; copy it anew", code="token")
        self._trust = trusted(place)
        self._headers = {"authorization": f"Bearer {place.token}"} if place.token else {}
        self._idle: list[HTTPConnection] = []
        self._streams: set[socket.socket] = set()
        self._closed = False

    def close(self) -> None:
        """End, also what other threads are reading: they would wait for news that nobody brings any more."""
        self._closed = True
        for link in list(self._streams):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        while self._idle:
            self._idle.pop().close()

    def ask(self, call: Call[Any]) -> Reply:
        """Send a call and read its answer whole."""
        link = self._take()
        try:
            answer = self._send(link, call, REQUEST_TIMEOUT + call.seconds)
            reply = Reply(answer.status, answer.read(), answer.getheader("retry-after"))
        except BaseException:
            link.close()  # what comes on it next would be taken for an answer to something else
            raise
        if answer.will_close or self._closed or len(self._idle) >= MOST_IDLE:
            link.close()
        else:
            self._idle.append(link)
        return reply

    @contextmanager
    def stream(self, call: Call[Any]) -> Iterator[HTTPResponse]:
        """Send a call whose answer comes bit by bit, however long that takes."""
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
        link.request(call.method, self._path + _target(call), call.content, {**self._headers, **call.headers})
        return link.getresponse()

    def _take(self) -> HTTPConnection:
        if self._closed:
            raise RuntimeError("the client is closed")
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._new()
            # Nobody was asked anything: if there is something to read, it is that the server has hung up.
            news = poll()
            news.register(link.sock, POLLIN)
            if not news.poll(0):
                return link
            link.close()

    def _new(self) -> HTTPConnection:
        if isinstance(self._trust, ssl.SSLContext):
            return HTTPSConnection(self._host, self._port, context=self._trust)
        return HTTPConnection(self._host, self._port)


def _address(url: str) -> tuple[str, int | None, str]:
    """Host, port and path of a server."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts.hostname, parts.port, parts.path
    except ValueError:
        pass
    raise Problem(f"{url} is no address of a server; write http://HOST:PORT or https://HOST:PORT", code="address")


def _target(call: Call[Any]) -> str:
    """The path and what it is asked with."""
    if not call.parameters:
        return call.path
    return f"{call.path}?{urlencode({name: _text(value) for name, value in call.parameters.items()}, doseq=True)}"


def _text(value: Any) -> Any:
    return ("false", "true")[value] if isinstance(value, bool) else value
