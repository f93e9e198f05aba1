"""Connections that servers close, invalid addresses and tokens, and the content of requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import field

from fairlead.client import AsyncClient, Client, Problem
from fairlead.wire.operation import Operation

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Hasty:
    """A server that answers some requests on a connection, and then closes it without an answer."""

    def __init__(self, each: int, answer: bytes = ANSWER) -> None:
        self.each = each
        self.answer = answer
        self.heads: list[str] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with link:
                for _ in range(self.each):
                    head = b""
                    while b"\r\n\r\n" not in head:
                        part = link.recv(65536)
                        if not part:
                            break
                        head += part
                    if not head:
                        break
                    self.heads.append(head.decode())
                    link.sendall(self.answer)

    def end(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def hasty(each: int, answer: bytes = ANSWER) -> Iterator[Hasty]:
    server = Hasty(each, answer)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join(10)


class Anything(Operation[dict[str, int]], GET="things"):
    """Return things."""

    follow: bool = False
    quiet: bool = True
    state: list[str] = field(default_factory=list)
    name: str = ""
    limit: int = 100
    none: str | None = None


def test_a_connection_is_used_again() -> None:
    with hasty(each=3) as server, Client(server.url) as client:
        for _ in range(3):
            client.send(Anything())
        assert (server.connections, len(server.heads)) == (1, 3)


def test_a_server_that_has_hung_up_is_called_again() -> None:
    with hasty(each=1) as server, Client(server.url) as client:
        for _ in range(3):
            client.send(Anything())
        assert (server.connections, len(server.heads)) == (3, 3)


def test_no_answer_at_all_is_asked_for_again() -> None:
    """The connection ends after the request was sent. Its outcome is unknown, and its key makes a retry safe."""
    with hasty(each=1, answer=b"") as server, Client(server.url) as client:
        threading.Timer(0.02, lambda: setattr(server, "answer", ANSWER)).start()
        assert client.send(Anything()) == {}
        assert len(server.heads) > 1


def test_half_an_answer_is_none() -> None:
    with hasty(each=1, answer=ANSWER[:-1]) as server, Client(server.url) as client:
        threading.Timer(0.02, lambda: setattr(server, "answer", ANSWER)).start()
        assert client.send(Anything()) == {}
        assert len(server.heads) > 1


def test_what_is_sent() -> None:
    with hasty(each=9) as server, Client(f"{server.url}/below/", "secret") as client:
        client.send(Anything(follow=True, quiet=False, state=["a", "b"], name="ü &", limit=3))
        line, *headers = server.heads[0].splitlines()
        target = "/below/api/v1/things?follow=true&quiet=false&state=a&state=b&name=%C3%BC+%26&limit=3"
        assert line == f"GET {target} HTTP/1.1"
        assert "authorization: Bearer secret" in headers


def test_a_closed_client_says_so() -> None:
    with hasty(each=9) as server:
        client = Client(server.url)
        client.send(Anything())
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.send(Anything())


@pytest.mark.parametrize(
    "url", ["localhost:7070", "ftp://localhost", "http://", "http://localhost:port", "http://[::1"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(Problem, match="write http://HOST:PORT"):
        Client(url)


@pytest.mark.parametrize("token", ["one\ntwo", "schlüssel"])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(Problem, match="copy it again"):
        Client("http://127.0.0.1:1", token)


@pytest.mark.parametrize("url", ["http://10.1.2.3:7070", "http://fairlead.example"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_token_goes_to_no_other_machine_without_tls(
    monkeypatch: pytest.MonkeyPatch, kind: type[Client | AsyncClient], url: str
) -> None:
    with pytest.raises(Problem, match="use https://, or set FAIRLEAD_INSECURE=1"):
        kind(url, "secret")
    kind(url, "secret", insecure=True)
    kind(url)  # without a token there is nothing to read
    for near in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", url.replace("http", "https")):
        kind(near, "secret")
    monkeypatch.setenv("FAIRLEAD_URL", url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", "secret")
    with pytest.raises(Problem):
        kind()
    monkeypatch.setenv("FAIRLEAD_INSECURE", "1")
    kind()
