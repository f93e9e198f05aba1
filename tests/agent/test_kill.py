"""kill -9 of agents, spawners and servers while many tasks run.

Each task takes a lock that only one process at a time can have, and notes its attempt and its end. None may run twice
at once, no attempt may be started twice, and none may be lost in silence: the job ends when every task has succeeded,
and each of them has. The output of a task that succeeded is complete,
and has nothing of another task. No spawner and no agent may end by a fault of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

import psutil
import pytest

from fairlead.agent.task_logs import SharedOutput, read_log
from fairlead.core.model import Job
from fairlead.wire.agent_messages import LogRequest
from tests.agent.plant import SECONDS, Machine, Plant, machine

TASK = """
echo $FAIRLEAD_INDEX.$FAIRLEAD_ATTEMPT begins
exec 9>{folder}/lock.$FAIRLEAD_INDEX
flock -n 9 || {{ echo $FAIRLEAD_INDEX >>{folder}/twice; exit 9; }}
echo $FAIRLEAD_INDEX.$FAIRLEAD_ATTEMPT >>{folder}/started
sleep {seconds}
echo $FAIRLEAD_INDEX >>{folder}/done
echo $FAIRLEAD_INDEX.$FAIRLEAD_ATTEMPT ends
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
    """A plant; its server can be replaced by another on the same journal and port."""

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


async def story(path: Path, victims: list[str], seed: int, tasks: int, strikes: int, seconds: float) -> None:
    """Run tasks, a tenth of them slow, while victims are killed, and check every task. Prints the counts."""
    counts = {"quick": tasks - tasks // 10, "slow": tasks // 10}
    chance = random.Random(seed)
    scene = Scene(path)
    plant = await scene.serve()
    options = ("--resource=cpu=8", "--resource=memory=1Gi", "--resource=slots=4")  # slow tasks leave room for others
    async with asyncio.timeout(seconds), machine(path / "agent", plant.url, *options) as one:
        quick = TASK.format(folder=path / "quick", seconds=0.01)
        slow = TASK.format(folder=path / "slow", seconds=0.3)
        for name in ("quick", "slow"):
            (path / name).mkdir()
        await plant.until(lambda partition: partition.nodes.rows)
        jobs = [
            await plant.submit(["sh", "-c", slow], count=counts["slow"], min=1, resources={"cpu": 1, "slots": 1}),
            await plant.submit(["sh", "-c", quick], count=counts["quick"], min=1, resources={"cpu": 2}),
        ]
        hit = 0
        for at in range(strikes):
            # Triggered by starts, not by time: a kill while no task runs would test nothing.
            begun = int((at + chance.random()) * tasks / strikes)
            while lines(path, "started") <= min(begun, tasks - 1):
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            hit += bool(one.spawners())
            await strike(chance.choice(victims), scene, one)
        plant = scene.plant or plant
        for job in jobs:
            assert await plant.over(job) == "succeeded", await plant.job(job, lambda each: each.reason)
            assert await plant.job(job, all_succeeded)
        await scene.end_server()
    attempts = 0
    for name, many in counts.items():
        assert not (path / name / "twice").exists()
        started = Counter((path / name / "started").read_text().split())
        attempts += len(started)
        assert max(started.values()) == 1, started.most_common(3)
        assert {int(each) for each in (path / name / "done").read_text().split()} == set(range(many))
        number = int(jobs[name == "quick"])
        await check_output(path / "agent" / "logs", number, many, list(started))
    until = monotonic() + SECONDS
    while left_over(path):  # a spawner that was just being started gets no message to end, and ends by itself
        assert monotonic() < until, left_over(path)
        await asyncio.sleep(0.1)
    for log in (path / "agent.log", *path.glob("agent/spawner-*/spawner.log")):
        assert "Traceback" not in log.read_text(errors="replace"), log
    print(f"seed {seed}: {strikes} kills, {hit} with spawners at work, {tasks} tasks, {attempts} attempts")
    assert hit > strikes // 2
    assert attempts > tasks or strikes < 10, "no kill has cost a task its attempt"


async def check_output(logs: Path, number: int, tasks: int, attempts: list[str]) -> None:
    """Check that each attempt has printed only its own text, and one attempt of each task all of it."""
    shared = SharedOutput(str(logs))
    whole: set[int] = set()
    for name in attempts:
        index, attempt = map(int, name.split("."))
        request = LogRequest(0, number, "main", index, attempt)
        printed = b"".join([part.data async for part in read_log(str(logs), request, lambda: True, shared)]).decode()
        text = f"{name} begins\n{name} ends\n"
        assert text.startswith(printed), (name, printed)
        if printed == text:
            whole.add(index)
    assert whole == set(range(tasks)), set(range(tasks)) - whole


def lines(path: Path, name: str) -> int:
    """Return the number of lines that tasks have written by now."""
    files = [path / each / name for each in ("quick", "slow")]
    return sum(file.read_bytes().count(b"\n") for file in files if file.exists())


def left_over(path: Path) -> list[str]:
    """Return processes that still use a folder."""
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(path) in command]


@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS)
def test_no_task_runs_twice_and_none_is_lost(tmp_path: Path, victims: list[str]) -> None:
    asyncio.run(story(tmp_path, victims, seed=1, tasks=110, strikes=3, seconds=3 * SECONDS))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_no_task_runs_twice_and_none_is_lost_for_long(tmp_path: Path, seed: int) -> None:
    asyncio.run(story(tmp_path, VICTIMS["any"], seed, tasks=3000, strikes=60, seconds=15 * SECONDS))
