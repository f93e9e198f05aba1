"""Hostile callers: too large, too slow, too many, malformed. Nobody is let in and nothing breaks."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from fairlead.api import server as listening
from fairlead.api.gate import Bounds, Buckets
from tests.api.serving import SECONDS, Serving, serving, submit


def raw(site: Serving) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=SECONDS)


def said(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
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

        # Nobody said how much would come.
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
    # A connection that is kept for the next request has all the time that a first one has.
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
    assert said(large) == b""
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
        deadline = time.monotonic() + SECONDS
        while site.site.streams and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not site.site.streams


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


def test_callers_who_leave_before_the_answer(site: Serving) -> None:
    body = b'{"stages":[{"command":["true"],"resources":{"cpu":1}}]}'
    for _ in range(20):
        leaving = raw(site)
        leaving.sendall(head(site, "POST /api/v1/jobs HTTP/1.1", f"Content-Length: {len(body)}") + body)
        leaving.close()
    submit(site.as_owner)
    assert 1 <= len(site.as_owner.get("/api/v1/jobs").json()["jobs"]) <= 21
