"""The WebSocket of agents: who is let in, and what becomes of frames that no agent would send; TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairlead.wire.agent import (
    PATH,
    VERSION,
    Hello,
    Refusal,
    Report,
    Reports,
    Welcome,
    Work,
    decode_from_server,
    encode,
)
from tests.api.serving import Serving, submit
from tests.live import PROGRAM, SECONDS


def joining(site: Serving, secret: str, path: str = PATH) -> Any:
    url = site.url.replace("http", "ws") + path
    return connect(url, additional_headers={"Authorization": f"Bearer {secret}"}, compression=None, proxy=None)


def hello(node: str) -> bytes:
    return encode(Hello(VERSION, node, {"cpu": 4, "memory": "8Gi"}))


async def greet(connection: ClientConnection, node: str) -> Any:
    await connection.send(hello(node))
    data = await asyncio.wait_for(connection.recv(), SECONDS)
    assert isinstance(data, bytes)
    return decode_from_server(data)


def test_an_agent_joins_and_gets_work(site: Serving) -> None:
    async def story() -> None:
        async with joining(site, site.token("agent", "agent")) as connection:
            assert isinstance(await greet(connection, "a1"), Welcome)
            name = await asyncio.to_thread(submit, site.as_owner)
            while True:
                message = decode_from_server(await asyncio.wait_for(connection.recv(), SECONDS))
                if isinstance(message, Work) and message.launches:
                    break
            assert message.launches[0].tasks.job == name

    asyncio.run(story())
    assert site.as_owner.get("/api/v1/nodes/a1").json()["state"] == "up"


def test_a_token_may_be_for_one_node_only(site: Serving) -> None:
    async def story() -> None:
        secret = site.token("agent", "agent", node="a1")
        async with joining(site, secret) as connection:
            refusal = await greet(connection, "a2")
            assert isinstance(refusal, Refusal) and "for node a1" in refusal.problem
        async with joining(site, secret) as connection:
            assert isinstance(await greet(connection, "a1"), Welcome)

    asyncio.run(story())
    assert site.as_owner.get("/api/v1/nodes/a2").status_code == 404


@pytest.mark.parametrize("figure", [2**53 + 1, 2**64 - 1, -1])
def test_a_figure_out_of_bounds_is_refused(site: Serving, figure: int) -> None:
    async def story() -> None:
        async with joining(site, site.token("agent", "agent")) as connection:
            assert isinstance(await greet(connection, "a1"), Welcome)
            name = await asyncio.to_thread(submit, site.as_owner)
            while True:
                message = decode_from_server(await asyncio.wait_for(connection.recv(), SECONDS))
                if isinstance(message, Work) and message.launches:
                    break
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


@pytest.mark.parametrize(
    ("role", "path"),
    [
        (None, PATH),
        ("user", PATH),
        ("operator", PATH),
        ("admin", PATH),
        ("agent", "/api/v1/jobs"),
        ("agent", "/"),
        ("agent", f"{PATH}?partition=none"),
    ],
)
def test_who_is_not_let_in(site: Serving, role: Any, path: str) -> None:
    async def story() -> None:
        secret = "fl_wrong" if role is None else site.token(role, "ann")
        with pytest.raises(InvalidStatus) as refusal:
            async with joining(site, secret, path):
                pass
        assert 400 <= refusal.value.response.status_code < 500

    asyncio.run(story())


FRAMES: list[bytes | str] = [
    b"",
    b"\xc1",
    b"\x00" * 100_000,
    "text",
    encode(Hello(99, "a1", {"cpu": 1})),
    encode(Hello(VERSION, "../../etc", {"cpu": 1})),
    encode(Hello(VERSION, "a1", {"cpu": -1})),
    encode(Hello(VERSION, "a1", {})),
    hello("a1")[:-3],
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_frames_that_no_agent_sends(site: Serving, frame: bytes | str) -> None:
    async def story() -> None:
        secret = site.token("agent", "agent")
        async with joining(site, secret) as connection:
            await connection.send(frame)
            with pytest.raises(ConnectionClosed):
                while True:
                    await asyncio.wait_for(connection.recv(), SECONDS)
        # After a good greeting they are no better.
        async with joining(site, secret) as connection:
            assert isinstance(await greet(connection, "a9"), Welcome)
            await connection.send(frame)
            with pytest.raises(ConnectionClosed):
                while True:
                    await asyncio.wait_for(connection.recv(), SECONDS)

    asyncio.run(story())
    assert site.client().get("/healthz").is_success
    assert site.as_owner.get("/api/v1/nodes/a1").status_code == 404


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
            assert client.get("/api/v1/whoami").json()["role"] == "admin"
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
