"""An executor and its tasks against an attacker that replaces bytes in transit: nothing is unpickled."""

from __future__ import annotations

import base64
import os
import pickle
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client import Client
from fairlead.client.executor import Lost
from fairlead.client.sealed_calls import Forged
from tests.live import SECONDS, Up

SMALL = {"cpu": 0.1}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    found = Up(tmp_path_factory.mktemp("forgery") / "data")
    found.until("node", "list", said="box")
    try:
        yield found
    finally:
        found.close()


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def packed(value: object) -> str:
    return base64.b85encode(zlib.compress(pickle.dumps(value))).decode()


class Attacked(Client):
    """A client; just before it reads the output of a task, another process of the node has written to that file."""

    def __init__(self, up: Up) -> None:
        super().__init__(up.url, up.token)
        self.folder = up.folder
        self.outputs: list[bytes] = []
        self.replacement: bytes | None = None
        self.sent: list[dict[str, Any]] = []

    def log(self, job: str, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        self.outputs.append(b"".join(super().log(job, *args, **kwargs)))
        if self.replacement is not None:
            folder = next(self.folder.rglob("*.shared")).parent
            (folder / f"{job}.main.0.1.out").write_bytes(self.replacement)
        yield from super().log(job, *args, **kwargs)

    def submit_many(self, documents: Any) -> Any:
        self.sent += documents
        return super().submit_many(documents)


@pytest.fixture
def client(up: Up) -> Iterator[Attacked]:
    with Attacked(up) as found:
        yield found


def test_a_replaced_result_is_not_unpickled(client: Attacked, tmp_path: Path) -> None:
    evil = packed(("result", Touch(tmp_path / "owned")))
    with fairlead.Executor(client, resources=SMALL) as executor:
        assert executor.submit(abs, -1).result(SECONDS) == 1
        genuine = client.outputs[-1]
        mac = genuine[:64].decode()
        for forged in (evil, mac + evil, "0" * 64 + evil, "?", genuine[:-3].decode(), genuine.decode()):
            client.replacement = forged.encode() + b"\n"
            with pytest.raises(Forged, match=r"job \d+: the output of its task does not carry"):
                executor.submit(abs, -2).result(SECONDS)
        client.replacement = None
        assert executor.submit(abs, -3).result(SECONDS) == 3
    assert not (tmp_path / "owned").exists()


def test_a_replaced_call_is_not_unpickled(client: Attacked, tmp_path: Path) -> None:
    with fairlead.Executor(client, resources=SMALL) as executor:
        assert executor.submit(abs, -1).result(SECONDS) == 1
        document = client.sent[-1]
        command = list(document["stages"][0]["command"])
        command[-1] = packed((Touch(tmp_path / "owned"), (), {}))
        job = client.submit(document={**document, "stages": [{**document["stages"][0], "command": command}]})
        assert client.wait(job, SECONDS).state == "failed"
        assert b"the call does not carry" in b"".join(Client.log(client, job, stream="err"))
    assert not (tmp_path / "owned").exists()


def test_the_key_is_with_the_client_and_its_tasks_alone(up: Up, client: Attacked) -> None:
    def key() -> str:
        environment = Path("/proc/self/environ").read_bytes()
        found = re.search(rb"FAIRLEAD_CALL_KEY=([0-9a-f]{64})\0", environment)
        assert found
        inherited = "FAIRLEAD_CALL_KEY" in os.environ
        assert not inherited
        return found[1].decode()

    with fairlead.Executor(client, resources=SMALL) as executor:
        value = executor.submit(key).result(SECONDS)
        (name,) = client.secrets()
        assert name.startswith("executor-")
        assert value not in str(client.sent)
        assert value not in up.run("show", str(len(client.sent)), "--json")
        for file in up.folder.rglob("*"):
            if file.is_file() and not file.name.endswith(
                (".out", ".shared")
            ):  # the function returns the key to its client
                assert value.encode() not in file.read_bytes(), file
    assert client.secrets() == []


def test_a_task_without_the_key_says_so(client: Attacked) -> None:
    with fairlead.Executor(client, resources=SMALL) as executor:
        assert executor.submit(abs, -1).result(SECONDS) == 1
        (name,) = client.secrets()
        client.remove_secret(name)
        with pytest.raises(Exception, match=f'has no secret "{name}"'):
            executor.submit(abs, -2).result(SECONDS)
        client.set_secret(name, "0" * 64)
        with pytest.raises(Lost):
            executor.submit(abs, -2).result(SECONDS)
