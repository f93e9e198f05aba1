"""Identities of real agents: the file with the key, a restart, a copy of the directory, a key that is renewed."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent.node_key import Identity
from fairlead.agent.session import Refused
from fairlead.wire.handshake import Key, join_token
from tests.agent.plant import JOIN_TOKEN, PARTITION, SECONDS, Machine, Plant, machine

OPTIONS = ("--resource=cpu=2", "--resource=memory=1Gi")


async def joined(plant: Plant, times: int) -> None:
    async with asyncio.timeout(SECONDS):
        while len([each for each in plant.log if each[0] == "agent joined"]) < times:
            await asyncio.sleep(0.02)


def tell(path: Path, story: Any) -> None:
    async def in_time() -> None:
        async with (
            asyncio.timeout(2 * SECONDS),
            Plant(path / "journal", {"heartbeat": "100ms"}).at_work() as plant,
            machine(path / "agent", plant.url, *OPTIONS) as one,
        ):
            await joined(plant, 1)
            await story(plant, one)

    asyncio.run(in_time())


def test_the_key_is_for_its_owner_and_outlives_the_token(tmp_path: Path) -> None:
    async def story(plant: Plant, one: Machine) -> None:
        file = one.directory / "identity"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(one.directory.stat().st_mode) == 0o700
        (tmp_path / JOIN_TOKEN).unlink()
        await one.kill()
        await one.start()
        await joined(plant, 2)
        assert await plant.over(await plant.submit(["true"])) == "succeeded"
        public = plant.identities.about(PARTITION, "n1")
        assert public[0] == "valid"

    tell(tmp_path, story)


def test_a_copy_of_the_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def story(plant: Plant, one: Machine) -> None:
        job = await plant.submit(["sleep", "1000"])
        await plant.until(
            lambda partition: any(allocation.state == "running" for allocation in partition.allocations.values())
        )
        # Spawners are of their machine: those of a copy on the same one would take the tasks for their own.
        shutil.copytree(one.directory, tmp_path / "copy" / "agent", ignore=shutil.ignore_patterns("spawner-*"))
        async with machine(tmp_path / "copy" / "agent", plant.url, *OPTIONS) as copy:
            log = copy.directory.parent / "agent.log"
            while "another agent has the identity of node n1" not in log.read_text():
                await asyncio.sleep(0.02)
            assert any(event == "agent refused" for event, _ in plant.log)
        assert await plant.read(
            lambda partition: [allocation.attempt for allocation in partition.allocations.values()]
        ) == [1]
        await plant.kill(job)
        await plant.over(job)
        assert [event for event, _ in plant.log if event == "agent joined"] == ["agent joined"]

    tell(tmp_path, story)


def test_a_real_agent_renews_its_key(tmp_path: Path) -> None:
    async def story(plant: Plant, one: Machine) -> None:
        file = one.directory / "identity"
        before = json.loads(file.read_text())
        plant.identities.lasts *= 10  # less than a third of that is left
        await joined(plant, 2)
        after = json.loads(file.read_text())
        assert before["key"] != after["key"] and before["server"] == after["server"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert await plant.over(await plant.submit(["true"])) == "succeeded"

    tell(tmp_path, story)


def test_without_a_token_or_a_key_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="fairlead token create --role join --node n1"):
        Identity(tmp_path, "n1", "")
    with pytest.raises(Refused, match="the join token is damaged"):
        Identity(tmp_path, "n1", "fj_half")
    assert not (tmp_path / "identity").exists()
    Identity(tmp_path, "n1", join_token("fj_secret", Key().public))
    (tmp_path / "identity").write_text("{")
    with pytest.raises(Refused, match="remove it and join again with a new token"):
        Identity(tmp_path, "n1", "")
