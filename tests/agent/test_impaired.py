"""Users against their node: what lies in their folders, and what they do to the processes that watch their tasks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fairlead.core.commands import Kill
from fairlead.wire.agent_messages import LogRequest
from tests.agent.plant import PARTITION, Machine, Plant
from tests.agent.test_users import helpers, labels_of, node, process_of, processes_of, relatives, run, tell
from tests.people import People, needs_root, people

pytestmark = needs_root

SLEEP = "echo started; while true; do sleep 1; done"


@pytest.fixture(scope="module")
def two() -> Iterator[People]:
    with people("ann", "bob") as found:
        yield found


async def joined_again(plant: Plant, one: Machine) -> None:
    await one.kill()
    await plant.until(lambda partition: "n1" not in plant.hub.connected(PARTITION))
    await one.start()
    await plant.until(lambda partition: "n1" in plant.hub.connected(PARTITION))


def test_nothing_in_the_folder_of_a_user_keeps_an_agent_from_starting(two: People, tmp_path: Path) -> None:
    plant_files = """
        import os, socket
        os.chdir(LOGS)
        os.makedirs("0.0", exist_ok=True)
        os.chdir("0.0")
        open("9" * 200 + ".main.0.1.files", "w").write("job 1\\n")
        open(b"1.\\xff.0.1.files", "wb").write(b"job \\xff\\n")
        open("7.main.0.1.files", "w").write("file 1 x\\n" * 7_000_000)
        for number in range(300):
            with open(f"{number}.other.0.1.files", "wb") as file:
                file.truncate(64 << 20)
        os.mkfifo("2.main.0.1.files")
        os.mkfifo("2.main.0.1.out")
        os.mkdir("3.main.0.1.files")
        os.mkdir("3.main.0.1.out")
        os.symlink("/dev/zero", "4.main.0.1.files")
        os.symlink("4.main.0.1.files", "4.main.0.1.out")
        socket.socket(socket.AF_UNIX).bind("5.main.0.1.files")
        os.symlink("..", "../1.0")
        os.mkdir("../2.0", 0)
        os.mkfifo("../3.0")
        for number in range(5_000):
            open(f"../{number}.files", "w").close()
    """

    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            logs = one.directory / "users/bob/logs"
            lines = [line.removeprefix(" " * 8) for line in plant_files.splitlines()]
            script = two.folder / "plant.py"
            script.write_text(f"LOGS = {str(logs)!r}\n" + "\n".join(lines))
            script.chmod(0o644)
            state, said = await run(plant, "bob", f"exec /usr/bin/python3 -I {script} 2>&1")
            assert state == "succeeded", said
            await joined_again(plant, one)
            assert await run(plant, "ann", "echo works") == ("succeeded", "works\n")
            for number in range(1, 8):
                asked = LogRequest(0, number, "main", 0, 1, user="bob")
                parts = [part.data async for part in plant.hub.log(PARTITION, "n1", asked)]
                assert number < 3 or parts == [b""]

    tell(story)


def test_an_agent_ends_with_its_root_helper_and_no_task_fails(two: People, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            assert one.process is not None
            kept = await plant.submit(["sleep", "600"])
            await plant.until(lambda partition: process_of(two.names["ann"], "sleep"))
            for pid in helpers(one.process.pid):
                os.kill(pid, signal.SIGKILL)
            jobs = [await plant.submit(["true"], user="bob") for _ in range(20)]
            assert await one.process.wait() == 1
            assert "the root helper ended" in (one.directory.parent / "agent.log").read_text()
            await one.start()
            for job in jobs:
                assert await plant.over(job) == "succeeded"
                assert await plant.job(job, lambda each: each.stages[0].past(0).tries_used) == 0
            assert process_of(two.names["ann"], "sleep")
            await plant.kill(kept)
            assert await plant.over(kept) == "killed"

    tell(story)


@pytest.mark.parametrize(
    "attack",
    [
        "for pid in {spawner} {guard}; do kill -STOP $pid; done",
        "for pid in {guard} {spawner}; do kill -KILL $pid; done",
        "prlimit --pid {spawner} --nofile=3:3; prlimit --pid {guard} --nofile=3:3",
    ],
    ids=["stopped", "killed", "without descriptors"],
)
def test_a_task_that_impairs_its_spawner_and_guard_is_stopped(two: People, tmp_path: Path, attack: str) -> None:
    """The processes that watch a task have its uid. A process that left its session and environment ends too."""

    async def story() -> None:
        async with node(two, tmp_path) as (plant, _):
            job = await plant.submit(["/bin/sh", "-c", f"env -i setsid sh -c '{SLEEP}' & {SLEEP}"], user="bob")
            await plant.until(lambda partition: process_of(two.names["bob"], "sleep"))
            spawner, *_ = relatives(task_of(two.names["bob"]))
            guards = [each.pid for each in psutil.Process(spawner).children() if each.name() != "sh"]
            for guard in guards:
                words = attack.format(spawner=spawner, guard=guard)
                await asyncio.create_subprocess_exec("setpriv", *as_user(two.names["bob"]), "sh", "-c", words)
            await plant.ask(Kill(job=job, user="bob"))
            while any(process_of(two.names["bob"], name) for name in ("sh", "sleep")):
                await asyncio.sleep(0.1)
            assert await plant.over(job) == "killed"
            assert await run(plant, "bob", "echo works") == ("succeeded", "works\n")
            assert await run(plant, "ann", "echo works") == ("succeeded", "works\n")

    tell(story)


def test_tasks_of_stopped_spawners_end_with_their_lease(two: People, tmp_path: Path) -> None:
    """The keeper of each user is outside of the processes that are stopped together here."""

    async def story() -> None:
        async with node(two, tmp_path) as (plant, one):
            job = await plant.submit(["/bin/sh", "-c", SLEEP], user="bob")
            await plant.until(lambda partition: process_of(two.names["bob"], "sleep"))
            spawner, *_ = relatives(task_of(two.names["bob"]))
            assert one.process is not None
            stopped = [one.process.pid, spawner, *(each.pid for each in psutil.Process(spawner).children())]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            while any(process_of(two.names["bob"], name) for name in ("sh", "sleep")):
                await asyncio.sleep(0.1)
            with suppress(ProcessLookupError):
                os.kill(one.process.pid, signal.SIGCONT)
            await plant.ask(Kill(job=job, user="bob"))
            assert await plant.over(job) == "killed"

    tell(story)


def test_a_process_that_leaves_its_task_does_not_leave_the_limits(two: People, tmp_path: Path) -> None:
    """It has no parent, session or environment of the task. Without cgroups it is ended, as nothing could limit it."""

    async def story() -> None:
        async with node(two, tmp_path) as (plant, _):
            burn = "exec 3<>/dev/zero; while :; do :; done"
            leave = f"( env -i /usr/bin/setsid /bin/sh -c '{burn}' & ); exec sleep 600"
            asked = {"cpu": 0.1, "memory": "64Mi"}
            job = await plant.submit(["/bin/sh", "-c", leave], user="bob", resources=asked)
            await plant.until(lambda partition: process_of(two.names["bob"], "sleep"))
            await asyncio.sleep(1.0)  # longer than the pause between two looks of the spawner
            task, left = (process_of(two.names["bob"], name) for name in ("sleep", "sh"))
            assert not left or Path(f"/proc/{left}/cgroup").read_text() == Path(f"/proc/{task}/cgroup").read_text()
            cgroup = (await labels_of(plant))["cgroup"]
            # With v1, tasks start in their cgroup. With v2 they get one after a tenth of a second: a process that left
            # before is in none, is not known as the task's, and is ended.
            assert cgroup == "v2" or bool(left) == (cgroup == "v1")
            await plant.ask(Kill(job=job, user="bob"))
            assert await plant.over(job) == "killed"
            while process_of(two.names["bob"], "sh"):
                await asyncio.sleep(0.1)

    tell(story)


def task_of(name: str) -> int:
    """The first process of the only task of a user: the shell whose parent is a spawner, in Python."""
    for each in processes_of(name):
        with suppress(psutil.Error):
            if each.name() == "sh" and "python" in each.parent().name():
                return each.pid
    raise AssertionError("there is no task")


def as_user(name: str) -> tuple[str, ...]:
    return f"--reuid={name}", f"--regid={name}", "--clear-groups"
