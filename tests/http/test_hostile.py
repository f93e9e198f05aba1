"""Hostile requests: too large, too slow, too many, malformed. None succeeds and nothing breaks."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from fairlead.http import server as listening
from fairlead.http.connection_limits import Connections, Shares
from fairlead.http.middleware import Bounds
from fairlead.http.routes import jobs
from fairlead.http.strangers import Buckets
from tests.http.serving import SECONDS, Serving, serving, submit
from tests.until import until


def raw(site: Serving) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=SECONDS)


def said(connection: socket.socket) -> bytes:
    """Return all data until the other end closes."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def head(site: Serving, line: str, *more: str) -> bytes:
    lines = [line, "Host: x", f"Authorization: Bearer {site.owner}", *more, "", ""]
    return "\r\n".join(lines).encode()


def alive(site: Serving) -> bool:
    return site.client().get("/healthz").status_code == 200


def test_too_large(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(body=1_000)) as site:
        answer = site.as_owner.post("/api/v1/jobs", content=b"x" * 1_001)
        assert (answer.status_code, answer.json()["code"]) == (413, "too large")

        def pieces():  # type: ignore[no-untyped-def]
            for _ in range(100):
                yield b"x" * 100

        # A body without a Content-Length.
        answer = site.as_owner.post("/api/v1/jobs", content=pieces())
        assert (answer.status_code, answer.json()["code"]) == (413, "too large")
        lying = raw(site)
        lying.sendall(head(site, "POST /api/v1/jobs HTTP/1.1", "Content-Length: 10") + b"x" * 100_000)
        assert b" 400 " in said(lying).partition(b"\r\n")[0]
        assert submit(site.as_owner)


def test_too_slow_a_body(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(body_seconds=0.2)) as site:
        slow = raw(site)
        slow.sendall(head(site, "POST /api/v1/jobs HTTP/1.1", "Content-Length: 1000", "Connection: close") + b"{")
        assert b" 408 " in said(slow).partition(b"\r\n")[0]
        assert submit(site.as_owner)


def test_too_slow_a_head(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.2)
    silent, slow = raw(site), raw(site)
    slow.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
    assert said(silent) == said(slow) == b""
    # A connection that is kept open has the same time limit for its next request.
    kept = raw(site)
    for _ in range(2):
        kept.sendall(head(site, "GET /healthz HTTP/1.1"))
        found = b""
        while not found.endswith(b"}"):
            found += kept.recv(65536)
        assert b" 200 " in found
        time.sleep(0.3)


def test_too_large_a_head(site: Serving) -> None:
    large = raw(site)
    try:
        large.sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(100):
            large.sendall(b"X-More: " + b"x" * 10_000 + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert said(large).partition(b"\r\n")[0] in (b"", b"HTTP/1.1 431 Request Header Fields Too Large")
    assert alive(site)


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 1_000,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS where there is none
        b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_not_http(site: Serving, sent: bytes) -> None:
    odd = raw(site)
    odd.sendall(sent)
    odd.shutdown(socket.SHUT_WR)
    first = said(odd).partition(b"\r\n")[0]
    assert not first or b" 4" in first
    assert alive(site)


def test_too_many(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(requests=1, burst=5, failures=0.1, failures_burst=3)) as site:
        statuses = [site.as_owner.get("/api/v1/whoami").status_code for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        assert "retry-after" in site.as_owner.get("/api/v1/whoami").headers
        assert site.as_user("ann").get("/api/v1/whoami").status_code == 200  # each token for itself
        wrong = site.client("fl_wrong")
        assert [wrong.get("/api/v1/whoami").status_code for _ in range(5)] == [401] * 3 + [429] * 2
        assert site.as_user("bob").get("/api/v1/whoami").status_code == 200


def test_too_many_streams(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(streams=2)) as site:
        with (
            site.as_owner.stream("GET", "/api/v1/watch") as first,
            site.as_owner.stream("GET", "/api/v1/watch") as second,
        ):
            reading = [stream.iter_lines() for stream in (first, second)]
            assert [next(lines) for lines in reading] == ["retry: 1000"] * 2
            assert site.as_owner.get("/api/v1/watch").status_code == 429
        until(lambda: not site.site.streams)


def test_buckets_refill() -> None:
    bucket = Buckets(rate=1e6, burst=2)
    assert bucket.take("a") and bucket.take("a")
    time.sleep(0.001)
    assert bucket.take("a")
    slow = Buckets(rate=1e-9, burst=2, names=2)
    assert [slow.take("a") for _ in range(3)] == [True, True, False]
    assert slow.take("b") and slow.take("c")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/api/v1/jobs/%00",
        "/api/v1/jobs/" + "x" * 10_000,
        "/api/v1/jobs/%ff%fe",
        "/api/v1/nodes/'; DROP TABLE nodes; --",
        "/api/v1/queues/root..default",
        "/api/v1//jobs",
        "/../../etc/passwd",
        "/api/v1/partitions/default/ready/x",
        "/api/v1/jobs?limit=-1",
        "/api/v1/jobs?limit=999999999999999999999999",
        "/api/v1/jobs?state[]=x",
        "/api/v1/watch?after=-1",
        "/api/v1/watch?partition=none",
    ],
)
def test_odd_paths(site: Serving, path: str) -> None:
    answer = site.as_owner.get(path)
    assert 400 <= answer.status_code < 500 or (
        path.startswith(("/api/v1/jobs?state", "/api/v1//")) and answer.is_success
    )
    assert site.client().get(path).status_code in (401, 414)


def test_methods_that_are_not_there(site: Serving) -> None:
    for method in ("PATCH", "TRACE", "BREW"):
        answer = site.as_owner.request(method, "/api/v1/jobs")
        assert answer.status_code in (400, 405), method
    assert alive(site)


def test_callers_that_leave_before_the_answer(site: Serving) -> None:
    body = b'{"stages":[{"command":["true"],"resources":{"cpu":1}}]}'
    for _ in range(20):
        leaving = raw(site)
        leaving.sendall(head(site, "POST /api/v1/jobs HTTP/1.1", f"Content-Length: {len(body)}") + body)
        leaving.close()
    submit(site.as_owner)
    assert 1 <= len(site.as_owner.get("/api/v1/jobs").json()["jobs"]) <= 21


# -- connections that are kept open without need -----------------------------------------------------------------


def answered(connection: socket.socket) -> bytes:
    """Return one answer on a connection that stays open."""
    found = b""
    while not found.endswith(b"}"):
        part = connection.recv(65536)
        assert part, found
        found += part
    return found


def is_over(connection: socket.socket, trickle: bytes) -> bool:
    """True when the other end has closed the connection, though something is sent now and then."""
    connection.settimeout(0.05)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            connection.sendall(trickle)
            if not connection.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_empty_lines_keep_no_connection(site: Serving, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(listening, "IDLE_SECONDS", 0.3)
    lone = raw(site)
    if first:
        lone.sendall(first)
        answered(lone)
    assert is_over(lone, b"\r\n")


def test_an_unfinished_body_keeps_no_connection(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "IDLE_SECONDS", 0.3)
    lone = raw(site)
    lone.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    answered(lone)
    assert is_over(lone, b"x")


def test_an_answer_that_a_stranger_does_not_read(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "STUCK_SECONDS", 0.3)
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect(("127.0.0.1", site.port))
    lazy.settimeout(0.2)
    asked = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with suppress(OSError):
        for _ in range(200):
            lazy.sendall(asked)
    until(lambda: not len(site.connections))
    lazy.close()


@contextmanager
def lazy_reader(site: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A user's connection with a large answer that is not read: the server has begun to send it and waits."""
    waits, pause = threading.Event(), listening.Protocol.pause_writing

    def pause_writing(self: listening.Protocol) -> None:
        pause(self)
        waits.set()

    monkeypatch.setattr(jobs, "PAGE_BYTES", 2**30)
    monkeypatch.setattr(listening.Protocol, "pause_writing", pause_writing)
    ann = site.token("user", "ann")
    with site.client(ann) as client:
        for _ in range(16):
            submit(client, {"stages": [{"command": ["true", *["x" * 100_000] * 10], "resources": {"cpu": 1}}]})
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", site.port))
        lazy.sendall(f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann}\r\n\r\n".encode())
        assert waits.wait(SECONDS)
        yield lazy


def until_gone(site: Serving) -> None:
    site.as_owner.close()
    until(lambda: not len(site.connections))


def test_an_answer_that_a_user_does_not_read(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "STUCK_SECONDS", 0.3)
    with lazy_reader(site, monkeypatch):
        until_gone(site)


def test_another_request_does_not_excuse_an_unread_answer(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "STUCK_SECONDS", 1.0)
    with lazy_reader(site, monkeypatch) as lazy:
        lazy.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        until_gone(site)


def test_an_answer_of_which_something_leaves_goes_on(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [(5, 9), (5, 8), (4, 9), (3, 9)]
    monkeypatch.setattr(listening, "STUCK_SECONDS", 0.05)
    # The check is repeated each time the kernel takes a part of the answer.
    monkeypatch.setattr(listening, "unsent", lambda transport: left.pop(0) if len(left) > 1 else left[0])
    with lazy_reader(site, monkeypatch):
        until_gone(site)
    assert left == [(3, 9)]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_is_seen_that_something_leaves(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def story() -> None:
        def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(32 * 2**20))
            writers.append(writer)

        writers: list[asyncio.StreamWriter] = []
        async with await asyncio.start_server(taken, "127.0.0.1", 0) as server:
            with socket.create_connection(server.sockets[0].getsockname()) as slow:
                while not writers:
                    await asyncio.sleep(0.01)
                transport = writers[0].transport
                before = (0, 0)
                while before != (before := listening.unsent(transport)):
                    await asyncio.sleep(0.3)
                assert min(before) > 0
                slow.recv(2**20, socket.MSG_WAITALL)
                while listening.unsent(transport) == before:
                    await asyncio.sleep(0.01)
                transport.abort()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(story(), SECONDS))


def open_silent(site: Serving, many: int) -> list[socket.socket]:
    return [raw(site) for _ in range(many)]


def test_strangers_keep_no_user_out(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(connections=40)) as site:
        assert site.connections.shares == Shares(most=40, address=5, strangers=10, user=10, users=35)
        with site.as_user("ann") as ann:
            assert ann.get("/api/v1/whoami").status_code == 200
            silent = open_silent(site, 200)
            # Whatever strangers do, they have their share, and a caller with a token is served at once.
            assert ann.get("/api/v1/whoami").status_code == 200
            assert site.as_user("bob").get("/api/v1/whoami").status_code == 200
            assert site.as_owner.get("/api/v1/whoami").status_code == 200
            assert len(site.connections) <= 10
            assert [said(each) for each in silent[:100]] == [b""] * 100  # the oldest were closed
            assert alive(site)
        for each in silent:
            each.close()


def test_users_leave_places_for_agents_and_operators(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(connections=40)) as site:

        def keep(secret: str, many: int) -> list[bytes]:
            """Open connections with a token and return the first lines of their answers."""
            lines = []
            for _ in range(many):
                kept = raw(site)
                connections.append(kept)
                kept.sendall(
                    f"GET /api/v1/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n".encode()
                )
                lines.append(answered(kept).partition(b"\r\n")[0])
            return lines

        connections: list[socket.socket] = []
        found = keep(site.token("user", "ann"), 12)
        assert [b" 200 " in line for line in found] == [True] * 10 + [False] * 2 and b" 429 " in found[-1]
        assert all(b" 200 " in line for line in keep(site.token("user", "bob"), 10))
        found = keep(site.token("user", "carl"), 10) + keep(site.token("user", "dora"), 10)
        assert sum(b" 200 " in line for line in found) == 15
        # The places of users are full. Operators still get theirs, and connected users go on.
        assert all(b" 200 " in line for line in keep(site.token("operator", "eve"), 5))
        connections[0].sendall(head(site, "GET /healthz HTTP/1.1"))
        assert b" 200 " in answered(connections[0])
        connections[0].close()
        deadline = time.monotonic() + SECONDS
        while b" 200 " not in keep(site.token("user", "bob2"), 1)[0]:
            assert time.monotonic() < deadline
        for connection in connections:
            connection.close()


def test_connections_are_counted_by_machine() -> None:
    closed: list[int] = []
    found = Connections(40)
    for port in range(7):
        assert found.enter((f"2001:db8::{port:x}", port), lambda port=port: closed.append(port))  # type: ignore[misc]
    assert closed == [0, 1]
    assert found.enter(("10.0.0.1", 1), lambda: None)
    assert len(found) == 6
    for port in range(7):
        found.leave((f"2001:db8::{port:x}", port))
    found.leave(("10.0.0.1", 1))
    assert len(found) == 0 and not found._by_address
