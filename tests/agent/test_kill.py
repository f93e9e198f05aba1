"""kill -9 of agents, spawners and servers while many tasks run.

Each task takes a lock that only one process at a time can have, and notes its attempt. None may run twice at once, no
attempt may be started twice, and none may be lost in silence: the job ends when every task has succeeded.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from fairlead.core.model import Job
from tests.agent.plant import SECONDS, Machine, Plant, machine

TASK = """
exec 9>{folder}/lock.$FAIRLEAD_INDEX
flock -n 9 || {{ echo $FAIRLEAD_INDEX >>{folder}/twice; exit 9; }}
echo $FAIRLEAD_INDEX.$FAIRLEAD_ATTEMPT >>{folder}/started
sleep {seconds}
"""
VICTIMS = {
    "agent": ["agent"],
    "one spawner": ["one spawner"],
    "spawners": ["spawners"],
    "agent and a spawner": ["both one"],
    "agent and spawners": ["both"],
    "agent, spawners and guards": ["all"],
    "server": ["server"],
    "server and agent": ["server and agent"],
    "any": ["agent", "one spawner", "spawners", "both one", "both", "all", "server", "server and agent"],
}


class Scene:
    """A plant whose server can be replaced by another on the same journal and port."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = 0
        self.plant: Plant | None = None
        self._stack = AsyncExitStack()

    async def serve(self) -> Plant:
        settings = {"heartbeat": "100ms", "preempt_grace": "300ms", "ready_after": "2s", "chain": "200ms"}
        self.plant = Plant(self.path / "journal", settings, self.port)
        await self._stack.enter_async_context(self.plant.at_work())
        self.port = int(self.plant.url.rpartition(":")[2])
        return self.plant

    async def end_server(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()


async def strike(victim: str, scene: Scene, one: Machine) -> None:
    if victim in ("agent", "both", "both one", "server and agent", "all"):
        await one.kill()
    if victim in ("spawners", "both", "all"):
        one.kill_spawners(guards=victim == "all")
    elif victim in ("one spawner", "both one"):
        one.kill_spawners(slice(0, 1))
    if victim in ("server", "server and agent"):
        await scene.end_server()
        await scene.serve()
    if one.process is None:
        await one.start()


def all_succeeded(job: Job) -> bool:
    return len(job.stages[0].ended_as("succeeded")) == job.stages[0].count


async def story(path: Path, victims: list[str], seed: int, tasks: int, strikes: int) -> None:
    chance = random.Random(seed)
    scene = Scene(path)
    plant = await scene.serve()
    options = ("--resource=cpu=8", "--resource=memory=1Gi")
    async with asyncio.timeout(3 * SECONDS), machine(path / "agent", plant.url, *options) as one:
        quick = TASK.format(folder=path / "quick", seconds=0.01)
        slow = TASK.format(folder=path / "slow", seconds=0.3)
        for name in ("quick", "slow"):
            (path / name).mkdir()
        jobs = [
            await plant.submit(["sh", "-c", quick], count=tasks, min=1, resources={"cpu": 2}),
            await plant.submit(["sh", "-c", slow], count=tasks // 10, min=1, resources={"cpu": 1}),
        ]
        for _ in range(strikes):
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            await strike(chance.choice(victims), scene, one)
        plant = scene.plant or plant
        for job in jobs:
            assert await plant.over(job) == "succeeded", await plant.job(job, lambda each: each.reason)
            assert await plant.job(job, all_succeeded)
        await scene.end_server()
    for name, many in (("quick", tasks), ("slow", tasks // 10)):
        assert not (path / name / "twice").exists()
        started = Counter((path / name / "started").read_text().split())
        assert max(started.values()) == 1, started.most_common(3)
        assert {int(each.partition(".")[0]) for each in started} == set(range(many))
    assert not left_over(path)


def left_over(path: Path) -> list[str]:
    """Processes that still have something to do with a folder."""
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(path) in command]


@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS)
def test_none_twice_and_none_lost(tmp_path: Path, victims: list[str]) -> None:
    asyncio.run(story(tmp_path, victims, seed=1, tasks=100, strikes=3))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_none_twice_and_none_lost_for_long(tmp_path: Path, seed: int) -> None:
    asyncio.run(story(tmp_path, VICTIMS["any"], seed, tasks=1000, strikes=12))
