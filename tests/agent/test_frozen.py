"""An agent that is stopped or killed and does not come back, on the server's own machine as on any other.

Its tasks have ended before the server calls them lost and starts them on another node.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.agent.plant import SECONDS, Machine, Plant, machine

TASKS = 6
TASK = """
exec 9>{folder}/lock.$FAIRLEAD_INDEX
flock -n 9 || {{ echo $FAIRLEAD_INDEX >>{folder}/twice; exit 9; }}
echo $FAIRLEAD_NODE >>{folder}/started
while ! [ -e {folder}/go ]; do sleep 0.05; done
"""
OPTIONS = ("--resource=cpu=8", "--resource=memory=1Gi")
SETTINGS = {"heartbeat": "1s", "lease": "6s", "preempt_grace": "300ms"}


def stop(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


async def silence(how: str, one: Machine) -> list[int]:
    """Make an agent silent. Returns the stopped processes."""
    assert one.process is not None
    if how == "killed":
        spawners = one.spawners()
        await one.kill()
        stop(spawners, signal.SIGKILL)
        return []
    stopped = [one.process.pid] + (one.spawners() if how == "agent and spawners stopped" else [])
    stop(stopped, signal.SIGSTOP)
    return stopped


@pytest.mark.parametrize("how", ["agent stopped", "agent and spawners stopped", "killed"])
def test_tasks_of_a_silent_agent_end_before_they_start_elsewhere(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        async with (
            asyncio.timeout(SECONDS),
            Plant(tmp_path / "journal", SETTINGS).at_work() as plant,
            machine(tmp_path / "one", plant.url, *OPTIONS) as one,
        ):
            job = await plant.submit(["sh", "-c", TASK.format(folder=tmp_path)], count=TASKS, min=1)
            started = tmp_path / "started"
            await plant.until(lambda partition: partition.nodes.rows)
            while not started.exists() or len(started.read_text().split()) < TASKS:
                await asyncio.sleep(0.01)
            async with machine(tmp_path / "two", plant.url, *OPTIONS, "--name=n2"):
                await plant.until(lambda partition: len(partition.nodes.rows) == 2)
                stopped = await silence(how, one)
                try:
                    while len(started.read_text().split()) < 2 * TASKS:
                        assert not (tmp_path / "twice").exists()
                        await asyncio.sleep(0.01)
                    (tmp_path / "go").touch()
                    assert await plant.over(job) == "succeeded"
                finally:
                    for pid in stopped:
                        if Path(f"/proc/{pid}").exists():
                            os.kill(pid, signal.SIGCONT)
        assert not (tmp_path / "twice").exists()
        assert sorted(started.read_text().split()) == ["n1"] * TASKS + ["n2"] * TASKS

    asyncio.run(story())
