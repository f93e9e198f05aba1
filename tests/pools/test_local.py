"""The local provider with real agents. There is no server to join, so they keep trying."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.core.config import parse_config
from fairlead.pools.local import LocalProvider
from fairlead.pools.provider import Join, PoolKind
from fairlead.wire.handshake import Key, join_token
from tests import live
from tests.until import until

SECONDS = 60.0
POOL = {"node": {"cpu": 0.5}, "labels": {"rack": "r 1"}, "taints": ["slow"], "max": 9, "provider": {"local": {}}}


class Local:
    """A provider with a folder of its own; `reopen` replaces it, as another server would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.server = Key()
        self.reopen()

    def reopen(self, url: str = "http://127.0.0.1:1") -> None:
        settings = dict(parse_config({"partitions": {"p": {"pools": {"w": POOL}}}})["p"].pools)["w"]
        kind = PoolKind("p", "w", settings, Join(lambda: url, self.invite, lambda partition, names: None))
        self.provider = LocalProvider(
            kind, self.folder / "w", lambda level, event, fields: self.log.append((event, fields))
        )

    def invite(self, partition: str, pool: str, names: Sequence[str]) -> dict[str, str]:
        return {name: join_token(f"fj_{partition}-{pool}-{name}", self.server.public) for name in names}

    def create(self, *names: str) -> None:
        asyncio.run(self.provider.create(names))

    def destroy(self, *names: str) -> None:
        asyncio.run(self.provider.destroy(names))

    def names(self) -> list[str]:
        return [machine.name for machine in asyncio.run(self.provider.list())]

    def processes(self, word: str = "", name: str = "") -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            text = " ".join(process.info["cmdline"] or ())
            if str(self.folder / "w" / name) in text and word in text:
                found.append(process)
        return found

    def own_agents(self) -> list[psutil.Process]:
        """Return the children of this process that are agents of the folder."""
        found = []
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if any(str(self.folder / "w") in word for word in child.cmdline()):
                    found.append(child)
        return found

    def agents(self, many: int = 1) -> list[psutil.Process]:
        """Wait for `many` agents, and return them. In its first moment a process has no arguments, or its parent's."""

        def found() -> list[psutil.Process]:
            processes = {process.pid: process for process in self.processes("--directory=")}
            parents: dict[int, int] = {}
            for process in processes.values():
                with suppress(psutil.Error):
                    parents[process.pid] = process.ppid()
            return [processes[pid] for pid, parent in parents.items() if parent not in processes]

        until(lambda: len(found()) >= many)
        return found()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    found = Local(tmp_path)
    try:
        yield found
    finally:
        for process in [
            *found.own_agents(),
            *(each for home in found.folder.glob("w/*") for each in live.spawners(home)),
        ]:
            with suppress(psutil.Error):
                process.kill()


def spawners(local: Local, name: str) -> list[psutil.Process]:
    return local.processes("fairlead.agent.spawner", name)


def test_what_is_there_is_not_brought_twice(local: Local) -> None:
    assert local.names() == []
    local.create("w-1-0", "w-1-1")
    assert local.names() == ["w-1-0", "w-1-1"]
    before = [agent.pid for agent in local.agents(2)]
    assert len(before) == 2
    local.create("w-1-0", "w-1-1", "w-1-2")
    # Another server, after a restart, knows only the folder.
    local.reopen()
    local.create("w-1-1")
    assert local.names() == ["w-1-0", "w-1-1", "w-1-2"]
    assert {agent.pid for agent in local.agents(3)} > set(before) and len(local.agents(3)) == 3


def test_an_agent_is_told_what_its_pool_says(local: Local) -> None:
    local.create("w-1-0")
    (agent,) = local.agents()
    said = agent.cmdline()
    for option in (
        "--name=w-1-0",
        "--partition=p",
        "--pool=w",
        "--resource=cpu=0.5",
        "--resource=memory=0",
        "--label=rack=r 1",
        "--taint=slow",
        f"--token-file={local.folder / 'w' / 'w-1-0' / 'join-token'}",
    ):
        assert option in said
    file = local.folder / "w" / "w-1-0" / "join-token"
    assert file.read_text() == local.invite("p", "w", ["w-1-0"])["w-1-0"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any("fj_" in word for word in said)
    assert os.getsid(agent.pid) == agent.pid


def test_an_agent_trusts_the_certificates_of_its_server(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_CA", str(local.folder / "ca.crt"))
    monkeypatch.setenv("FAIRLEAD_TOKEN", "secret")
    local.create("w-1-0")
    (agent,) = local.agents()
    variables = {name: value for name, value in agent.environ().items() if name.startswith("FAIRLEAD_")}
    assert variables == {"FAIRLEAD_CA": str(local.folder / "ca.crt")}


def test_destroyed_ones_leave_nothing(local: Local) -> None:
    local.create("w-1-0", "w-1-1")
    until(lambda: len(spawners(local, "w-1-0")) >= 1)
    local.reopen()
    local.destroy("w-1-0", "w-1-7")
    assert local.names() == ["w-1-1"]
    assert local.processes(name="w-1-0") == [] and not (local.folder / "w" / "w-1-0").exists()
    local.destroy("w-1-0")
    local.destroy("w-1-1")
    assert local.names() == [] and local.processes() == []


def test_destroyed_in_their_first_moment(local: Local) -> None:
    for at in range(5):
        local.create(f"w-{at}-0")
        local.destroy(f"w-{at}-0")
        assert local.names() == []
    assert local.processes() == []


def test_tasks_of_an_agent_that_ended_are_ended_before_it_is_not_listed(local: Local) -> None:
    local.create("w-1-0")
    until(lambda: len(spawners(local, "w-1-0")) >= 1)
    mark = next((local.folder / "w" / "w-1-0").glob("spawner-*/id")).read_text()
    task = psutil.Popen(["sleep", "600"], env={"FAIRLEAD_TASK": f"{mark}a-task"}, start_new_session=True)
    stranger = psutil.Popen(["sleep", "600"], env={"FAIRLEAD_TASK": "another:mark"})
    try:
        (agent,) = local.agents()
        agent.kill()
        until(lambda: local.names() == [])
        assert task.wait(SECONDS) in (-signal.SIGTERM, -signal.SIGKILL)
        assert local.processes() == [] and not (local.folder / "w" / "w-1-0").exists()
        assert stranger.poll() is None
        assert [event for event, _ in local.log] == ["local agent ended"]
    finally:
        for each in (task, stranger):
            with suppress(psutil.Error):
                each.kill()
            each.wait()


def test_an_empty_spawner_id_ends_no_process(local: Local) -> None:
    folder = local.folder / "w" / "w-1-0" / "spawner-0"
    folder.mkdir(parents=True)
    (folder / "id").write_text("")
    bystander = psutil.Popen(["sleep", "600"], env={"FAIRLEAD_TASK": "abc:def"})
    try:
        local.destroy("w-1-0")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_server_at_another_address_has_agents_join_it(local: Local) -> None:
    local.create("w-1-0")
    until(lambda: len(spawners(local, "w-1-0")) >= 1)
    kept = {spawner.pid for spawner in spawners(local, "w-1-0")}
    local.reopen("http://127.0.0.1:2")
    assert local.names() == ["w-1-0"]
    (agent,) = local.agents()
    assert "--join=http://127.0.0.1:2" in agent.cmdline()
    assert kept <= {spawner.pid for spawner in spawners(local, "w-1-0")}
