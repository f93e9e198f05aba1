"""A token that is revoked or expires ends its open streams; a revocation is durable, or the answer says it is not."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from fairlead.core.errors import Refused
from fairlead.engines.engine import Peer
from fairlead.http.middleware import Bounds
from fairlead.identity import smallfile
from fairlead.identity.node_keys import Identities
from fairlead.identity.tokens import Tokens
from fairlead.journal import SqliteJournal
from fairlead.wire.agent_messages import (
    VERSION,
    Confirmed,
    Knock,
    LogCancel,
    LogPart,
    LogRequest,
    NewKey,
    Proof,
    Report,
    Reports,
    Welcome,
    Work,
    encode,
)
from fairlead.wire.handshake import Key, split_token
from tests.http.serving import SECONDS, Serving, serving, submit
from tests.http.test_agents import greet, joining, receive
from tests.until import until

WATCH = "/api/v1/watch"


def ended_after(answer: httpx.Response, act: Callable[[], Any]) -> tuple[bytes, float]:
    """Return the rest of an open stream after an act, and the seconds until its end."""
    pieces = answer.iter_raw()
    said = next(pieces)
    act()
    began = monotonic()
    for piece in pieces:
        said += piece
    return said, monotonic() - began


def test_a_revoked_token_ends_a_long_poll(site: Serving) -> None:
    secret, token = site.tokens.create("user", "ann")
    with site.client(secret) as ann, ThreadPoolExecutor(1) as threads:
        job = submit(ann)
        poll = threads.submit(ann.get, f"/api/v1/jobs/{job}", params={"wait": 60})
        until(lambda: site.site.polls)
        assert site.as_owner.delete(f"/api/v1/tokens/{token.id}").status_code == 200
        assert poll.result(10).status_code == 401
    assert not site.site.polls


def test_a_revoked_token_ends_what_is_watched_with_it(site: Serving) -> None:
    secret, token = site.tokens.create("user", "ann")
    with site.client(secret) as ann, site.as_user("bob") as bob, bob.stream("GET", WATCH) as other:
        with ann.stream("GET", WATCH) as answer:
            said, seconds = ended_after(answer, lambda: site.as_owner.delete(f"/api/v1/tokens/{token.id}"))
        assert said.endswith(b'event: end\ndata: {"note":"the token was revoked or has expired"}\n\n')
        assert seconds < 5  # at once; the next heartbeat would come after 15 s
        assert ann.get("/api/v1/whoami").status_code == 401
        assert next(other.iter_raw())  # the stream of another user goes on
    assert token.id not in site.site.streams


def test_an_expired_token_ends_what_is_watched_with_it(site: Serving) -> None:
    secret, _ = site.tokens.create("user", "ann", expires_in=1.0)
    with site.client(secret) as ann, ann.stream("GET", WATCH) as answer:
        said, seconds = ended_after(answer, lambda: None)
    assert b"event: end" in said and seconds < 5


def test_a_revoked_token_ends_a_log_that_is_followed(site: Serving) -> None:
    async def agent(joined: asyncio.Event) -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token()), Welcome)
            joined.set()
            while not (work := await receive(connection, Work)).launches:
                pass
            await connection.send(encode(Reports(1, (Report(work.launches[0].tasks, "running"),))))
            asked = await receive(connection, LogRequest)
            await connection.send(encode(LogPart(asked.request, 0, b"hello\n")))
            await asyncio.Event().wait()

    def follow() -> None:
        secret, token = site.tokens.create("user", "ann")
        with site.client(secret) as ann:
            job = submit(ann)
            while ann.get(f"/api/v1/jobs/{job}/tasks").json()["tasks"][0]["state"] != "running":
                pass
            with ann.stream("GET", f"/api/v1/jobs/{job}/log", params={"follow": True}) as answer:
                said, _ = ended_after(answer, lambda: site.as_owner.delete(f"/api/v1/tokens/{token.id}"))
        assert said == b"hello\n\n[fairlead: the token was revoked or has expired]\n"

    async def story() -> None:
        joined = asyncio.Event()
        working = asyncio.create_task(agent(joined))
        async with asyncio.timeout(SECONDS):
            await joined.wait()
            await asyncio.to_thread(follow)
        working.cancel()

    asyncio.run(story())


def test_readers_of_a_silent_log_are_counted_and_may_leave(tmp_path: Path) -> None:
    async def story(site: Serving) -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token()), Welcome)
            job = await asyncio.to_thread(submit, site.as_owner)
            while not (work := await receive(connection, Work)).launches:
                pass
            await connection.send(encode(Reports(1, (Report(work.launches[0].tasks, "running"),))))
            path = f"/api/v1/jobs/{job}/log?follow=true"
            asked = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.owner}\r\n\r\n".encode()
            await receive(connection, Confirmed)
            waiting = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(2)]
            for _, writer in waiting:
                writer.write(asked)
            requests = {(await receive(connection, LogRequest)).request for _ in waiting}
            assert (await asyncio.to_thread(site.as_owner.get, path)).status_code == 429
            for _, writer in waiting:
                writer.close()
            assert {(await receive(connection, LogCancel)).request for _ in waiting} == requests
            assert not site.site.streams

    with serving(tmp_path, bounds=Bounds(streams=2)) as site:
        asyncio.run(story(site))


# -- a revocation while something else is being written ----------------------------------------------------------


class HeldLock:
    """A lock that only the first thread gets at once; others wait until the test releases them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = threading.get_ident()
        self.reached, self.let_on = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        if threading.get_ident() != self._first:
            self.reached.set()
            assert self.let_on.wait(SECONDS)
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("how", ["settle", "renew", "promote", "join"])
def test_a_revocation_is_not_undone_by_what_began_before(tmp_path: Path, how: str) -> None:
    identities = Identities(tmp_path, Tokens(tmp_path / "tokens"))
    first, second = Key(), Key()

    def admit(key: Key, token: str = "") -> Peer:
        exchange, _ = identities.challenge("default", Knock(VERSION, "a1", bytes(32)))
        signature = key.sign(exchange.for_node(key.public, "here"))
        return identities._admit(exchange, Proof(key.public, signature, "here", split_token(token)[0] if token else ""))

    def invited() -> str:
        return identities.invite(("a1",))[0][0]

    def renew() -> None:
        identities._renew(peer, NewKey(second.public, second.sign(peer.exchange.for_new_key(second.public))))

    peer = admit(first, invited())
    if how == "promote":
        renew()
    token = invited()
    acts: dict[str, Callable[[], Any]] = {
        "settle": lambda: identities._settle(peer),
        "renew": renew,
        "promote": lambda: admit(second),
        "join": lambda: admit(second, token),
    }
    identities._changing = lock = HeldLock()  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as thread:
        act = thread.submit(acts[how])
        try:
            assert lock.reached.wait(SECONDS)
            identities.revoke("default", "a1")
        finally:
            lock.let_on.set()
        with pytest.raises(Refused, match="was revoked"):
            act.result(SECONDS)
    for found in (identities, Identities(tmp_path, Tokens(tmp_path / "tokens"))):
        assert found.about("default", "a1")[0] == "revoked"


# -- a disk that is full -----------------------------------------------------------------------------------------


class Disk:
    """A small disk of its own, which can be filled to the last byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with open(self.folder / "filler", "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def clear(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs root, to mount a disk that can be filled")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def on(disk: Disk) -> Any:
    """A server whose tokens and keys are on a disk, and whose journal is not."""
    return serving(disk.folder, open_journal=lambda: SqliteJournal(disk.folder.parent / "journal", synchronous="off"))


def test_a_revocation_on_a_full_disk_outlives_a_restart(disk: Disk) -> None:
    async def join(site: Serving) -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token(), Key()), Welcome)

    with on(disk) as site:
        asyncio.run(join(site))
        secret, token = site.tokens.create("user", "ann")
        disk.fill()
        for path in (f"/api/v1/tokens/{token.id}", "/api/v1/nodes/a1/credential"):
            assert site.as_owner.delete(path).status_code == 200
    after = Tokens(disk.folder / "tokens")
    assert after.find(secret) is None
    assert Identities(disk.folder, after).about("default", "a1")[0] == "revoked"


def test_a_revocation_that_cannot_be_written_holds_and_is_not_answered_as_done(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smallfile, "_fill", lambda spare, content: False)

    async def join(site: Serving) -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token(), Key()), Welcome)

    with on(disk) as site:
        asyncio.run(join(site))
        secret, token = site.tokens.create("user", "ann")
        paths = {f"/api/v1/tokens/{token.id}": f"token {token.id}", "/api/v1/nodes/a1/credential": "node a1"}
        disk.fill()
        for _ in range(2):  # the same answer when it is asked again
            for path, what in paths.items():
                answer = site.as_owner.delete(path)
                assert answer.status_code == 507
                assert answer.json()["detail"].startswith(f"{what} is revoked for now, but")
        with site.client(secret) as ann:
            assert ann.get("/api/v1/whoami").status_code == 401
        assert site.as_owner.get("/api/v1/nodes/a1").json()["credential"] == "revoked"
        after = Tokens(disk.folder / "tokens")
        assert after.find(secret) is not None  # a restart would accept the token again, as the answer said
        disk.clear()
        for path in paths:
            assert site.as_owner.delete(path).status_code == 200
    tokens = Tokens(disk.folder / "tokens")
    assert tokens.find(secret) is None
    assert Identities(disk.folder, tokens).about("default", "a1")[0] == "revoked"


def test_nothing_is_admitted_on_a_full_disk(disk: Disk) -> None:
    with on(disk) as site:
        token, key = site.join_token(), Key()

        async def answer() -> Any:
            async with joining(site) as connection:
                return await greet(connection, "a1", token, key)

        disk.fill()
        for _ in range(2):
            assert "could not write to its disk" in asyncio.run(answer()).problem
        disk.clear()
        assert isinstance(asyncio.run(answer()), Welcome)
