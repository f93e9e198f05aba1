"""Floods without a token: what one connection or one address can send costs users little, and is bounded in memory."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from fairlead.history.store import History
from fairlead.http.middleware import Gate
from fairlead.http.strangers import Strangers
from fairlead.wire.agent_messages import (
    Beat,
    Beaten,
    Confirmed,
    Refusal,
    Report,
    Reports,
    Tasks,
    Welcome,
    encode,
)
from fairlead.wire.handshake import Key
from tests.http.serving import Serving, submit
from tests.http.test_agents import greet, joining, receive
from tests.http.test_hostile import alive, answered, raw, said
from tests.until import until

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = (
    b"GET /api/v1/agents HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)
PING, EMPTY = b"\x89\x80" + bytes(4), b"\x00\x80" + bytes(4)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the requests that reach the gate."""
    paths: list[str] = []
    call = Gate.__call__

    async def __call__(self: Gate, scope, receive, send):  # type: ignore[no-untyped-def]
        paths.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(Gate, "__call__", __call__)
    return paths


def until_closed(connection: socket.socket) -> bytes:
    with suppress(OSError):
        return said(connection)
    return b""


def answers(connection: socket.socket, many: int) -> bytes:
    found = b""
    while found.count(b"HTTP/1.1 ") < many or not found.endswith(b"}"):
        part = connection.recv(65536)
        assert part, found
        found += part
    return found


def test_a_stranger_that_sends_too_much_ahead(site: Serving, begun: list[str]) -> None:
    flooding = raw(site)
    with suppress(OSError):
        flooding.sendall(GET * 7_943)
    until_closed(flooding)
    assert len(begun) <= 2
    assert alive(site)


def test_requests_of_a_connection_that_has_ended_are_dropped(site: Serving, begun: list[str]) -> None:
    for _ in range(20):
        flooding = raw(site)
        flooding.sendall(GET * 100)
        flooding.close()
    assert alive(site)
    until(lambda: len(site.connections) <= 1)
    assert len(begun) < 200


def test_a_few_requests_at_once_are_answered_in_order(site: Serving) -> None:
    for token in ("", f"Authorization: Bearer {site.owner}\r\n"):
        paths = [f"/api/v1/whoami?odd{number}=1" for number in range(20)]
        asked = [f"GET {path} HTTP/1.1\r\nHost: x\r\n{token}\r\n".encode() for path in paths]
        if not token:
            asked = [GET] * 20
        with raw(site) as ahead:
            ahead.sendall(b"".join(asked))
            found = answers(ahead, 20)
        if token:
            places = [found.index(f'"odd{number}"'.encode()) for number in range(20)]
            assert places == sorted(places)


def test_a_user_may_send_a_body_after_a_request(site: Serving) -> None:
    """Bodies of both kinds between other requests, one byte at a time in part."""
    body = b'{"stages":[{"command":["true"],"resources":{"cpu":1}}]}'
    line = f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.owner}\r\n".encode()
    known = line + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(b"1\r\n%c\r\n" % letter for letter in body)
    unknown = line + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-After: x\r\n\r\n"
    with raw(site) as ahead:
        ahead.sendall(known + unknown + GET + known)
        for piece in (unknown[:100], unknown[100:], known):
            ahead.sendall(piece)
        found = answers(ahead, 6)
    assert found.count(b"HTTP/1.1 201") == 5
    assert len(site.as_owner.get("/api/v1/jobs").json()["jobs"]) == 5


def test_a_stranger_sends_no_body(site: Serving) -> None:
    odd = raw(site)
    odd.sendall(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100)
    assert b" 405 " in until_closed(odd).partition(b"\r\n")[0]
    assert alive(site)


def test_a_stream_ends_with_its_connection_though_another_request_followed(site: Serving) -> None:
    watch = f"GET /api/v1/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.owner}\r\n\r\n".encode()
    watching = raw(site)
    watching.sendall(watch + GET)
    assert b"retry" in watching.recv(65536) + watching.recv(65536)
    until(lambda: site.site.streams)
    watching.close()
    until(lambda: not site.site.streams)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"X: " + b"x" * 16_000 + b"\r\n", 200),
        (b"X: " + b"x" * 16_400 + b"\r\n", 431),
        (b"a: b\r\n" * 99, 200),
        (b"a: b\r\n" * 101, 431),
    ],
)
def test_large_heads(site: Serving, more: bytes, status: int) -> None:
    with raw(site) as large:
        large.sendall(GET[:-2] + more + b"\r\n")
        found = answered(large)
        assert f" {status} ".encode() in found.partition(b"\r\n")[0]
        assert b"x-content-type-options: nosniff" in found


def upgraded(site: Serving) -> socket.socket:
    link = raw(site)
    link.sendall(UPGRADE)
    assert b" 101 " in link.recv(65536)
    return link


@pytest.mark.parametrize("frames", [PING * 20, b"\x02\x80" + bytes(4) + EMPTY * 5_000, PING * 40_000])
def test_frames_without_a_key(site: Serving, frames: bytes) -> None:
    link = upgraded(site)
    with suppress(OSError):
        link.sendall(frames)
    until_closed(link)
    assert alive(site)


def test_strangers_take_turns() -> None:
    found = Strangers(each=2, total=5)
    begun: list[tuple[str, int]] = []

    def ask(address: str, many: int) -> None:
        for port in range(many):
            found.begin((address, port), lambda port=port: begun.append((address, port)))  # type: ignore[misc]

    async def story() -> None:
        ask("10.0.0.1", 10)
        assert len(begun) == 2 and len(found) == 8
        ask("10.0.0.2", 1)
        assert begun[-1] == ("10.0.0.2", 0)
        ask("10.0.0.3", 3)
        found.leave(("10.0.0.1", 2))
        while not {("10.0.0.1", 3), ("10.0.0.3", 2)} <= set(begun):
            await asyncio.sleep(0.01)
        assert ("10.0.0.1", 2) not in begun
        for port in range(10):
            found.leave(("10.0.0.1", port))
        assert len(found) == 0

    asyncio.run(story())


@contextmanager
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Strangers, "_take", lambda self, address: False)
    yield
    monkeypatch.undo()


def test_a_token_has_no_turn_to_wait_for(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_turns(monkeypatch):
        strangers = [raw(site) for _ in range(20)]
        for stranger in strangers[1:]:
            stranger.sendall(GET)
        with site.as_user("ann") as ann:
            assert ann.get("/api/v1/whoami").status_code == 200
        late = raw(site)
        until(lambda: len(site.connections) > 20)
        late.sendall(f"GET /api/v1/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.owner}\r\n\r\n".encode())
        assert b" 200 " in answered(late)
        strangers[0].close()
        late.close()
        until(lambda: len(site.connections) == 19)
    assert all(b" 200 " in answered(stranger) for stranger in strangers[1:])


@pytest.mark.parametrize("query", ["user=a%00", "queue=%00", "name=x%00y", "label=%00=a", "node=%00", "cursor=%00"])
def test_a_character_that_databases_refuse(site: Serving, query: str) -> None:
    for path in (f"/api/v1/history?{query}", "/api/v1/jobs/a%00/attempts"):
        answer = site.as_owner.get(path)
        assert (answer.status_code, "NUL" in answer.json()["detail"]) == (400, True)


def test_no_history_is_asked_for_what_is_no_name(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database refuses some characters, so that such a submission was an internal error."""
    asked: list[str] = []
    find = History.job
    monkeypatch.setattr(History, "job", lambda self, place, name: asked.append(name) or find(self, place, name))
    for name in ("past", "\0", "x" * 100_000):
        document = {"stages": [{"command": ["true"], "resources": {"cpu": 1}}], "after": [name]}
        assert site.as_owner.post("/api/v1/jobs", json=document).status_code in (404, 422)
    assert asked == ["past"]


def test_many_values_of_a_selector(site: Serving) -> None:
    stage = {"command": ["true"], "resources": {"cpu": 1}, "selectors": {"zone": [str(at) for at in range(1_001)]}}
    answer = site.as_owner.post("/api/v1/jobs", json={"stages": [stage]})
    assert (answer.status_code, answer.json()["field"]) == (422, "stages[0].selectors.zone")
    assert "1001 values are too many" in answer.json()["detail"]


def test_a_what_if_of_many_nodes(site: Serving) -> None:
    names = [f"n{at}" for at in range(3)]
    for name in names:
        site.node(name)
    answer = site.as_owner.post("/api/v1/whatif", json={"add_nodes": dict.fromkeys(names, 5_000)})
    assert (answer.status_code, answer.json()["field"]) == (422, "add_nodes.n2")
    assert "more than 10,000 nodes" in answer.json()["detail"]


def test_reports_of_a_node_for_one_user_about_tasks_that_never_were(site: Serving) -> None:
    async def story() -> None:
        async with joining(site) as connection:
            token = site.join_token(users=("ann",))
            assert isinstance(await greet(connection, "a1", token, Key(), users=("ann",)), Welcome)
            tasks = [Tasks(f"x{at}", 1_000_000 + at, "main", 1, (0, 1)) for at in range(500)]
            await connection.send(encode(Reports(1, tuple(Report(each, "running") for each in tasks))))
            await receive(connection, Confirmed)
            await connection.send(encode(Beat(2, tuple(tasks))))
            await receive(connection, Beaten)

    asyncio.run(story())
    assert submit(site.as_owner) == "1"
    assert site.as_owner.get("/readyz").json()["alarms"] == []
    (line,) = [fields for event, fields in site.orders.log_lines if event == "report refused"]
    assert (line["times"], len(line["problem"]) < 400) == (500, True)


@pytest.mark.parametrize("address", ["x; rm -rf /", "a\nb", "http://x", "x" * 300, "10.0.0.1:22", "[::1]"])
def test_an_address_that_is_none(site: Serving, address: str) -> None:
    async def story() -> str:
        async with joining(site) as connection:
            refusal = await greet(connection, "a1", site.join_token(), Key(), address=address)
            assert isinstance(refusal, Refusal)
            return refusal.problem

    assert asyncio.run(story()).startswith("address: ")


def test_a_message_that_is_too_long(site: Serving) -> None:
    async def story() -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token(), Key()), Welcome)
            known = tuple(Tasks(f"x{at}", at, "main", 1, (0, 1)) for at in range(400_000))
            await connection.send(encode(Beat(1, known)))
            with pytest.raises(AssertionError, match="at most 4 MiB"):
                await receive(connection, Beaten)
        async with joining(site) as connection:
            refusal = await greet(connection, "a2", site.join_token(), Key(), running=known)
            assert isinstance(refusal, Refusal) and "at most 4 MiB" in refusal.problem

    asyncio.run(story())
    assert alive(site)


@pytest.mark.parametrize("size", [20_000, 60_000])
def test_a_wrong_token_with_a_large_body_is_answered(site: Serving, size: int) -> None:
    answer = site.client("wrong").post("/api/v1/jobs/batch", json={"jobs": ["x" * size]})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
