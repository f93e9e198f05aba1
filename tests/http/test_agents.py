"""The WebSocket of agents: which nodes may join, frames that no agent would send, and TLS."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairlead.agent.node_key import prove
from fairlead.agent.session import Refused
from fairlead.engines import agents as hub
from fairlead.http import listener
from fairlead.http import server as serving_program
from fairlead.http.connection_limits import Connections
from fairlead.identity.node_keys import Identities
from fairlead.wire.agent_messages import (
    MAX_FIRST_MESSAGE_BYTES,
    PATH,
    VERSION,
    Beat,
    Beaten,
    Challenge,
    Confirmed,
    Hello,
    Knock,
    Proof,
    Refusal,
    Report,
    Reports,
    Tasks,
    Welcome,
    Work,
    decode_from_server,
    encode,
)
from fairlead.wire.handshake import Exchange, Key, split_token
from tests.http.serving import Serving, serving, submit
from tests.live import PROGRAM, SECONDS
from tests.until import until


def joining(site: Serving, path: str = PATH) -> Any:
    return connect(site.url.replace("http", "ws") + path, compression=None, proxy=None)


def hello(node: str, **more: Any) -> bytes:
    return encode(Hello(node, {"cpu": 4, "memory": "8Gi"}, **more))


async def receive(connection: ClientConnection, kind: type[Any]) -> Any:
    """Return the next message of a kind."""
    async with asyncio.timeout(SECONDS):
        while not isinstance(message := decode_from_server(await connection.recv()), kind):  # type: ignore[arg-type]
            assert not isinstance(message, Refusal), message.problem
    return message


async def greet(
    connection: ClientConnection, node: str, token: str, key: Key | None = None, instance: str = "", **more: Any
) -> Any:
    """Prove to be a node, greet, and return the answer."""
    secret, server = split_token(token)
    try:
        await prove(connection, node, key or Key(), server, instance, secret)  # type: ignore[arg-type]
    except Refused as refused:
        return Refusal(str(refused))
    await connection.send(hello(node, **more))
    data = await asyncio.wait_for(connection.recv(), SECONDS)
    assert isinstance(data, bytes)
    return decode_from_server(data)


def test_an_agent_joins_and_gets_work(site: Serving) -> None:
    async def story() -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token()), Welcome)
            name = await asyncio.to_thread(submit, site.as_owner)
            while not (message := await receive(connection, Work)).launches:
                pass
            assert message.launches[0].tasks.job == name
            found = (await asyncio.to_thread(site.as_owner.get, "/api/v1/nodes/a1")).json()
            assert (found["state"], found["credential"]) == ("up", "valid")
            assert found["credential_expires"] > time.time()

    asyncio.run(story())


def test_an_agent_joins_while_all_threads_are_taken(site: Serving) -> None:
    over = threading.Event()

    async def take_threads() -> None:
        for _ in range(100):
            asyncio.get_running_loop().run_in_executor(None, over.wait)

    async def story() -> None:
        async with joining(site) as connection:
            greeting = greet(connection, "a1", site.join_token(), instance="here")
            assert isinstance(await asyncio.wait_for(greeting, SECONDS), Welcome)

    site.do(take_threads())
    try:
        asyncio.run(story())
    finally:
        over.set()


@pytest.mark.parametrize("figure", [2**53 + 1, 2**64 - 1, -1])
def test_a_figure_out_of_bounds_is_refused(site: Serving, figure: int) -> None:
    async def story() -> None:
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token()), Welcome)
            name = await asyncio.to_thread(submit, site.as_owner)
            while not (message := await receive(connection, Work)).launches:
                pass
            tasks = message.launches[0].tasks
            assert tasks.job == name
            report = Report(tasks, "succeeded", exit_code=0, ran=(1,), cpu=(1,), memory=(figure,))
            await connection.send(encode(Reports(1, (Report(tasks, "running"), report))))
            with pytest.raises(ConnectionClosed):
                while True:
                    await asyncio.wait_for(connection.recv(), SECONDS)

    asyncio.run(story())
    site.history.flush()
    assert not site.history.failing
    assert site.as_owner.get("/readyz").json()["failing"] == []


async def refused(site: Serving, node: str, token: str, key: Key | None = None, **more: Any) -> str:
    async with joining(site) as connection:
        refusal = await greet(connection, node, token, key, **more)
        assert isinstance(refusal, Refusal), refusal
        return refusal.problem


async def admitted(site: Serving, node: str, token: str, key: Key | None = None, **more: Any) -> None:
    async with joining(site) as connection:
        assert isinstance(answer := await greet(connection, node, token, key, **more), Welcome), answer


def test_a_node_takes_no_other_users_than_its_token_says(site: Serving) -> None:
    async def story() -> None:
        token, key = site.join_token(users=("ann", "bob"), uses=9), Key()
        for users in ((), ("cyd",), ("ann", "cyd")):
            assert "start its agent with --for ann --for bob" in await refused(site, "a1", token, key, users=users)
        await admitted(site, "a1", token, key, users=("ann",))
        assert "--for ann" in await refused(site, "a1", token, key)  # also when the token is not needed any more

    asyncio.run(story())


def test_a_join_token_admits_one_key_once(site: Serving) -> None:
    async def story() -> None:
        token, key = site.join_token(), Key()
        await admitted(site, "a1", token, key)
        assert "was used before" in await refused(site, "a2", token)
        await admitted(site, "a1", token, key)  # its key is known: the token is not needed any more
        twice = site.join_token(uses=2)
        await admitted(site, "a2", twice)
        await admitted(site, "a3", twice)
        assert "was used before" in await refused(site, "a4", twice)
        over = site.join_token(expires_in=-1.0)
        assert "has expired" in await refused(site, "a4", over)

    asyncio.run(story())
    text = "".join((site.folder / name).read_text() for name in ("nodes", "tokens"))
    assert "fj_" not in text
    assert {stat.S_IMODE((site.folder / name).stat().st_mode) for name in ("nodes", "tokens", "server-key")} == {0o600}


def test_an_agent_whose_connection_breaks_while_it_joins_joins_with_the_next(
    site: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token is spent, and its key is not written yet when it connects again."""
    spent, go_on = threading.Event(), threading.Event()
    change = Identities._change

    def slow_change(*given: Any, **more: Any) -> Any:
        spent.set()
        assert go_on.wait(SECONDS)
        return change(*given, **more)

    monkeypatch.setattr(Identities, "_change", slow_change)

    async def story() -> None:
        token, key = site.join_token(), Key()
        secret, server = split_token(token)
        async with joining(site) as connection:
            await prove(connection, "a1", key, server, "", secret)  # type: ignore[arg-type]
            assert await asyncio.to_thread(spent.wait, SECONDS)
        async with joining(site) as connection:
            asyncio.get_running_loop().call_later(0.3, go_on.set)  # a refusal would have arrived by then
            assert isinstance(await greet(connection, "a1", token, key), Welcome)

    asyncio.run(story())


def test_a_join_token_is_for_what_it_names(tmp_path: Path) -> None:
    async def answer(node: str, partition: str, pool: str) -> Any:
        async with joining(site, f"{PATH}?partition={partition}") as connection:
            return await greet(connection, node, token, key, pool=pool)

    async def story() -> None:
        assert "is for node a1, not for a2" in (await answer("a2", "day", "gpu")).problem
        assert "is for partition day, not night" in (await answer("a1", "night", "gpu")).problem
        assert "was admitted to pool gpu" in (await answer("a1", "day", "cpu")).problem
        assert isinstance(await answer("a1", "day", "gpu"), Welcome)

    with serving(tmp_path, {"partitions": {"day": {}, "night": {}}}) as site:
        key, token = Key(), site.join_token("a1", partition="day", pool="gpu")
        asyncio.run(story())


def test_a_name_that_is_taken_needs_a_token_for_it(site: Serving) -> None:
    async def story() -> None:
        await admitted(site, "a1", site.join_token(), Key(), instance="old")
        assert "has joined with another key" in await refused(site, "a1", site.join_token(), Key())
        # The machine was set up again: its key is replaced, and the old one is not valid any more.
        old, new = Key(), Key()
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a2", site.join_token(), old, "old"), Welcome)
            problem = await refused(site, "a2", site.join_token("a2"), new, instance="new")
            assert "another agent has the identity of node a2" in problem  # until that one is lost
            with pytest.raises(AssertionError, match="was revoked"):
                await receive(connection, Confirmed)

    asyncio.run(story())


def test_a_proof_is_of_this_connection_and_this_node(site: Serving) -> None:
    """A signature from another connection is refused."""

    async def story() -> None:
        key, token = Key(), site.join_token(uses=9)
        server = split_token(token)[1]
        await admitted(site, "a1", token, key)
        async with joining(site) as first, joining(site) as second:
            exchange = await prove(first, "a1", key, server)  # type: ignore[arg-type]
            await second.send(encode(Knock(VERSION, "a1", exchange.agent_nonce)))
            await receive(second, Challenge)
            signature = key.sign(exchange.for_node(key.public, ""))
            await second.send(encode(Proof(key.public, signature, "")))
            with pytest.raises(AssertionError, match="was not signed with this key"):
                await receive(second, Welcome)
        async with joining(site) as third:
            await third.send(encode(Knock(VERSION, "a1", bytes(32))))
            challenge = await receive(third, Challenge)
            forged = Exchange(server, challenge.partition, "a2", bytes(32), challenge.nonce)
            await third.send(encode(Proof(key.public, key.sign(forged.for_node(key.public, "")), "")))
            with pytest.raises(AssertionError, match="was not signed with this key"):
                await receive(third, Welcome)

    asyncio.run(story())


def test_an_agent_shows_its_token_to_no_other_server(site: Serving) -> None:
    async def story() -> None:
        async with joining(site) as connection:
            with pytest.raises(Refused, match="the server has another key"):
                await prove(connection, "a1", Key(), Key().public, "", "fj_secret")  # type: ignore[arg-type]

    asyncio.run(story())


def test_a_revoked_node_is_cut_off_and_stays_out(site: Serving) -> None:
    async def story() -> None:
        key, token = Key(), site.join_token()
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", token, key), Welcome)
            gone = await asyncio.to_thread(site.as_owner.delete, "/api/v1/nodes/a1/credential")
            assert gone.status_code == 200
            with pytest.raises(AssertionError, match="the credential of node a1 was revoked"):
                await receive(connection, Confirmed)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(connection.recv(), SECONDS)
        assert (await asyncio.to_thread(site.as_owner.get, "/api/v1/nodes/a1")).json()["credential"] == "revoked"
        assert "has joined with another key" in await refused(site, "a1", site.join_token(), key)
        await admitted(site, "a1", site.join_token("a1"), key)

    asyncio.run(story())
    assert site.as_owner.get("/api/v1/nodes/a1").json()["credential"] == "valid"
    assert site.as_owner.delete("/api/v1/nodes/none/credential").status_code == 404


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/"])
def test_other_paths_have_no_socket(site: Serving, path: str) -> None:
    async def story() -> None:
        with pytest.raises(InvalidStatus) as refusal:
            async with joining(site, path):
                pass
        assert 400 <= refusal.value.response.status_code < 500

    asyncio.run(story())


def test_an_agent_of_an_unknown_partition_is_refused_for_good(site: Serving) -> None:
    async def story() -> None:
        async with joining(site, f"{PATH}?partition=none") as connection:
            data = await asyncio.wait_for(connection.recv(), SECONDS)
            assert isinstance(data, bytes)
            refusal = decode_from_server(data)
        assert isinstance(refusal, Refusal) and refusal.final
        assert 'there is no partition "none"; name one of default' in refusal.problem

    asyncio.run(story())


def test_messages_are_small_before_the_proof(site: Serving) -> None:
    async def story() -> None:
        async with joining(site) as connection:
            with pytest.raises(ConnectionClosed) as closed:
                await connection.send(bytes(MAX_FIRST_MESSAGE_BYTES + 1))
                await asyncio.wait_for(connection.recv(), SECONDS)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009  # too big
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a1", site.join_token(), labels={"x": "y" * 1000}), Welcome)
            await connection.send(encode(Beat(1, tuple(Tasks("j" * 60, 1, "s", 1, (0, 1)) for _ in range(1_000)))))
            await receive(connection, Beaten)

    asyncio.run(story())


FRAMES: list[bytes | str] = [
    b"",
    b"\xc1",
    b"\x00" * 100_000,
    "text",
    encode(Knock(99, "a1", bytes(32))),
    encode(Proof(b"", b"", "")),
    encode(Hello("../../etc", {"cpu": 1})),
    encode(Hello("a9", {"cpu": -1})),
    encode(Hello("a9", {})),
    hello("a9")[:-3],
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_frames_that_no_agent_sends(site: Serving, frame: bytes | str) -> None:
    async def end_of(connection: ClientConnection) -> None:
        await connection.send(frame)
        with pytest.raises(ConnectionClosed):
            while True:
                await asyncio.wait_for(connection.recv(), SECONDS)

    async def story() -> None:
        key, token = Key(), site.join_token()
        secret, server = split_token(token)
        async with joining(site) as connection:
            await end_of(connection)
        async with joining(site) as connection:
            await connection.send(encode(Knock(VERSION, "a9", bytes(32))))
            await end_of(connection)
        async with joining(site) as connection:
            await prove(connection, "a9", key, server, "", secret)  # type: ignore[arg-type]
            await end_of(connection)
        # After a good greeting they are refused too.
        async with joining(site) as connection:
            assert isinstance(await greet(connection, "a9", token, key), Welcome)
            await end_of(connection)

    asyncio.run(story())
    assert site.client().get("/healthz").is_success


# -- pings without a reader for the answers ----------------------------------------------------------------------


def upgraded(site: Serving) -> socket.socket:
    """A WebSocket of which only the first answer is read."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(SECONDS)
    link.connect(("127.0.0.1", site.port))
    link.sendall(
        f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    assert b" 101 " in link.recv(4096)
    return link


def send_pings(link: socket.socket, count: int) -> None:
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    for _ in range(count // 1_000):
        link.sendall(ping * 1_000)


def until_gone(site: Serving) -> None:
    until(lambda: not len(site.connections))


def test_pings_whose_answers_are_not_read(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "GREETING_TIME", 2 * SECONDS)
    with upgraded(site) as link:
        with pytest.raises(ConnectionError):
            send_pings(link, 500_000)
        until_gone(site)


def test_a_connection_that_reads_nothing_is_closed(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "GREETING_TIME", 0.5)
    monkeypatch.setattr(hub, "REFUSAL_TIME", 0.1)
    monkeypatch.setattr(serving_program, "FAREWELL_SECONDS", 0.1)
    monkeypatch.setattr(serving_program, "UNREAD_BYTES", 2**40)
    with upgraded(site) as link:
        with suppress(ConnectionError):  # it may be over before all pings are sent
            send_pings(link, 150_000)
        until_gone(site)


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    yield folder / "cert.pem", folder / "key.pem"


def test_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server = subprocess.Popen(
        [
            *(PROGRAM, "server", "--data", str(tmp_path / "data"), "--port", "0", "--json"),
            *("--certificate", str(cert), "--key", str(key)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["url"].rpartition(":")[2]
        url = f"https://127.0.0.1:{port}"
        trust = ssl.create_default_context(cafile=cert)
        token = (tmp_path / "data" / "token").read_text().strip()
        with httpx.Client(base_url=url, verify=trust, headers={"Authorization": f"Bearer {token}"}) as client:
            answers = [client.get("/api/v1/whoami"), client.get("/healthz"), client.get("/api/v1/jobs/none")]
            assert answers[0].json()["role"] == "admin"
            # Also answers without a token and refusals keep browsers from a later connection without TLS.
            assert {each.headers["strict-transport-security"] for each in answers} == {"max-age=31536000"}
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
        asked = subprocess.run(
            [PROGRAM, "ps", "--json"],
            env={"FAIRLEAD_URL": url, "FAIRLEAD_TOKEN": token, "FAIRLEAD_CA": str(cert), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (asked.returncode, asked.stdout) == (0, "[]\n"), asked.stderr
    finally:
        server.terminate()
        assert server.wait(SECONDS) == 0


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_without_a_handshake_keep_no_others_out(
    loop: Callable[[], asyncio.AbstractEventLoop], certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections count from the moment they are accepted, however long the handshake takes."""
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 3_600.0)
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def story() -> None:
        connections = Connections(64)
        with socket.create_server(("127.0.0.1", 0)) as sock:
            accepting = listener.Listener(sock, 100, Echo, context, connections, lambda head: False)
            silent = [await asyncio.open_connection(*sock.getsockname()) for _ in range(30)]
            turned_out = silent[: 30 - connections.shares.address]
            assert await asyncio.gather(*(reader.read() for reader, _ in turned_out)) == [b""] * len(turned_out)
            assert len(connections) == connections.shares.address == 8
            trust = ssl.create_default_context(cafile=cert)
            reader, writer = await asyncio.open_connection(*sock.getsockname(), ssl=trust)
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            for _, each in (*silent, (reader, writer)):
                each.transport.abort()
            while len(connections) > 1:  # that of `Echo`, which does not leave
                await asyncio.sleep(0.01)
            accepting.close()
            await accepting.wait_closed()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(story(), SECONDS))
